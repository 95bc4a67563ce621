"""The committer: group commit, reads that wait, refusals on stale knowledge, and what a failure leaves behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from process_worker import SCHEMA, in_threads
from rawlog import check_log

from refold import Conflict, Refused, Run, Store, StoreClosed, StoreUnavailable, compile_schema, open_store
from refold_store import committer, heads
from refold_store.events import Row
from refold_store.requests import Op, Request, Unit

Open = Callable[..., Store]
MORE = compile_schema(
    {
        "keys": {
            "a": {"owner": "w0"},
            "low": {"owner": "w0", "type": "integer"},
            "high": {"owner": "w0", "type": "integer"},
            "entries": {"owner": "w0", "type": "array", "reducer": "append"},
            "tree": {"owner": "w0", "type": "object", "reducer": "deep_merge"},
            "item/{id}": {"owner": "w0"},
        },
        "invariants": {"band": "low <= high"},
    }
)


class Appends:
    """Stands before a store's `append`: counts, delays or fails it."""

    def __init__(self, store: Store, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, bool]] = []
        """(rows, durable) of each."""
        self.gate = threading.Event()
        self.gate.set()
        self.fails: Exception | None = None
        self._append = store._backend.append
        patch.setattr(store._backend, "append", self)

    def __call__(self, rows: list[Row], *, durable: bool) -> None:
        self.calls.append((len(rows), durable))
        self.gate.wait()
        if self.fails is not None:
            raise self.fails
        self._append(rows, durable=durable)


@pytest.fixture
def store(open_new: Open) -> Store:
    return open_new(SCHEMA)


@pytest.fixture
def run(store: Store) -> Run:
    """A run that is open, with one version of a."""
    run = store.run("shared")
    run.write_state("a", 0, writer="w0")
    return run


@pytest.fixture
def appends(store: Store, run: Run, monkeypatch: pytest.MonkeyPatch) -> Appends:
    return Appends(store, monkeypatch)


@pytest.fixture
def slow_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is flushed because of the time."""
    monkeypatch.setattr(committer, "FLUSH_S", 3600.0)


def kinds(run: Run) -> list[str]:
    """The log in short, without this look's own flush mattering."""
    return [event.kind.removeprefix("state.") for event in run.events(after=3)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def later(store: Store, run: Run, value: object, **options: Any) -> Any:
    """Queue a write as an async caller does; returns its future."""
    request = run._prepared(
        run.schema(), "a", value, "w0", None, options.get("expected"), None, options.get("request_id"), None
    )
    return store._committer.submit_later(request)


def test_eight_threads_need_few_commits(store: Store, run: Run, appends: Appends) -> None:
    """While a commit is on its way, others gather in the next: 8 threads, half as many syncs as writes at most."""
    append = appends._append

    def slowly(rows: list[Row], *, durable: bool) -> None:
        time.sleep(0.002)  # a disk's sync
        append(rows, durable=durable)

    appends._append = slowly

    def act(who: str) -> list[int]:
        own = store.run(f"run of {who}")
        return [own.write_state("a", number, writer=who).version for number in range(25)]

    made = in_threads(act, 8)
    assert made == [list(range(1, 26))] * 8
    assert sum(durable for _rows, durable in appends.calls) <= 100


def test_a_conflict_fails_no_neighbour(store: Store, run: Run, appends: Appends) -> None:
    """Three writes of one commit, the second with an outdated expectation: it alone is refused."""
    appends.gate.clear()
    first = later(store, run, 1)
    wait_for(lambda: len(appends.calls) == 1)
    futures = [later(store, run, 2), later(store, run, 3, expected=1), later(store, run, 4)]
    appends.gate.set()
    assert first.result()[0][0].version == 2
    assert futures[0].result()[0][0].version == 3
    with pytest.raises(Conflict):
        futures[1].result()
    assert futures[2].result()[0][0].version == 4
    assert appends.calls[1] == (2, True), "one commit for all three"


def test_a_defect_fails_no_neighbour(store: Store, run: Run, appends: Appends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that cannot even be made into a row fails alone; the rest of its group is committed."""
    appends.gate.clear()
    first = later(store, run, 1)
    wait_for(lambda: len(appends.calls) == 1)
    bad = run._prepared(run.schema(), "a", 2, "w0", None, None, None, None, None)
    bad.items[0].turn = "no number"  # type: ignore[assignment]
    futures = [later(store, run, 2), store._committer.submit_later(bad), later(store, run, 4)]
    appends.gate.set()
    assert [future.result()[0][0].version for future in (first, futures[0], futures[2])] == [2, 3, 4]
    with pytest.raises(Exception, match="integer"):
        futures[1].result()


def test_reads_come_before_the_next_write(slow_flush: None, run: Run, appends: Appends) -> None:
    """A read waits for no commit of its own: the next write of its process takes it along, in front."""
    run.read_state("a", reader="r")
    run.read_many(["a", "b"], reader="r")
    assert appends.calls == []
    run.write_state("a", 1, writer="w0")
    assert appends.calls == [(3, True)]
    assert kinds(run) == ["read", "read", "written"]


def test_reads_are_flushed_by_time(run: Run, appends: Appends) -> None:
    """A read is appended soon, without a write and without a sync."""
    run.read_state("a", reader="r")
    wait_for(lambda: run.head_seq() == 4)
    assert appends.calls == [(1, False)]


def test_a_reader_is_seen_at_once(slow_flush: None, run: Run) -> None:
    """Asking who read flushes this process's reads first; so do events() and a moment."""
    run.read_state("a", reader="r1")
    assert [record.reader for record in run.readers("a")] == ["r1"]
    run.read_state("a", reader="r2")
    assert kinds(run) == ["read", "read"]
    run.read_state("a", reader="r3")
    assert run.at("end").seq == 6


def test_strict_reads_wait(open_new: Open, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With strict_reads a read is on the disk when it returns."""
    strict = open_new(SCHEMA, strict_reads=True)
    appends = Appends(strict, monkeypatch)
    strict.run("shared").read_state("a", reader="r")
    assert appends.calls == [(1, True)]
    assert run.head_seq() == 4


def test_pending_reads_are_bounded(
    slow_flush: None, run: Run, appends: Appends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When as many wait as may, the next reader has them appended first."""
    monkeypatch.setattr(committer, "PENDING_MAX", 10)
    for _read in range(25):
        run.read_state("a", reader="r")
    assert [rows for rows, _durable in appends.calls] == [10, 10]
    assert kinds(run) == ["read"] * 25


def test_pending_reads_are_bounded_while_the_disk_is_full(
    slow_flush: None, store: Store, run: Run, appends: Appends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they cannot be appended, further readers are told so, and what waited is stored once it can be."""
    monkeypatch.setattr(committer, "PENDING_MAX", 10)
    appends.fails = StoreUnavailable("disk full")
    told = 0
    for _read in range(25):
        try:
            run.read_state("a", reader="r")
        except StoreUnavailable:
            told += 1
    assert told == 15
    appends.fails = None
    assert kinds(run) == ["read"] * 10


def test_a_failed_flush_is_told_and_loses_nothing(run: Run, appends: Appends) -> None:
    """The call after a flush that failed raises its error; the one after that works, and the read is there, once."""
    appends.fails = StoreUnavailable("disk full")
    run.read_state("a", reader="r")
    wait_for(lambda: run._committer._failed is not None)
    appends.fails = None
    with pytest.raises(StoreUnavailable, match="disk full"):
        run.write_state("a", 1, writer="w0")
    assert run.write_state("a", 1, writer="w0").version == 2
    assert kinds(run) == ["read", "written"]


def test_a_failed_write_keeps_the_reads(slow_flush: None, run: Run, appends: Appends) -> None:
    """A write that could not be stored gives the reads it carried back to the next."""
    run.read_state("a", reader="r")
    appends.fails = StoreUnavailable("disk full")
    with pytest.raises(StoreUnavailable, match="disk full"):
        run.write_state("a", 1, writer="w0")
    appends.fails = None
    assert run.write_state("a", 2, writer="w0").version == 2
    assert kinds(run) == ["read", "written"]


def test_opening_an_open_run_keeps_the_reads(slow_flush: None, run: Run) -> None:
    """A call that is refused because of the run's state does not drop what it carried."""
    run.read_state("a", reader="r")
    with pytest.raises(Exception, match="already open"):
        run.open(opened_by="w0")
    assert kinds(run) == ["read"]


def test_close_stores_what_waits(slow_flush: None, store_url: str) -> None:
    """Closing appends reads and refusals, and commits what is queued; afterwards every call says it is closed."""
    store = open_store(store_url, SCHEMA)
    run = store.run("shared")
    run.write_state("a", 0, writer="w0")
    run.read_state("a", reader="r")
    with pytest.raises(Refused):
        run.write_state("a", 0, writer="nobody")
    queued = [later(store, run, number) for number in range(20)]
    store.close()
    assert [future.result()[0][0].version for future in queued] == list(range(2, 22))
    with pytest.raises(StoreClosed):
        run.write_state("a", 1, writer="w0")
    with pytest.raises(StoreClosed):
        run.read_state("a", reader="r")
    found = [event.kind for event in check_log(store_url)["default", 0, "shared"]]
    assert found[3:5] == ["state.read", "state.refused"]
    assert found.count("state.written") == 21


def test_close_stores_reads_of_runs_that_nobody_writes(slow_flush: None, store_url: str) -> None:
    """Reads that no write takes along are appended when the store closes."""
    with open_store(store_url, SCHEMA) as store:
        run = store.run("shared")
        run.write_state("a", 0, writer="w0")
        run.read_state("a", reader="r")
    assert check_log(store_url)["default", 0, "shared"][-1].kind == "state.read"


def test_a_conflict_is_checked_on_the_newest_version(open_new: Open) -> None:
    """Before a write is refused for its expected version, the run's newest end is read again."""
    one, other = (open_new(SCHEMA).run("shared") for _store in range(2))
    one.write_state("a", 1, writer="w0")
    other.write_state("a", 2, writer="w1")
    assert one.write_state("a", 3, writer="w0", expected_version=2).version == 3
    with pytest.raises(Conflict) as caught:
        other.write_state("a", 4, writer="w1", expected_version=2)
    assert (caught.value.actual, caught.value.actual_writer) == (3, "w0")


def test_who_read_a_key_that_was_never_written(run: Run) -> None:
    """A read of several keys is a read of each, also of one whose name the store has never met."""
    run.read_many(["a", "b"], reader="r")
    assert [(record.reader, record.version) for record in run.readers("b")] == [("r", 0)]


def test_no_conflict_is_made_up(open_new: Open, store_url: str) -> None:
    """A reader of another process's version may write on it: what this process knew before is no reason to refuse."""
    one, other = (open_new(SCHEMA).run("shared") for _store in range(2))
    one.write_state("a", 1, writer="w0")
    other.write_state("a", 2, writer="w1")
    got = one.read_state("a", reader="w0")
    assert one.write_state("a", 3, writer="w0", expected_version=got.version).version == 3
    assert [event.kind for event in one.events(kinds=["state.refused"])] == []


def test_a_request_of_another_process_is_recognised(open_new: Open) -> None:
    """A transaction repeated elsewhere, where the run's newest end is not known yet, gives the first result."""

    def book(run: Run) -> list[int]:
        with run.transaction(request_id="booking") as tx:
            tx.write_state("a", 1, writer="w0")
            tx.write_state("b", 1, writer="w0")
        return [one.seq for one in tx.written]

    one, other = (open_new(SCHEMA).run("shared") for _store in range(2))
    one.write_state("count", 1, writer="w0")
    other.write_state("count", 2, writer="w0")
    assert book(one) == book(other) == [5, 6]


def test_a_rollback_takes_no_name_for_granted(open_new: Open, monkeypatch: pytest.MonkeyPatch, store_url: str) -> None:
    """A key that a rolled-back transaction looked up first is not mixed up with the next new name."""
    store = open_new(MORE)
    run = store.run("shared")
    run.write_state("a", 1, writer="w0")
    appends = Appends(store, monkeypatch)
    appends.fails = StoreUnavailable("disk full")
    run._head.contended = 1  # under the run's lock, as after a race with another process
    with pytest.raises(StoreUnavailable):
        run.write_state("low", 1, writer="w0")
    appends.fails = None
    run.write_state("item/new", 1, writer="w0")
    run.write_state("high", 9, writer="w0")
    assert [event.key for event in check_log(store_url)["default", 0, "shared"][3:]] == ["item/new", "high"]


def units(store: Store, *writes: tuple[str, object]) -> None:
    """Several single writes as one request, as an import makes them."""
    assert store.schema is not None
    run = store.run("shared")
    items = []
    for name, value in writes:
        key = store.schema.key(name)
        items.append(Unit([Op(name, key, "w0", key.prepare(value))]))
    store._committer.submit(Request(run._head, store.schema, items, opener="w0"))


def test_many_keys_in_one_commit(open_new: Open, monkeypatch: pytest.MonkeyPatch, store_url: str) -> None:
    """A commit over more keys than are remembered gives no version twice."""
    monkeypatch.setattr(heads, "KEYS_MAX", 2)
    units(open_new(MORE), ("a", 1), ("item/1", 1), ("item/2", 1), ("item/3", 1), ("a", 2))
    check_log(store_url)


def test_large_values_in_one_commit(open_new: Open, monkeypatch: pytest.MonkeyPatch, store_url: str) -> None:
    """An update on a value of the same commit that is too large to be remembered builds on that value."""
    monkeypatch.setattr("refold_store.heads.VALUE_MAX", 100)
    monkeypatch.setattr("refold_store.keyframes.VALUE_MAX", 100)
    store = open_new(MORE)
    units(store, ("tree", {"big": "x" * 200}), ("tree", {"small": {"a": 1}}), ("tree", {"small": {"b": 2}}))
    assert store.run("shared").peek("tree").json == {"big": "x" * 200, "small": {"a": 1, "b": 2}}
    with pytest.raises(Refused):
        units(store, ("tree", {"big": "y" * 200}), ("tree", {"small": "text"}))


def test_a_keyframe_that_fails_fails_no_write(open_new: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keyframes are disposable: when one cannot be stored, the write that was stored is acknowledged all the same."""
    store = open_new(MORE)
    run = store.run("shared")

    def refuse(*_args: object) -> None:
        raise StoreUnavailable("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(store._backend, "put_frame", refuse)
        made = [run.write_state("entries", ["x" * 3000], writer="w0").version for _write in range(4)]
    made += [run.write_state("entries", ["x" * 3000], writer="w0").version for _write in range(4)]
    assert made == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(run.peek("entries").json) == 8


def test_more_runs_than_are_remembered(
    slow_flush: None, open_new: Open, monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    """A run that fell out of memory and came back still has its reads before its next write."""
    monkeypatch.setattr(heads, "RUNS_MAX", 2)
    store = open_new(SCHEMA)
    first = store.run("shared")
    first.write_state("a", 1, writer="w0")
    first.read_state("a", reader="r")
    for number in range(5):
        store.run(f"other {number}").write_state("a", 1, writer="w0")
    store.run("shared").write_state("a", 2, writer="w0")
    found = check_log(store_url)["default", 0, "shared"]
    assert [event.kind for event in found[3:]] == ["state.read", "state.written"]


@pytest.mark.parametrize("turn", [-1, 2**63, 1.5, "7", True])
def test_a_turn_that_cannot_be_stored(run: Run, turn: Any) -> None:
    """It is refused at once with a typed error, and stands in nobody's way afterwards."""
    for call in (
        lambda: run.write_state("a", 1, writer="w0", turn=turn),
        lambda: run.write_state("a", 1, writer="w0", turn=turn, expected_version=9),
        lambda: run.delete_state("a", writer="w0", turn=turn),
        lambda: run.append("note.added", turn=turn),
        lambda: run.transaction(turn=turn),
    ):
        with pytest.raises(Exception, match="whole number"):
            call()
    assert run.write_state("a", 1, writer="w0", turn=2**63 - 1).version == 2


@pytest.mark.parametrize("expected", [-1, 1.5, "1", True, object()])
def test_an_expected_version_that_is_none(run: Run, expected: Any) -> None:
    """A version that no key can have is a mistake, not a conflict."""
    with pytest.raises(Refused, match="whole number") as caught:
        run.write_state("a", 1, writer="w0", expected_version=expected)
    assert not isinstance(caught.value, Conflict)
    assert run.write_state("a", 1, writer="w0").version == 2


@pytest.mark.parametrize("name", ["item/\0", "item/\ud800", "item/" + "x" * 1024])
def test_a_read_of_a_key_that_cannot_be(open_new: Open, name: str) -> None:
    """A family matches it, but no name may be so: a typed error, and nothing waits that could never be stored."""
    run = open_new(MORE).run("shared")
    run.write_state("a", 1, writer="w0")
    for call in (
        lambda: run.read_state(name, reader="r"),
        lambda: run.read_many([name], reader="r"),
        lambda: run.peek(name),
        lambda: run.at("end").read_state(name, reader="r"),
        lambda: run.history(name),
        lambda: run.readers(name),
    ):
        with pytest.raises(Exception, match="the key name"):
            call()
    assert run.write_state("a", 2, writer="w0").version == 2


def test_a_write_carries_the_reads_of_other_runs(open_new: Open) -> None:
    """What a process read in one run is in the log before what it writes in another."""
    store = open_new(SCHEMA)
    first, second = store.run("first"), store.run("second")
    for run in (first, second):
        run.write_state("count", 1, writer="w0")
    first.read_state("count", reader="w1")
    second.write_state("count", 2, writer="w0")
    looker = open_new(url=store.url, read_only=True).run("first")
    assert [read.reader for read in looker.readers("count")] == ["w1"]

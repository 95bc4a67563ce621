"""The shared live state: observers, snapshots and deltas, retries, the lock of `set_state`, old attempts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from turn_cases import SCHEMA, Client, brief, refused, told

from refold import InvalidValue, NotOwner, Run, Store, UnknownKey
from refold_replay.verify import verify
from refold_store import watching
from refold_store.jsontext import encode
from refold_store.turn_errors import DeltaOutdated, PatchInvalid
from refold_store.turns import Turn
from refold_store.watching import Change

Open = Callable[..., Store]


class Stop(Exception):
    """Ends a turn."""


@pytest.fixture
def run(open_new: Open) -> Run:
    return open_new(SCHEMA).run("r")


@pytest.fixture
def client(run: Run) -> Client:
    """An observer of a run that holds count 0."""
    run.write_state("count", 0, writer="desk")
    client = Client()
    run.watch(client)
    return client


def at_once(_seconds: float) -> None:
    """No pause."""


# --- T1, T2, T5, T8: snapshots and deltas ----------------------------------------------------


def test_snapshot_delta_commit(run: Run, client: Client) -> None:
    """T1: observers see {0}, {1}, {2, ready}; the last is committed, and they are told so."""
    with run.turn("ann", live=True) as turn:
        assert turn.snapshot({"count": 1})
        assert turn.delta(
            [{"op": "replace", "path": "/count", "value": 2}, {"op": "add", "path": "/status", "value": "ready"}]
        )
    assert client.seen == [{"count": 0}, {"count": 1}, {"count": 2, "status": "ready"}]
    assert [change.draft for change in client.changes] == [False, True, True, False]
    assert client.changes[-1].operations == []
    assert client.changes[-1].seq == run.head_seq()
    assert run.state().json() == client.document
    assert [event.body["value"] for event in told(run, "state.written")] == [0, 1, 2, "ready"]


def test_failure_and_retries(run: Run, client: Client) -> None:
    """T2: observers see {0}, {9}, {0} and so on; three attempts start from the same state; all is on the record."""
    starts = []

    def work(turn: Turn) -> None:
        starts.append(turn.read_state("count").json)
        turn.snapshot({"count": 9})
        raise Stop(f"attempt {turn.attempt}")

    pauses: list[float] = []
    with pytest.raises(Stop, match="attempt 3"):
        run.run_turn("ann", work, retries=2, backoff_s=0.5, live=True, pause=pauses.append)
    assert client.seen == [{"count": 0}] + [{"count": 9}, {"count": 0}] * 3
    assert [change.kind for change in client.changes] == ["snapshot"] + ["delta", "snapshot"] * 3
    assert starts == [0, 0, 0]
    assert pauses == [0.5, 1.0]
    assert brief(run, "turn.started", "turn.rolled_back") == [("turn.started", 1), ("turn.rolled_back", 1)] * 3
    assert [event.refs["attempt"] for event in told(run, "turn.rolled_back")] == [1, 2, 3]
    assert refused(run) == [("count", "rolled_back", 9)] * 3
    assert run.state().json() == {"count": 0}
    assert verify(run.store).findings == []


def test_a_retry_that_works(run: Run, client: Client) -> None:
    """The attempt that works commits, and its result is the call's."""

    def work(turn: Turn) -> str:
        turn.write_state("count", turn.attempt)
        if turn.attempt < 3:
            raise Stop
        return "done"

    assert run.run_turn("ann", work, retries=5, pause=at_once) == "done"
    assert run.state().json() == {"count": 3}
    assert client.document == {"count": 3}


BAD: list[tuple[list[dict[str, Any]], type[Exception]]] = [
    ([{"op": "replace", "path": "/count", "value": 5}, {"op": "remove", "path": "/none"}], PatchInvalid),
    ([{"op": "replace", "path": "", "value": [1]}], InvalidValue),
    ([{"op": "replace", "path": "/count", "value": 5}, {"op": "add", "path": "/status", "value": 1}], InvalidValue),
    ([{"op": "replace", "path": "/count", "value": 5}, {"op": "add", "path": "/none", "value": 1}], UnknownKey),
    ([{"op": "replace", "path": "/count", "value": 5}, {"op": "remove", "path": "/hers"}], NotOwner),
    ([{"op": "replace", "path": "/count", "value": 5}, {"op": "replace", "path": "/log", "value": []}], InvalidValue),
]


@pytest.mark.parametrize(("operations", "error"), BAD)
def test_a_bad_delta(run: Run, client: Client, operations: list[dict[str, Any]], error: type[Exception]) -> None:
    """T5: state unchanged, error raised, attempt rolled back; caught within the turn, nothing of it is drafted."""
    run.write_state("hers", 1, writer="bob")
    run.write_state("log", ["a"], writer="bob")
    with pytest.raises(error), run.turn("ann") as turn:
        turn.delta(operations)
    assert brief(run, "turn.rolled_back") == [("turn.rolled_back", 1)]
    with run.turn("ann") as turn:
        with pytest.raises(error):
            turn.delta(operations)
        assert turn.read_state("count").json == 0
    assert run.state().json() == client.document == {"count": 0, "hers": 1, "log": ["a"]}
    assert 5 not in [document["count"] for document in client.seen]


def test_an_outdated_delta(run: Run, client: Client) -> None:
    """T5: a delta made for another base version is noticed, and answered with the document as it is."""
    with run.turn("ann") as turn:
        base = client.version
        assert turn.delta([{"op": "replace", "path": "/count", "value": 1}], base=base)
        with pytest.raises(DeltaOutdated) as failed:
            turn.delta([{"op": "replace", "path": "/count", "value": 2}], base=base)
        assert (failed.value.given, failed.value.base, failed.value.snapshot) == (base, client.version, {"count": 1})
        assert turn.delta([{"op": "replace", "path": "/count", "value": 2}], base=failed.value.base)
    assert client.document == {"count": 2}


def test_versions_do_not_come_back(run: Run) -> None:
    """What changed while nobody watched counts: a version that was seen before names no other document."""
    run.write_state("count", 1, writer="ann")
    with run.watch() as watch:
        first = watch.next(1)
    run.write_state("count", 2, writer="ann")
    with run.watch() as watch:
        second = watch.next(1)
    assert first is not None
    assert second is not None
    assert first.version < second.version


def test_an_old_attempt_is_ignored_and_counted(run: Run, client: Client) -> None:
    """T8: snapshots and deltas of an attempt that is over change nothing and are counted; its draft is gone at once."""
    old = run.turn("ann").begin()
    old.snapshot({"count": 7})
    new = run.turn("ann", number=old.number).begin()
    assert client.document == {"count": 0}
    assert not old.snapshot({"count": 8})
    assert not old.delta([{"op": "remove", "path": "/count"}])
    assert run.live().ignored == 2
    assert new.read_state("count").json == 0
    new.snapshot({"count": 3})
    new.commit()
    assert not new.snapshot({"count": 4})
    assert run.live().ignored == 3
    assert client.seen == [{"count": 0}, {"count": 7}, {"count": 0}, {"count": 3}]


def test_deltas_without_an_observer(run: Run) -> None:
    """Deltas build on the turn's own draft whether anybody watches or not."""
    with run.turn("ann") as turn:
        turn.snapshot({"log": ["a"]})
        turn.delta([{"op": "add", "path": "/log/-", "value": "b"}])
        with turn.child("bob") as child:
            child.delta([{"op": "add", "path": "/log/2", "value": "c"}])
            child.delta([{"op": "add", "path": "/count", "value": 1}])
        turn.delta([{"op": "add", "path": "/log/-", "value": "d"}])
    assert run.state().json() == {"log": ["a", "b", "c", "d"], "count": 1}


def test_a_snapshot_deletes_what_is_its_own(run: Run) -> None:
    """Keys that a whole document leaves out are deleted if the agent may write them; others stay."""
    run.write_state("count", 1, writer="ann")
    run.write_state("hers", 2, writer="bob")
    with run.turn("ann") as turn:
        turn.snapshot({"status": "x"})
    assert run.state().json() == {"status": "x", "hers": 2}


def test_a_delta_sees_no_other_turns_draft(run: Run, client: Client) -> None:
    """Observers see all drafts, but a turn's delta is applied to what that turn sees, and conflicts as a read would."""
    other = run.turn("bob").begin()
    other.write_state("status", "theirs")
    with run.turn("ann") as turn:
        with pytest.raises(PatchInvalid):
            turn.delta([{"op": "replace", "path": "/status", "value": "x"}])
        turn.delta([{"op": "test", "path": "/count", "value": 0}, {"op": "replace", "path": "/count", "value": 1}])
    assert client.document == {"count": 1, "status": "theirs"}
    other.roll_back()
    assert client.document == run.state().json() == {"count": 1}


# --- T6: the stream --------------------------------------------------------------------------


def edit(turn: Turn, chance: random.Random) -> None:
    """One random write, delete, snapshot or delta."""
    what = chance.randrange(6)
    if what == 0:
        turn.write_state("log", [chance.randrange(9)])
    elif what == 1:
        turn.write_state("spent", chance.randrange(-9, 9))
    elif what == 2:
        turn.write_state("tree", {name: chance.choice([1, 1.0, True, None, -0.0, "~/"]) for name in "ab~/"})
    elif what == 3:
        turn.delete_state(chance.choice(["tree", "count", "log"]))
    elif what == 4:
        turn.delta([{"op": "add", "path": "/tree", "value": [chance.randrange(5) for _ in range(chance.randrange(5))]}])
    else:
        turn.write_state("count", chance.randrange(99))


@pytest.mark.parametrize("edits", [600, pytest.param(10_000, marks=pytest.mark.soak)])
def test_the_stream_rebuilds_the_state(open_new: Open, edits: int) -> None:
    """T6: the stream, applied by a client that knows nothing else, equals the state after each of many random edits."""
    keys: dict[str, Any] = {
        "count": {"owner": "ann", "type": "integer"},
        "tree": {"owner": "ann"},
        "log": {"owner": "ann", "type": "array", "reducer": "append"},
        "spent": {"owner": "ann", "type": "integer", "reducer": "add"},
    }
    run = open_new({"keys": keys}).run("r")
    chance, client, done = random.Random(7), Client(), 0
    run.watch(client)
    while done < edits:
        turn = run.turn("ann").begin()
        for _ in range(chance.randrange(1, 40)):
            edit(turn, chance)
            done += 1
            seen = {key: text for key, (_v, _n, text) in turn.look_around()[1].items()}
            assert {key: encode(value) for key, value in client.document.items()} == seen
        turn.roll_back() if chance.random() < 0.3 else turn.commit()
        committed = run.state()
        assert {key: encode(value) for key, value in client.document.items()} == {
            key: read.text for key, read in committed.items()
        }
    assert verify(run.store).findings == []


def test_a_slow_observer_gets_a_snapshot(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer that is too far behind gets one snapshot in the place of what it missed, and goes on from there."""
    monkeypatch.setattr(watching, "BEHIND_MAX", 5)
    client, watch = Client(), run.watch()
    with run.turn("ann") as turn:
        for number in range(23):
            turn.write_state("count", number)
    told_of = []
    while (change := watch.next(0)) is not None:
        told_of.append(change)
        client.version = change.base if change.kind == "snapshot" else client.version
        client(change)
    assert told_of[0].kind == "snapshot"
    assert len(told_of) <= 5
    assert client.document == {"count": 22}


def test_observers_on_their_own(run: Run, client: Client) -> None:
    """Two observers see the same; one that closes, or whose callback raises, hurts neither the other nor the turn."""

    def broken(_change: Change) -> None:
        raise Stop("observer")

    watch, bad = run.watch(), run.watch(broken)
    assert isinstance(bad.error, Stop)
    with run.turn("ann") as turn:
        turn.write_state("count", 1)
        watch.close()
        turn.write_state("count", 2)
    assert [change.kind for change in watch] == ["snapshot", "delta"]
    assert watch.next(0) is None
    assert client.document == {"count": 2}
    waiting = run.watch()
    waiting.next(0)
    thread = threading.Thread(target=lambda: list(waiting))
    thread.start()
    waiting.close()
    thread.join(5)
    assert not thread.is_alive()


def test_commits_of_others_arrive(open_new: Open) -> None:
    """What another process commits, erases or deletes is told to who waits, whole transactions at a time."""
    from refold import erase

    run, other = open_new(SCHEMA).run("r"), open_new(SCHEMA).run("r")
    client, watch = Client(), run.watch()
    client(watch.next(1))  # type: ignore[arg-type]
    with other.turn("bob") as turn:
        turn.write_state("count", 1)
        turn.write_state("status", "x")
    client(watch.next(5))  # type: ignore[arg-type]
    assert client.seen == [{}, {"count": 1, "status": "x"}]
    assert client.changes[-1].seq >= turn.written[-1].seq
    assert not client.changes[-1].draft
    erase(other.store, "r", key="status", by="desk", reason="asked")
    other.delete_state("count", writer="ann")
    while client.document != {}:
        client(watch.next(5))  # type: ignore[arg-type]


def test_many_turns_at_once(run: Run) -> None:
    """Threads draft, commit and roll back side by side: an observer's document is the state when all have ended."""
    client = Client()
    run.watch(client)

    def work(number: int) -> None:
        for step in range(8):
            turn = run.turn("ann").begin()
            turn.write_state("log", [[number, step]])
            turn.write_state("spent", 1)
            turn.roll_back() if step % 3 == 0 else turn.commit()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.document == run.state().json()
    assert run.peek("spent").json == 20

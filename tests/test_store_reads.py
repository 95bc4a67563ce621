"""Contract of reading: recorded reads, moments, history, readers, names, tenants. Each test runs on both backends."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from claims import ONTARIO, QUEBEC, ClaimState

from refold import (
    ABSENT,
    ConfigError,
    NameInvalid,
    NoSuchMoment,
    NoSuchRun,
    NoSuchVersion,
    ReadOnlyStore,
    Run,
    Store,
    StoreClosed,
)
from refold_store.reads import as_time

Open = Callable[..., Store]

NAMES = [
    "a b",
    "it's",
    '"quoted"',
    "50%",
    "a_b",
    "a;b",
    "x') OR 1=1 --",
    "a/b/c",
    "line\nbreak",
    "A",
    "a",
    "é",
    "e\u0301",
    "🦊",
    "",
    "x" * 1024,
    "\u202eright",
    "42",
    "routing@2",
]


@pytest.fixture
def run(open_new: Open) -> Run:
    """A run whose routing has two versions."""
    run = open_new(ClaimState).run("clm-77401", tenant="acme")
    run.write_state("routing", QUEBEC, writer="triage_agent", basis="fnol")
    run.write_state("routing", ONTARIO, writer="triage_agent")
    return run


def reads(run: Run) -> list[tuple[str | None, str | None, int | None, int | None]]:
    """(reader, key, version, seen_seq) of each read on the record."""
    return [(e.actor, e.key, e.version, e.seen_seq) for e in run.events(kinds=["state.read"])]


def test_a_read_is_an_event(run: Run) -> None:
    """A read records reader, key, version and the newest seq it saw."""
    got = run.read_state("routing", reader="liability_agent")
    assert got.json == ONTARIO
    assert (got.version, got.written_by, got.owner, got.seq) == (2, "triage_agent", "triage_agent", 4)
    assert got.recorded
    assert reads(run) == [("liability_agent", "routing", 2, 4)]


def test_absent_differs_from_none(run: Run) -> None:
    """Reading an absent key is recorded as version 0; a stored None is a value."""
    got = run.read_state("note", reader="x")
    assert got.absent
    assert got.value is ABSENT
    assert got.version == 0
    run.write_state("note", None, writer="triage_agent")
    got = run.read_state("note", reader="x")
    assert not got.absent
    assert got.value is None
    assert reads(run) == [("x", "note", 0, 4), ("x", "note", 1, 6)]


def test_one_call_that_reads_many_is_one_event(run: Run) -> None:
    """Many keys read in one call come from one snapshot and make one event that lists each version."""
    run.write_state("status", "open", writer="triage_agent")
    got = run.read_many(["routing", "status", "note"], reader="x")
    assert {key: read.version for key, read in got.items()} == {"routing": 2, "status": 1, "note": 0}
    (event,) = run.events(kinds=["state.read"])
    assert event.refs["keys"] == [["routing", 2], ["status", 1], ["note", 0]]
    assert event.seen_seq == 5
    assert [(r.reader, r.version) for r in run.readers("status")] == [("x", 1)]


def test_a_read_opens_no_run(open_new: Open) -> None:
    """Reading and looking leave no trace of a run that nobody wrote to."""
    store = open_new(ClaimState)
    run = store.run("nobody")
    assert not run.read_state("routing", reader="x").recorded
    assert run.peek("routing").absent
    assert len(run.state()) == 0
    assert store.runs() == []
    with pytest.raises(NoSuchRun):
        run.info()


def test_peek_is_not_recorded(run: Run) -> None:
    """Code that only looks leaves no read event."""
    assert run.peek("routing").version == 2
    assert reads(run) == []


def test_who_read_which_version(run: Run) -> None:
    """Readers are listed in log order; a read of an older version at a later seq is stale."""
    run.read_state("routing", reader="a")
    run.at("routing@1").read_state("routing", reader="b")
    run.write_state("routing", QUEBEC, writer="triage_agent")
    run.read_state("routing", reader="c")
    assert [(r.reader, r.version, r.newest, r.stale) for r in run.readers("routing")] == [
        ("a", 2, 2, False),
        ("b", 1, 1, False),
        ("c", 3, 3, False),
    ]
    assert [r.reader for r in run.readers("routing", version=2)] == ["a"]
    assert run.readers("status") == []


def test_moments_resolve_to_a_seq(run: Run) -> None:
    """A seq, a version, a time, an age and `end` all name a moment; its answers are those of then."""
    run.write_state("status", "open", writer="triage_agent")
    assert run.at(3).read_state("routing").json == QUEBEC
    assert run.at("3").seq == 3
    assert run.at("routing@2").seq == 4
    assert run.at("key:routing@1").seq == 3
    assert run.at("end").seq == 5
    assert run.at("-0s").seq == 5
    assert run.at("-1h").seq == 0
    assert run.at(3).state().json() == {"routing": QUEBEC}
    assert run.at(0).state().json() == {}
    assert run.at(datetime.now(UTC) + timedelta(days=1)).seq == 5
    assert run.at(run.history("routing")[0].recorded_at.isoformat()).seq == 3


def test_bad_moments_say_what_would_do(run: Run) -> None:
    """A time without a zone, an unknown version, a seq beyond the end and nonsense are typed errors."""
    with pytest.raises(NoSuchMoment, match="zone"):
        run.at("2026-11-30T02:00:00")
    with pytest.raises(NoSuchVersion):
        run.at("routing@9")
    for bad in (99, "99", -1, "nonsense", "status@1", "turn:x", "turn:7", True, 1.5):
        with pytest.raises(NoSuchMoment):
            run.at(bad)  # type: ignore[arg-type]


def test_a_time_never_splits_a_transaction(open_new: Open) -> None:
    """A moment given as a time lies before or after a transaction, never inside."""
    now = [1_000_000]

    def clock() -> int:
        return now[0]

    run = open_new(ClaimState, clock=clock).run("r")
    run.write_state("status", "open", writer="triage_agent")
    now[0] += 10
    with run.transaction() as tx:
        tx.write_state("spent", 1, writer="billing")
        tx.write_state("order/1", {}, writer="sales_agent")
    events = list(run.events())
    first, last = events[-2], events[-1]
    assert run.at(datetime.fromtimestamp(first.recorded_at / 1e6, UTC)).seq == first.seq - 1
    assert run.at(datetime.fromtimestamp(last.recorded_at / 1e6, UTC)).seq == last.seq


def test_time_never_goes_back(open_new: Open) -> None:
    """The clock steps back an hour and forward a day: order follows seq, recorded_at only grows, clock is kept."""
    steps = iter([10**15, 10**15 - 3_600 * 10**6, 10**15 + 86_400 * 10**6, 10**15 + 5, 10**15 + 6])
    run = open_new(ClaimState, clock=lambda: next(steps)).run("r")
    for n in range(4):
        run.write_state("counter", n, writer="counter")
    events = list(run.events())
    times = [e.recorded_at for e in events]
    assert times == sorted(set(times))
    assert [e.body["value"] for e in events if e.kind == "state.written"] == [0, 1, 2, 3]
    assert any(e.clock is not None and e.clock < e.recorded_at for e in events)


def test_state_decodes_when_touched(run: Run) -> None:
    """A state is a mapping of reads at one seq and leaves out what was deleted."""
    run.write_state("note", 1, writer="triage_agent")
    run.delete_state("note", writer="triage_agent")
    state = run.state()
    assert dict(state.items()).keys() == {"routing"}
    assert state["routing"].json == ONTARIO
    assert state.seq == 6
    with pytest.raises(KeyError):
        state["note"]


def test_names_hold_any_text(open_new: Open) -> None:
    """Runs, keys, agents and tenants named with hostile text stay apart and come back equal."""
    schema = {"keys": {"k/{id*}": {"owner": "w", "type": {}}}}
    store = open_new(schema)
    for name in NAMES:
        run = store.run(name, tenant=name)
        if name and len(name) < 1000:
            run.write_state(f"k/{name}", name, writer="w")
            run.read_state(f"k/{name}", reader=name)
        else:
            run.write_state("k/x", name, writer="w")
    for name in NAMES:
        assert [info.name for info in store.runs(tenant=name)] == [name]
        key = f"k/{name}" if name and len(name) < 1000 else "k/x"
        assert store.run(name, tenant=name).peek(key).value == name
        assert store.run(name, tenant=name).keys() == [key]
    assert {info.tenant for info in store.runs()} == set(NAMES)


def test_tenants_and_runs_never_run_together(open_new: Open) -> None:
    """Tenant `a` with run `b:c` and tenant `a:b` with run `c` never meet; listing matches exactly."""
    store = open_new(ClaimState)
    store.run("b:c", "a").write_state("counter", 1, writer="counter")
    store.run("c", "a:b").write_state("counter", 2, writer="counter")
    assert store.run("b:c", "a").peek("counter").value == 1
    assert store.run("c", "a:b").peek("counter").value == 2
    for tenant in ("acme", "acme-corp", "acme_corp", "a%", "A"):
        store.run("r", tenant).write_state("counter", 1, writer="counter")
    for tenant in ("acme", "acme-corp", "acme_corp", "a%", "A"):
        assert [i.tenant for i in store.runs(tenant=tenant)] == [tenant]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 1025, None, 7])
def test_names_that_cannot_be_stored_are_typed_errors(open_new: Open, name: object) -> None:
    """NUL, lone surrogates, too many bytes and non-text are refused by name."""
    store = open_new(ClaimState)
    with pytest.raises(NameInvalid):
        store.run(name)  # type: ignore[arg-type]
    with pytest.raises(NameInvalid):
        store.run("r", name)  # type: ignore[arg-type]
    run = store.run("r")
    with pytest.raises(NameInvalid):
        run.write_state("status", "open", writer=name)  # type: ignore[arg-type]
    run.write_state("status", "open", writer="triage_agent")
    with pytest.raises(NameInvalid):
        run.read_state("status", reader=name)  # type: ignore[arg-type]


def test_events_are_streamed_and_filtered(run: Run) -> None:
    """The log can be asked for kinds, a range and a number."""
    assert [e.seq for e in run.events()] == [1, 2, 3, 4]
    assert [e.seq for e in run.events(after=2, until=3)] == [3]
    assert [e.kind for e in run.events(kinds=["state.written"], limit=1)] == ["state.written"]
    first = next(run.events(after=2))
    assert (first.kind, first.actor, first.key, first.version) == ("state.written", "triage_agent", "routing", 1)
    assert first.body == {"basis": "fnol", "value": QUEBEC}


def test_other_events_are_recorded(run: Run) -> None:
    """A message or handoff is an event of its own; a state event cannot be forged."""
    run.append("handoff.made", actor="triage_agent", body={"to": "liability_agent"}, turn=3)
    event = list(run.events())[-1]
    assert (event.kind, event.actor, event.turn, event.body) == (
        "handoff.made",
        "triage_agent",
        3,
        {"to": "liability_agent"},
    )
    assert run.at("turn:3").seq == event.seq
    with pytest.raises(Exception, match=r"state\.written"):
        run.append("state.written", actor="x")


def test_a_follower_misses_nothing(run: Run, open_new: Open) -> None:
    """A tail sees each event once, in order, also those of another store."""
    tail = run.follow(after=0, poll_s=0.01)
    assert [next(tail).seq for _ in range(4)] == [1, 2, 3, 4]
    other = open_new(ClaimState).run("clm-77401", tenant="acme")
    for n in range(3):
        other.write_state("counter", n, writer="counter")
    assert [next(tail).seq for _ in range(3)] == [5, 6, 7]


def test_runs_are_listed_and_searched(open_new: Open) -> None:
    """Runs come in the order they were opened; a condition over their state picks some."""
    store = open_new(ClaimState)
    for n, status in enumerate(["open", "closed", "open"]):
        store.run(f"r{n}").write_state("status", status, writer="triage_agent")
    assert [i.name for i in store.runs()] == ["r0", "r1", "r2"]
    assert [i.name for i in store.runs(where='status == "open"')] == ["r0", "r2"]
    assert [i.name for i in store.runs(limit=2)] == ["r0", "r1"]
    assert store.run("r1").info().head_seq == 3
    with pytest.raises(NoSuchRun, match="r1"):
        store.run("rr1").info()


def test_a_read_only_store_only_reads(run: Run, open_new: Open) -> None:
    """It serves every lookup, records nothing, and refuses to write."""
    run.store.flush()
    looker = open_new(read_only=True).run("clm-77401", tenant="acme")
    got = looker.read_state("routing", reader="oncall")
    assert got.json == ONTARIO
    assert not got.recorded
    assert looker.at("routing@1").state().json() == {"routing": QUEBEC}
    with pytest.raises(ReadOnlyStore):
        looker.write_state("routing", QUEBEC, writer="triage_agent")
    assert reads(run) == []


def test_a_store_without_schema_uses_the_logs(run: Run, open_new: Open) -> None:
    """Opened without a schema, each run is served and written under what its log declares."""
    plain = open_new().run("clm-77401", tenant="acme")
    assert plain.read_state("routing", reader="x").value == ONTARIO
    plain.write_state("routing", QUEBEC, writer="triage_agent")
    assert run.peek("routing").json == QUEBEC


def test_reads_are_durable_with_the_next_write(run: Run, open_new: Open) -> None:
    """A read is in the log before the next write of its process; closing stores what still waits."""
    run.read_state("routing", reader="a")
    run.write_state("status", "open", writer="triage_agent")
    kinds = [e.kind for e in open_new(ClaimState).run("clm-77401", tenant="acme").events(after=4)]
    assert kinds == ["state.read", "state.written"]
    run.read_state("routing", reader="b")
    run.store.close()
    again = open_new(ClaimState).run("clm-77401", tenant="acme")
    assert [r.reader for r in again.readers("routing")] == ["a", "b"]
    with pytest.raises(StoreClosed):
        run.write_state("status", "open", writer="triage_agent")


def test_reads_reach_the_log_by_themselves(run: Run, open_new: Open) -> None:
    """Without any further call a read is in the log soon."""
    run.read_state("routing", reader="a")
    other = open_new(read_only=True).run("clm-77401", tenant="acme")
    for _ in range(200):
        if other.readers("routing"):
            break
        time.sleep(0.05)
    assert [r.reader for r in other.readers("routing")] == ["a"]


def test_strict_reads_are_stored_when_they_return(open_new: Open) -> None:
    """With strict_reads another process sees the read at once."""
    run = open_new(ClaimState, strict_reads=True).run("r")
    run.write_state("status", "open", writer="triage_agent")
    other = open_new(read_only=True).run("r")
    run.read_state("status", reader="a")
    assert [r.reader for r in other.readers("status")] == ["a"]


@pytest.mark.parametrize(
    "moment", ["99999999999999999999", "9" * 5000, "turn:" + "9" * 5000, "turn:99999999999999999999"]
)
def test_numbers_that_no_column_holds_are_no_moments(run: Run, moment: str) -> None:
    """A seq or a turn of any number of digits is looked for, and not found."""
    with pytest.raises(NoSuchMoment):
        run.at(moment)
    with pytest.raises(NoSuchMoment):
        run.at(10**5000)


@pytest.mark.parametrize("version", ["99999999999999999999", "9" * 5000])
def test_versions_that_no_column_holds_are_not_there(run: Run, version: str) -> None:
    """A version of any number of digits is looked for, and not found; leading zeros say nothing."""
    with pytest.raises(NoSuchVersion):
        run.at(f"routing@{version}")
    assert run.at("routing@" + "0" * 200 + "1").seq == run.at("routing@1").seq


@pytest.mark.parametrize("unit", ["ms", "d"])
def test_a_time_ago_of_any_length(run: Run, unit: str) -> None:
    """However far back: nothing was there."""
    assert run.at("-" + "9" * 5000 + unit).seq == 0
    assert run.at("-" + "9" * 400 + unit).seq == 0


@pytest.mark.parametrize("moment", ["\u0663", "routing@\u0661", "turn:\u0661", "-\u0661d", "\u00b2"])
def test_only_ascii_digits_are_digits(run: Run, moment: str) -> None:
    """Digits of other scripts name no moment."""
    with pytest.raises(NoSuchMoment):
        run.at(moment)


@pytest.mark.parametrize("text", ["2026-11-30", "2026-W49-1", "2026-11-30T02:00:00", "2026-11-30 02:00"])
def test_the_time_proposed_is_a_moment(run: Run, text: str) -> None:
    """What the error says to write instead can be written."""
    with pytest.raises(NoSuchMoment, match="no time zone") as caught:
        run.at(text)
    proposed = re.search("write it as (.+) for UTC, or (.+)$", str(caught.value))
    assert proposed is not None
    assert [run.at(moment).seq >= 0 for moment in proposed.groups()] == [True, True]


@pytest.mark.parametrize("now", [-1, 253_370_764_800_000_000, 2**70, 1.5, None])
def test_a_clock_that_gives_no_time_stores_nothing(open_new: Open, now: object) -> None:
    """A clock before 1970, after 9998 or of another type is named, and nothing is stored."""
    times: list[object] = [now] * 10
    store = open_new(ClaimState, clock=lambda: times.pop() if times else 1_000_000)
    with pytest.raises(ConfigError, match="the store's clock gives"):
        store.run("r").write_state("status", "open", writer="triage_agent")
    times.clear()
    assert store.runs() == []
    store.run("r").write_state("status", "open", writer="triage_agent")
    assert [event.kind for event in store.run("r").events()][-1] == "state.written"


def test_times_beyond_the_last_are_shown_as_the_last() -> None:
    """A log that holds a later time than a datetime can say stays readable."""
    assert as_time(253_402_300_799_999_999) == datetime.max.replace(tzinfo=UTC)
    assert as_time(253_402_300_800_000_000) == datetime.max.replace(tzinfo=UTC)
    assert as_time(-(2**62)) == datetime.min.replace(tzinfo=UTC)

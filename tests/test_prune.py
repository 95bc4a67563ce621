"""Pruning: old reads roll up, who read what stays answerable, and the log explains its gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState
from kept import Clock, walk

from refold import ConfigError, NoSuchMoment, NoSuchRun, ReadOnlyStore, Run, Store, StoreUnavailable
from refold_store import pruning
from refold_store.forking import fork, make_self_contained
from refold_store.migrate import postgres_roles
from refold_store.pruning import prune

OpenNew = Callable[..., Store]
DAY = 86_400_000_000
Told = Counter[tuple[str, int, str, int, bool]]


@pytest.fixture
def run(open_new: OpenNew, clock: Clock) -> Run:
    """A run with reads of all forms: current, stale, of many keys, of nothing, of a shared key."""
    run = open_new(ClaimState, strict_reads=True, clock=clock).run("clm-1")
    run.write_state("routing", QUEBEC, writer="triage_agent")  # 3
    for reader in ("liability_agent", "settlement_agent", "liability_agent"):
        run.read_state("routing", reader=reader)  # 4, 5, 6
    run.write_state("routing", ONTARIO, writer="triage_agent")  # 7
    run.at(5).read_state("routing", reader="liability_agent")  # 8: version 1, current at 5
    run.read_many(["routing", "note"], reader="liability_agent")  # 9
    run.read_state("note", reader="settlement_agent")  # 10: absent
    run.write_state("house_rule", "x", writer="triage_agent")
    run.read_state("house_rule", reader="liability_agent")  # 11: of another run
    run.write_state("note", 1, writer="triage_agent")  # 12
    clock.now += 10 * DAY
    run.read_state("routing", reader="late_agent")  # 13
    return run


def told(run: Run) -> Told:
    """Who read which version of what, how often, current or stale."""
    found: Told = Counter()
    for key in ("routing", "note", "house_rule"):
        for one in run.readers(key):
            found[key, one.version, one.reader, one.newest, one.stale] += one.count
    return found


def seqs(run: Run) -> list[int]:
    return [event.seq for event in run.events()]


def test_who_read_what_stays_answerable(run: Run, open_new: OpenNew) -> None:
    """Readers, versions, counts, stale or not are the same before and after; the log's gaps are explained."""
    before, state, versions = told(run), run.state().json(), [r.json for r in run.history("routing")]
    report = prune(run, before=12, by="ops")
    assert (report.reads, report.runs[0].until, report.runs[0].events) == (7, 12, 1)
    for one in (run, open_new(ClaimState).run("clm-1")):
        assert seqs(one) == [1, 2, 3, 7, 12, 13, 14]
        assert told(one) == before
        assert one.state().json() == one.fold() == state
        assert [r.json for r in one.history("routing")] == versions
        assert walk(one) == []
        assert one.at(10).state().json() == {"routing": ONTARIO}
    assert [one.reader for one in run.readers("routing", version=1)] == ["liability_agent", "settlement_agent"]
    assert run.write_state("note", 2, writer="triage_agent").seq == 15


def test_the_event_says_what_is_gone(run: Run) -> None:
    """`reads.pruned` holds the ranges with the digest at each end, and the roll-up line by line."""
    digests = {event.seq: event.digest.hex() for event in run.events()}
    times = {event.seq: event.recorded_at for event in run.events()}
    prune(run, before="note@1", by="ops")
    event = list(run.events())[-1]
    assert (event.kind, event.actor, event.refs) == ("reads.pruned", "ops", {"until": 11})
    assert event.body["ranges"] == [[4, 6, digests[3], digests[6]], [8, 11, digests[7], digests[11]]]
    assert event.body["reads"] == [
        ["routing", 1, "liability_agent", 4, 8, 3, 1, times[4]],
        ["routing", 1, "settlement_agent", 5, 5, 1, 1, times[5]],
        ["routing", 2, "liability_agent", 9, 9, 1, 2, times[9]],
        ["note", 0, "liability_agent", 9, 9, 1, 0, times[9]],
        ["note", 0, "settlement_agent", 10, 10, 1, 0, times[10]],
        ["house_rule", 1, "liability_agent", 11, 11, 1, 1, times[11]],
    ]
    record = run.readers("routing")[0]
    assert (record.seq, record.last_seq, record.count, record.newest) == (4, 8, 3, 1)


def test_pruning_again_changes_nothing(run: Run) -> None:
    """A second prune finds no read and records nothing; a later one rolls up what came since, and lines merge."""
    dry = prune(run, before=12, by="ops", dry_run=True)
    assert (dry.reads, run.head_seq()) == (7, 13)
    prune(run, before=12, by="ops")
    assert prune(run, before=12, by="ops").reads == 0
    assert run.head_seq() == 14
    run.at(5).read_state("routing", reader="liability_agent")
    before = told(run)
    assert prune(run, before="end", by="ops").reads == 2
    assert told(run) == before
    assert [(one.reader, one.count, one.seq, one.last_seq) for one in run.readers("routing", version=1)] == [
        ("liability_agent", 4, 4, 15),
        ("settlement_agent", 1, 5, 5),
    ]
    assert walk(run) == []


def test_by_age(run: Run, clock: Clock) -> None:
    """`older_than` takes days, hours, a timedelta; a store prunes every run, or those of a tenant."""
    other = run.store.run("clm-2", "acme")
    other.write_state("note", 1, writer="triage_agent")
    other.read_state("note", reader="x")
    assert prune(run, older_than="11d", by="ops", dry_run=True).reads == 0
    assert prune(run, older_than="9d", by="ops", dry_run=True).reads == 7
    assert prune(run, older_than=timedelta(days=9), by="ops", dry_run=True).reads == 7
    assert prune(run, older_than=timedelta.max, by="ops", dry_run=True).reads == 0
    assert prune(run, older_than=timedelta(-9), by="ops", dry_run=True).reads == 8
    for wrong in (90, True, "soon"):
        with pytest.raises(ConfigError, match="is not an age"):
            prune(run, older_than=wrong, by="ops")  # type: ignore[arg-type]
    clock.now += DAY
    report = prune(run.store, older_than="12h", by="ops")
    assert {(one.tenant, one.run): one.reads for one in report.runs} == {("default", "clm-1"): 8, ("acme", "clm-2"): 1}
    assert prune(run.store, older_than="12h", by="ops", tenant="acme").runs == []


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_batches_are_whole_in_themselves(run: Run, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    """A long run is pruned in several transactions, with the same answers."""
    monkeypatch.setattr(pruning, "BATCH", batch)
    before = told(run)
    report = prune(run, before="end", by="ops")
    assert (report.reads, report.runs[0].events) == (8, -(-8 // batch))
    assert told(run) == before
    assert walk(run) == []


def test_forks_tell_their_own_reads(run: Run, open_new: OpenNew) -> None:
    """A fork keeps its answers when its ancestor is pruned, before or after it was made; its own reads stay."""
    child = fork(run, "child", at=9, by="ada")
    child.read_state("routing", reader="own")
    grandchild = fork(child, "grandchild", at=10, by="ada")
    before = [told(one) for one in (run, child, grandchild)]
    report = prune(run, before="end", by="ops")
    assert report.runs[0].events == 3
    assert [told(one) for one in (run, child, grandchild)] == before
    assert [walk(one) for one in (run, child, grandchild)] == [[], [], []]
    assert 9 in seqs(run)  # the child goes on from it
    late = fork(run, "late", at=12, by="ada")
    assert [event.kind for event in late.events(after=12)] == ["run.forked", "reads.pruned"]
    assert walk(late) == []
    assert set(told(late)) == {one for one in before[0] if one[2] != "late_agent"}
    assert prune(child, before="end", by="ops").reads == 1
    make_self_contained(run.store, "grandchild")
    assert walk(open_new(ClaimState).run("grandchild")) == []
    assert told(open_new(ClaimState).run("grandchild")) == before[2]


def test_a_fork_from_the_middle_of_a_line_knows_its_first_read(run: Run) -> None:
    """How many reads of a line lie before a moment is lost: a fork from there shows the first, which surely does."""
    prune(run, before="end", by="ops")
    late = fork(run, "late", at=7, by="ada")
    assert [(one.reader, one.seq, one.count) for one in late.readers("routing")] == [
        ("liability_agent", 4, 1),
        ("settlement_agent", 5, 1),
    ]
    assert walk(late) == []


def test_mistakes_are_told(run: Run, open_new: OpenNew) -> None:
    """Neither or both bounds, an age or moment that is none, a run that is not there, a read-only store."""
    for wrong in ({}, {"before": 3, "older_than": "3d"}, {"older_than": "-3d"}, {"older_than": ""}):
        with pytest.raises(ConfigError):
            prune(run, by="ops", **wrong)  # type: ignore[arg-type]
    with pytest.raises(NoSuchMoment):
        prune(run, by="ops", before=99)
    for age in ("3 weeks", "-5d", "", "1x"):
        with pytest.raises(ConfigError, match="is not an age; write 90d, 12h, 30m or 45s"):
            prune(run, by="ops", older_than=age)
    with pytest.raises(NoSuchRun):
        prune(run.store.run("nope"), before="end", by="ops")
    with pytest.raises(ReadOnlyStore):
        prune(open_new(read_only=True), before="end", by="ops")
    assert run.head_seq() == 13


def test_a_writer_may_not_prune(pg_url: str, open_new: OpenNew) -> None:
    """PostgreSQL lets only the keeper's role remove reads; a refused prune leaves nothing."""
    from psycopg import connect

    with connect(pg_url, autocommit=True) as connection:
        for role in ("prune_writer", "prune_keeper"):
            connection.execute(f"CREATE ROLE {role} LOGIN")  # type: ignore[arg-type]
    try:
        postgres_roles(pg_url, writer="prune_writer", keeper="prune_keeper")
        stores: dict[str, Any] = {
            role: open_new(ClaimState, url=pg_url.replace("//postgres@", f"//{role}@"), strict_reads=True)
            for role in ("prune_writer", "prune_keeper")
        }
        run = stores["prune_writer"].run("r")
        run.write_state("note", 1, writer="triage_agent")
        run.read_state("note", reader="x")
        with pytest.raises(StoreUnavailable, match="'prune_writer' may not erase, prune or archive"):
            prune(run, before="end", by="ops")
        assert run.head_seq() == 4
        assert prune(stores["prune_keeper"].run("r"), before="end", by="ops").reads == 1
    finally:
        with connect(pg_url, autocommit=True) as connection:
            for role in ("prune_writer", "prune_keeper"):
                connection.execute(f"DROP OWNED BY {role}")  # type: ignore[arg-type]
                connection.execute(f"DROP ROLE {role}")  # type: ignore[arg-type]


@pytest.mark.parametrize("reads", [False, True])
def test_an_older_head_does_not_fill_a_gap(open_new: OpenNew, reads: bool) -> None:
    """A process that remembers the run as it was before pruned reads goes on behind them: its write, its read."""
    first = open_new(ClaimState).run("r")
    second = open_new(ClaimState, strict_reads=True).run("r")
    first.write_state("spent", 1, writer="billing")
    second.read_state("spent", reader="x")
    second.write_state("spent", 10, writer="billing")
    prune(second, before="end", by="ops")
    if reads:
        first.read_state("spent", reader="late")
        first.store.flush()
        assert [one.reader for one in second.readers("spent")] == ["x", "late"]
    assert first.write_state("spent", 100, writer="billing").version == 3
    assert first.state().json() == {"spent": 111}
    assert walk(second) == []

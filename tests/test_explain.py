"""Explain: stale, superseded before use and current are told apart, and what was written on the strength of a read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from claims import ONTARIO, QUEBEC, ClaimState
from reading import record_read

from refold import NoSuchRun, Run, Store, UnknownKey
from refold_replay.explain import Explanation, Use, explain
from refold_store import committer
from refold_store.erasing import erase
from refold_store.errors import NameInvalid
from refold_store.forking import fork
from refold_store.pruning import prune

Open = Callable[..., Store]


@pytest.fixture
def run(open_new: Open) -> Run:
    """A run whose routing is at version 1: seq 3."""
    run = open_new(ClaimState, strict_reads=True).run("clm-1")
    run.write_state("routing", QUEBEC, writer="triage_agent")
    return run


def told(found: Explanation) -> list[tuple[int, int, str]]:
    return [(one.seq, one.version, one.status) for one in found.readings]


def uses(found: Explanation) -> list[tuple[str, str]]:
    return [(f"{use.key}@{use.version}", use.kind) for one in found.readings for use in one.uses]


def test_a_read_of_an_old_version_is_stale(run: Run) -> None:
    """Version 1 read with `seen_seq` 5 when version 2 was written at seq 4: stale, and version 2 is named."""
    run.write_state("routing", ONTARIO, writer="triage_agent")  # 4
    run.write_state("note", 1, writer="triage_agent")  # 5
    record_read(run, "liability_agent", "routing", 1, seen_seq=5)  # 6
    found = explain(run, "liability_agent", "routing")
    [reading] = found.readings
    assert (reading.version, reading.seen_seq, reading.newest, reading.status) == (1, 5, 2, "stale")
    assert reading.verdict == "stale: read routing@1 when routing@2 (seq 4, by triage_agent) was current"
    assert found.verdict == f"liability_agent read routing once: {reading.verdict}"
    assert found.seq == 6


def test_superseded_before_use(run: Run) -> None:
    """A current read of version 1, version 2, then the write that rests on the read."""
    run.read_state("routing", reader="settlement_agent")  # 4
    run.write_state("routing", ONTARIO, writer="triage_agent")  # 5
    run.write_state("decision", "pay", writer="settlement_agent", basis="b")  # 6
    found = explain(run, "settlement_agent", "routing")
    [reading] = found.readings
    assert (reading.seq, reading.status, reading.newest) == (4, "superseded before use", 1)
    assert reading.newer is not None
    assert (reading.newer.version, reading.newer.seq, reading.newer.writer) == (2, 5, "triage_agent")
    assert reading.uses == [Use(6, "decision", 1, False, None, "direct", reading.newer)]
    assert reading.verdict == (
        "superseded before use: routing@2 (seq 5, by triage_agent) came after this read of routing@1 and before "
        "decision@1 (seq 6)"
    )
    assert found.verdict == f"settlement_agent read routing once: {reading.verdict}"


def test_use_before_the_newer_version_is_current(run: Run) -> None:
    """A write that came before the newer version rests on what was current; one after it does not."""
    run.read_state("routing", reader="settlement_agent")
    run.write_state("decision", "pay", writer="settlement_agent", basis="b")
    run.write_state("routing", ONTARIO, writer="triage_agent")
    assert [one.status for one in explain(run, "settlement_agent", "routing").readings] == ["current"]
    run.write_state("decision", "deny", writer="settlement_agent", basis="b")
    [reading] = explain(run, "settlement_agent", "routing").readings
    assert reading.status == "superseded before use"
    assert [use.superseded_by is None for use in reading.uses] == [True, False]


def test_a_current_read_of_a_wrong_value_points_to_its_writer(run: Run) -> None:
    """Version 2 read while it was the newest: if it was wrong, its writer is where to look."""
    run.write_state("routing", ONTARIO, writer="triage_agent")
    run.read_state("routing", reader="liability_agent")
    [reading] = explain(run, "liability_agent", "routing").readings
    assert (reading.status, reading.version, reading.writer, reading.written_seq) == ("current", 2, "triage_agent", 4)
    assert reading.verdict == (
        "current at the time: if the value was wrong, the writer of routing@2 is where to look: triage_agent, seq 4"
    )


@pytest.mark.parametrize(("seen_seq", "status"), [(3, "current"), (4, "stale")])
def test_a_late_read_event_is_judged_by_its_snapshot(run: Run, seen_seq: int, status: str) -> None:
    """The read event lands in the log after version 2: whether version 2 was in its snapshot decides."""
    run.write_state("routing", ONTARIO, writer="triage_agent")  # 4
    record_read(run, "settlement_agent", "routing", 1, seen_seq=seen_seq)  # 5
    assert told(explain(run, "settlement_agent", "routing")) == [(5, 1, status)]
    run.write_state("decision", "pay", writer="settlement_agent", basis="b")
    [reading] = explain(run, "settlement_agent", "routing").readings
    assert reading.status == ("superseded before use" if status == "current" else "stale")


def test_a_deferred_read_of_another_process(open_new: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that waits in its process while another writes version 2 was current; its later use is superseded."""
    monkeypatch.setattr(committer, "FLUSH_S", 3600.0)
    writer, reader = open_new(ClaimState).run("clm-1"), open_new(ClaimState).run("clm-1")
    writer.write_state("routing", QUEBEC, writer="triage_agent")  # 3
    reader.read_state("routing", reader="settlement_agent")
    writer.write_state("routing", ONTARIO, writer="triage_agent")  # 4
    reader.write_state("decision", "pay", writer="settlement_agent", basis="b")  # 5 is the read
    [reading] = explain(writer, "settlement_agent", "routing").readings
    assert (reading.seq, reading.seen_seq, reading.newest, reading.status) == (5, 3, 1, "superseded before use")
    assert [(use.seq, use.key) for use in reading.uses] == [(6, "decision")]


def test_no_reads_at_all(run: Run) -> None:
    """A reader that never read the key, or is not known, is no error: the answer says so plainly."""
    found = explain(run, "settlement_agent", "routing")
    assert (found.readings, found.unread) == ([], [])
    assert found.verdict == "settlement_agent is not on record as having read routing"
    run.write_state("decision", "pay", writer="settlement_agent", basis="b", based_on=[("routing", 1)])
    found = explain(run, "settlement_agent", "routing")
    assert [(use.key, use.kind) for use in found.unread] == [("decision", "stated")]
    assert found.verdict.endswith("though decision@1 (seq 4) states to rest on it")


def test_only_the_newest_read_counts_unless_stated(run: Run) -> None:
    """A write rests on the newest version read, at its last read; one that states its grounds on those alone."""
    for _ in range(2):
        run.read_state("routing", reader="settlement_agent")  # 4, 5
    run.write_state("routing", ONTARIO, writer="triage_agent")  # 6
    run.read_state("routing", reader="settlement_agent")  # 7
    run.at(3).read_state("routing", reader="settlement_agent")  # 8: version 1 again
    run.write_state("decision", "a", writer="settlement_agent", basis="b")  # 9
    run.write_state("decision", "b", writer="settlement_agent", basis="b", based_on=[("routing", 1)])  # 10
    run.write_state("decision", "c", writer="settlement_agent", basis="b", based_on=[])  # 11
    found = {one.seq: [use.seq for use in one.uses] for one in explain(run, "settlement_agent", "routing").readings}
    assert found == {4: [], 5: [], 7: [9], 8: [10]}


def test_direct_and_carried(run: Run) -> None:
    """A read of the write's own turn is direct, one of an earlier turn carried."""
    record_read(run, "settlement_agent", "routing", 1, seen_seq=3, turn=1)
    for turn in (1, 2):
        run.write_state("decision", "pay", writer="settlement_agent", basis="b", turn=turn)
    assert uses(explain(run, "settlement_agent", "routing")) == [("decision@1", "direct"), ("decision@2", "carried")]


def test_reads_of_many_keys_deletes_and_absence(run: Run) -> None:
    """One event that reads many keys counts for each; a delete is a use; a read of nothing is current."""
    run.read_many(["routing", "note"], reader="triage_agent")  # 4
    run.delete_state("routing", writer="triage_agent")  # 5
    found = explain(run, "triage_agent", "note")
    [reading] = found.readings
    assert (reading.version, reading.status, reading.verdict) == (0, "current", "current at the time: note was absent")
    assert [(use.key, use.version, use.deleted) for use in reading.uses] == [("routing", 2, True)]
    [reading] = explain(run, "triage_agent", "routing").readings
    assert (reading.status, reading.newer) == ("current", None)  # its own write is no newer version before use


def test_a_newer_version_of_the_same_transaction_is_not_before_use(run: Run) -> None:
    """A transaction writes the newer version and the decision together: nothing came in between."""
    run.read_state("routing", reader="settlement_agent")
    with run.transaction() as unit:
        unit.write_state("routing", ONTARIO, writer="triage_agent")
        unit.write_state("decision", "pay", writer="settlement_agent", basis="b")
    [reading] = explain(run, "settlement_agent", "routing").readings
    assert reading.status == "current"
    assert uses(explain(run, "settlement_agent", "routing")) == [("decision@1", "direct")]


def test_a_fork_inherits_reads_and_goes_on(run: Run) -> None:
    """What was read before the fork and used after it is told of the fork; the original knows nothing of the use."""
    run.read_state("routing", reader="settlement_agent")  # 4
    other = fork(run, "clm-1b", by="dana")
    other.write_state("routing", ONTARIO, writer="triage_agent")
    other.write_state("decision", "pay", writer="settlement_agent", basis="b")
    [reading] = explain(other, "settlement_agent", "routing").readings
    assert (reading.seq, reading.status) == (4, "superseded before use")
    assert reading.recorded_at is not None
    assert [(one.status, one.uses) for one in explain(run, "settlement_agent", "routing").readings] == [("current", [])]


def test_pruned_reads_stand_as_one_line(run: Run) -> None:
    """After pruning, the roll-up is explained: how many reads, from where to where, and what rests on them."""
    for _ in range(3):
        run.read_state("routing", reader="settlement_agent")  # 4, 5, 6
    run.write_state("routing", ONTARIO, writer="triage_agent")
    run.write_state("decision", "pay", writer="settlement_agent", basis="b")
    before = explain(run, "settlement_agent", "routing")
    prune(run, before="end", by="ops")
    [reading] = explain(run, "settlement_agent", "routing").readings
    assert (reading.seq, reading.last_seq, reading.count, reading.newest) == (4, 6, 3, 1)
    assert (reading.status, reading.recorded_at) == ("superseded before use", None)
    assert reading.uses == before.readings[-1].uses


def test_keys_of_a_scope_and_erased_values(run: Run) -> None:
    """A key of the tenant is judged in its own run; erasing a value does not change what is told."""
    run.write_state("house_rule", "x", writer="triage_agent")
    run.read_state("house_rule", reader="settlement_agent")
    run.write_state("house_rule", "y", writer="triage_agent")
    run.write_state("decision", "pay", writer="settlement_agent", basis="b")
    found = explain(run, "settlement_agent", "house_rule")
    [reading] = found.readings
    assert (found.scope, reading.version, reading.status, reading.writer) == ("tenant", 1, "current", "triage_agent")
    assert uses(found) == [("decision@1", "direct")]
    record_read(run, "settlement_agent", "house_rule", 1, seen_seq=4, scope="tenant")
    assert [one.status for one in explain(run, "settlement_agent", "house_rule").readings] == ["current", "stale"]
    before = explain(run, "settlement_agent", "house_rule").readings
    erase(run.store, run.name, by="dpo", reason="asked for")
    assert explain(run, "settlement_agent", "house_rule").readings == before


def test_mistakes(run: Run, open_new: Open) -> None:
    """An unknown run, key or an impossible name are typed errors."""
    with pytest.raises(UnknownKey):
        explain(run, "settlement_agent", "rooting")
    with pytest.raises(NameInvalid):
        explain(run, "a\0b", "routing")
    with pytest.raises(NoSuchRun):
        explain(open_new(ClaimState).run("clm-9"), "settlement_agent", "routing")

"""Impact and why: forwards and backwards through reads and writes, in forks, pruned, bounded, and by definition."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState
from kept import Clock
from lineage_naively import naive
from reading import record_read

from refold import NoSuchMoment, NoSuchRun, NoSuchVersion, Run, Store, UnknownKey
from refold_replay import explain, grounding, spreading, tracing
from refold_replay.archiving import archive
from refold_replay.bundle_import import import_bundle
from refold_replay.importing import import_files
from refold_replay.lineage import Item, passing
from refold_replay.trace import Node, Trace
from refold_replay.tracing import Reader, impact, why
from refold_store.erasing import erase
from refold_store.events import READ
from refold_store.forking import fork, make_self_contained
from refold_store.pruning import prune

Open = Callable[..., Store]
MINUTE = 60_000_000


@pytest.fixture
def run(open_new: Open, clock: Clock) -> Run:
    """Routing is read, a decision rests on it; the decision is read, a report rests on that."""
    run = open_new(ClaimState, strict_reads=True, clock=clock).run("clm-1")
    run.write_state("routing", QUEBEC, writer="triage_agent", basis="stated by phone")  # 3
    run.read_state("routing", reader="settlement_agent")  # 4
    run.read_state("routing", reader="liability_agent")  # 5
    run.write_state("decision", "pay", writer="settlement_agent", basis="limit")  # 6
    run.read_state("decision", reader="photo_agent")  # 7
    run.write_state("reports", "r1", writer="photo_agent")  # 8
    run.write_state("reports", "r2", writer="evidence_agent")  # 9: has read nothing, builds on r1
    run.write_state("note", 1, writer="triage_agent")  # 10: rests on nothing
    return run


def edges(trace: Trace) -> set[tuple[str, str, str]]:
    """Edges by the seqs and names of their ends."""

    def of(node: Node) -> str:
        return f"{node.seq} {node.actor} {node.name}"

    return {(of(trace.nodes[one.source]), of(trace.nodes[one.target]), one.kind) for one in trace.edges}


def versions(trace: Trace) -> set[tuple[str, int]]:
    return {(n.key or "", n.version or 0) for n in trace.nodes.values() if n.kind == "write" and n.id != trace.root}


def reads(trace: Trace) -> set[tuple[int, str, int]]:
    return {(n.seq, n.key or "", n.version or 0) for n in trace.nodes.values() if n.kind == "read"}


def test_impact_goes_on_through_readers(run: Run) -> None:
    """Readers, their later writes, the readers of those, and what builds on them; each edge with its kind."""
    found = impact(run, "routing", 1)
    root, use, report = "3 triage_agent routing@1", "6 settlement_agent decision@1", "8 photo_agent reports@1"
    assert edges(found.trace) == {
        (root, "4 settlement_agent routing@1", "read"),
        (root, "5 liability_agent routing@1", "read"),
        ("4 settlement_agent routing@1", use, "direct"),
        (use, "7 photo_agent decision@1", "read"),
        ("7 photo_agent decision@1", report, "direct"),
        (report, "9 evidence_agent reports@2", "folded"),
    }
    assert (found.reads, found.writes, found.runs, found.forks) == (3, 3, ["clm-1"], [])
    assert found.agents == ["evidence_agent", "liability_agent", "photo_agent", "settlement_agent"]
    depths = {node.seq: node.depth for node in found.trace.nodes.values()}
    assert depths == {3: 0, 4: 1, 5: 1, 6: 2, 7: 3, 8: 4, 9: 5}
    assert found.trace.root == "n1"
    assert (found.trace.seq, found.trace.left, found.notes) == (10, 0, [])


def test_why_is_the_same_walk_backwards(run: Run) -> None:
    """From the last report back to routing, with bases, reads and kinds, and nothing that it does not rest on."""
    found = why(run, "reports")
    assert (found.version, found.written, found.reads, found.writes) == (2, True, 2, 3)
    back = edges(found.trace)
    assert back == {edge for edge in edges(impact(run, "routing", 1).trace) if "liability" not in edge[1]}
    bases = {node.name: node.basis for node in found.trace.nodes.values() if node.kind == "write"}
    assert bases == {"reports@2": None, "reports@1": None, "decision@1": "limit", "routing@1": "stated by phone"}
    assert [node.depth for node in found.trace.nodes.values()] == [0, 1, 2, 3, 4, 5]
    assert why(run, "note").trace.edges == []
    assert why(run, "reports", 1).trace.nodes["n1"].name == "reports@1"


def test_a_fork_made_after_it_counts_and_one_made_before_does_not(run: Run, clock: Clock) -> None:
    """A fork resumed 19 minutes later carries the damage on; one that goes on from before the write has none."""
    clock.now += 19 * MINUTE
    later = fork(run, "clm-1b", by="dana")
    early = fork(run, "clm-1a", at=2, by="dana")
    early.write_state("routing", ONTARIO, writer="triage_agent")
    early.read_state("routing", reader="settlement_agent")
    early.write_state("decision", "deny", writer="settlement_agent", basis="b")
    later.read_state("routing", reader="late_agent")  # 12
    later.write_state("decision", "pay more", writer="settlement_agent", basis="b")  # 13: carried from before the fork
    nested = fork(later, "clm-1c", by="dana")
    nested.read_state("decision", reader="nested_agent")
    found = impact(run, "routing", 1)
    assert (found.runs, found.forks) == (["clm-1", "clm-1b", "clm-1c"], ["clm-1b", "clm-1c"])
    assert (found.reads, found.writes) == (5, 4)
    ours = [(node.run, node.seq, node.name, node.kind) for node in found.trace.nodes.values() if node.run != "clm-1"]
    assert ours == [
        ("clm-1b", 12, "routing@1", "read"),
        ("clm-1b", 13, "decision@2", "write"),
        ("clm-1c", 15, "decision@2", "read"),
    ]
    assert ("4 settlement_agent routing@1", "13 settlement_agent decision@2", "direct") in edges(found.trace)
    at = {node.seq: node.recorded_at for node in found.trace.nodes.values()}
    assert at[13] is not None
    assert at[3] is not None
    assert 19 * 60 <= (at[13] - at[3]).total_seconds() < 20 * 60


def test_what_a_fork_does_not_share_stays_apart(run: Run) -> None:
    """After the fork, reads and writes of one side are no grounds of the other's."""
    other = fork(run, "f", at=5, by="dana")
    other.read_state("routing", reader="reserve_agent")
    run.write_state("reserve_cap", 1, writer="reserve_agent")
    other.write_state("decision", "no", writer="settlement_agent", basis="b", based_on=[])
    other.read_state("decision", reader="billing")
    other.write_state("spent", 1, writer="billing")
    assert ("reserve_cap", 1) not in versions(impact(run, "routing", 1).trace)
    found = impact(run, "routing", 1)
    assert [node.key for node in found.trace.nodes.values() if node.run == "f"] == ["routing"]
    assert (found.runs, found.forks) == (["clm-1", "f"], ["f"])


def test_what_an_original_reads_later_does_not_count_in_its_forks(run: Run) -> None:
    """After the fork, the original's agent reads a newer version; in the forks it still acts on the older one."""
    first, second = fork(run, "f1", at=5, by="dana"), fork(run, "f2", at=5, by="dana")
    run.write_state("routing", ONTARIO, writer="triage_agent")
    run.read_state("routing", reader="settlement_agent")
    first.write_state("routing", ONTARIO, writer="triage_agent")  # 7
    first.read_state("routing", reader="settlement_agent")  # 8
    second.read_state("note", reader="settlement_agent")  # 7
    second.write_state("decision", "a", writer="settlement_agent", basis="b")  # 8
    second.read_state("routing", reader="settlement_agent")  # 9
    second.write_state("decision", "b", writer="settlement_agent", basis="b")  # 10
    found = edges(impact(run, "routing", 1).trace)
    assert ("4 settlement_agent routing@1", "8 settlement_agent decision@1", "direct") in found
    assert ("9 settlement_agent routing@1", "10 settlement_agent decision@2", "direct") in found


def test_forks_of_one_place_share_nothing_of_what_follows(run: Run) -> None:
    """Of several forks at one seq, none takes over what the original did next, nor what another fork did."""
    forks = [fork(run, f"f{number}", at=10, by="dana") for number in range(3)]
    run.read_state("routing", reader="reserve_agent")
    run.write_state("reserve_cap", 1, writer="reserve_agent")
    forks[0].read_state("routing", reader="billing")
    for other in forks:
        other.write_state("reserve_cap", 2, writer="reserve_agent")
        other.write_state("amount", "1", writer="billing")
    found = impact(run, "routing", 1)
    assert found.forks == ["f0", "f1", "f2"]
    own = [node for node in found.trace.nodes.values() if node.kind == "write" and node.seq > 10]
    assert [(node.run, node.key) for node in own] == [("clm-1", "reserve_cap"), ("f0", "amount")]


def test_an_archived_fork_is_not_told_and_not_kept_quiet(run: Run, tmp_path: Path) -> None:
    """Forks whose events lie in bundles are missing from the answer: a note names them until they are back."""
    other = fork(run, "f", by="dana")
    other.write_state("amount", "1", writer="billing", based_on=[("routing", 1)])
    before = impact(run, "routing", 1)
    assert (before.forks, before.notes) == (["f"], [])
    away = archive(other, tmp_path, by="ops")
    run.store.run("elsewhere", "other").write_state("note", 1, writer="triage_agent")
    archive(run.store.run("elsewhere", "other"), tmp_path, by="ops")
    found = impact(run, "routing", 1)
    assert (found.forks, found.writes) == ([], before.writes - 1)
    assert found.notes == ["archived and not looked at, forks of 'clm-1' may be among them: f"]
    import_bundle(run.store, away.path, by="ops")
    again = impact(run, "routing", 1)
    assert (again.forks, again.writes, again.notes) == (["f"], before.writes, [])


def test_many_archived_runs_are_not_all_named(run: Run, tmp_path: Path) -> None:
    """Of many archived runs the note names the first, and says how many more there are."""
    for number in range(tracing.NAMES_MAX + 2):
        archive(fork(run, f"f{number}", by="dana"), tmp_path, by="ops")
    [note] = impact(run, "routing", 1).notes
    assert note.endswith("among them: f0, f1, f2, f3, f4, f5, f6, f7, f8, f9 and 2 more")


def test_an_answer_is_as_of_the_seq_it_names(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while the question is answered is not in the answer."""

    def meanwhile(_run: Run) -> None:
        run.read_state("routing", reader="late_agent")
        run.read_state("status", reader="late_agent")
        run.write_state("reports", "late", writer="evidence_agent")

    head = run.head_seq()
    run.read_state("status", reader="billing")
    monkeypatch.setattr(tracing, "check_archived", meanwhile)
    monkeypatch.setattr(explain, "check_archived", meanwhile)
    found = impact(run, "routing", 1).trace
    assert found.seq == head + 1
    assert max(node.seq for node in found.nodes.values()) <= head
    asked = explain.explain(run, "late_agent", "routing")
    assert [one.seq <= asked.seq for one in asked.readings] == [True]
    absent = why(run, "status").trace
    assert max(node.seq for node in absent.nodes.values()) <= absent.seq


def test_nothing_rests_on_what_came_later(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An odd log states versions, and has reads of them, before they were made: no ground, and no cycle."""

    def odd(one: Item) -> Item:
        if one.seq == 3:
            return one._replace(stated=[("routing", 1), ("decision", 1), ("note", 1)])
        return one._replace(version=2, key="reports") if one.kind == READ and one.seq == 7 else one

    items = [odd(one) for one in passing(run)]
    monkeypatch.setattr(tracing, "passing", lambda _run, **_bounds: iter(items))
    back = why(run, "reports").trace
    assert {edge[2] for edge in edges(back)} == {"direct", "folded"}
    assert all(back.nodes[edge.source].seq < back.nodes[edge.target].seq for edge in back.edges)
    assert why(run, "routing").trace.edges == []


def test_a_transaction_comes_after_nothing_of_its_own(run: Run) -> None:
    """A newer version that is written in the same transaction as the use did not come before it, in both walks."""
    with run.transaction() as unit:
        unit.write_state("routing", ONTARIO, writer="triage_agent")  # 11
        unit.write_state("decision", "no", writer="settlement_agent", basis="b")  # 12
    for trace in (impact(run, "routing", 1).trace, why(run, "decision").trace):
        [read] = [node for node in trace.nodes.values() if node.seq == 4]
        assert read.status == "current"


def test_asked_of_a_fork(run: Run) -> None:
    """Of an inherited version a fork tells its shared past and its own; a note names where the rest lies."""
    other = fork(run, "f", at=5, by="dana")
    other.write_state("amount", "1", writer="billing")
    found = impact(other, "routing", 1)
    assert [(node.run, node.seq) for node in found.trace.nodes.values()] == [("clm-1", 3), ("clm-1", 4), ("clm-1", 5)]
    assert found.notes == [
        "'f' is a fork and inherits this version from 'clm-1': what 'clm-1' and its other forks made of it is told by "
        "the impact of 'clm-1'"
    ]
    other.write_state("decision", "no", writer="settlement_agent", basis="b")
    assert edges(why(other, "decision").trace) == {
        ("3 triage_agent routing@1", "4 settlement_agent routing@1", "read"),
        ("4 settlement_agent routing@1", "8 settlement_agent decision@1", "direct"),
    }
    assert {node.run for node in why(other, "decision").trace.nodes.values()} == {"clm-1", "f"}


def test_turns_part_direct_from_carried(run: Run) -> None:
    """Reads of the write's turn are direct, of an earlier one carried; stated grounds leave both out."""
    record_read(run, "reserve_agent", "routing", 1, seen_seq=10, turn=1)  # 11
    record_read(run, "reserve_agent", "note", 1, seen_seq=10, turn=2)  # 12
    run.write_state("reserve_cap", 1, writer="reserve_agent", turn=2)  # 13
    run.write_state("reserve_cap", 2, writer="reserve_agent", turn=2, based_on=[("decision", 1)])  # 14
    kinds = {(source, kind) for source, _target, kind in edges(why(run, "reserve_cap", 1).trace) if kind != "read"}
    assert kinds == {("11 reserve_agent routing@1", "carried"), ("12 reserve_agent note@1", "direct")}
    stated = edges(why(run, "reserve_cap").trace)
    assert ("6 settlement_agent decision@1", "14 reserve_agent reserve_cap@2", "stated") in stated
    assert not any("note" in source for source, _target, _kind in stated)
    assert impact(run, "note", 1).writes == 1


def test_statuses_and_deletes(run: Run) -> None:
    """A read used after a newer version says so, in both walks; a delete counts as a write."""
    run.write_state("routing", ONTARIO, writer="triage_agent")  # 11
    record_read(run, "liability_agent", "routing", 1, seen_seq=11)  # 12
    run.delete_state("decision", writer="settlement_agent", basis="gone")  # 13
    found = impact(run, "routing", 1).trace
    assert {
        node.seq: node.status for node in found.nodes.values() if node.kind == "read" and node.key == "routing"
    } == {
        4: "superseded before use",
        5: "current",
        12: "stale",
    }
    [delete] = [node for node in found.nodes.values() if node.deleted]
    assert (delete.seq, delete.name, delete.basis, delete.owner) == (13, "decision@2", "gone", "settlement_agent")
    back = why(run, "decision").trace
    assert back.nodes["n1"].deleted
    assert [node.status for node in back.nodes.values() if node.kind == "read"] == ["superseded before use"]


def test_a_key_nobody_wrote(run: Run) -> None:
    """The answer says so and lists who read it as absent; a version of it is an error."""
    run.read_state("status", reader="billing")
    run.read_many(["status", "note"], reader="settlement_agent")
    found = why(run, "status")
    assert (found.written, found.version, found.trace.root, found.trace.edges) == (False, 0, None, [])
    absent = [(node.actor, node.seq, node.version, node.status) for node in found.trace.nodes.values()]
    assert absent == [("billing", 11, 0, "current"), ("settlement_agent", 12, 0, "current")]
    assert found.reads == 2
    assert found.notes == ["nobody wrote 'status' in run 'clm-1'; read by billing, settlement_agent"]
    assert found.readers == [Reader("billing", 1, 11, 11), Reader("settlement_agent", 1, 12, 12)]
    for call in (lambda: why(run, "status", 1), lambda: impact(run, "status", 1)):
        with pytest.raises(NoSuchMoment, match="never written"):
            call()


def test_an_initial_value_was_written_by_nobody(open_new: Open) -> None:
    """A key that only has its initial value: the answer says who set it and who read it, until somebody writes it."""
    run = open_new(ClaimState, strict_reads=True).run("r")
    run.open(opened_by="intake", initial={"counter": 1})
    for _ in range(2):
        run.read_state("counter", reader="billing")
    found = why(run, "counter")
    assert (found.written, found.initial, found.version, found.trace.edges) == (False, True, 1, [])
    assert found.notes == ["nobody wrote 'counter': version 1 is an initial value, set by 'intake'; read by billing"]
    assert [(one.name, one.reads) for one in found.readers] == [("billing", 2)]
    run.write_state("counter", 2, writer="counter")
    assert (why(run, "counter").written, why(run, "counter").readers) == (True, [])


def test_effects_of_the_turn(run: Run) -> None:
    """Tools and models that answered the same actor in the same turn before the write are among its causes."""
    run.append("tool.returned", actor="billing", turn=4, body={"tool": "lookup", "result": 1})  # 11
    run.append("model.answered", actor="billing", turn=4, body={"text": "x"})  # 12
    run.append("tool.returned", actor="billing", turn=5, body={"tool": "later"})
    run.append("tool.returned", actor="other", turn=4, body={"tool": "others"})
    run.write_state("amount", "1", writer="billing", turn=4)  # 15
    run.append("tool.returned", actor="billing", turn=4, body={"tool": "after"})
    found = why(run, "amount")
    effects = [(node.seq, node.name, node.tool) for node in found.trace.nodes.values() if node.kind == "effect"]
    assert effects == [(12, "model.answered", None), (11, "lookup", "lookup")]
    assert [edge.kind for edge in found.trace.edges] == ["effect", "effect"]
    assert found.effects == 2


def test_effects_without_turns(run: Run) -> None:
    """A program that numbers no turns: the effects since the actor's last write count."""
    run.append("tool.returned", actor="billing", body={"tool": "first"})
    run.write_state("amount", "1", writer="billing")
    run.append("tool.returned", actor="billing", body={"tool": "second"})
    run.write_state("amount", "2", writer="billing")
    assert [node.tool for node in why(run, "amount").trace.nodes.values() if node.kind == "effect"] == ["second"]
    assert [node.tool for node in why(run, "amount", 1).trace.nodes.values() if node.kind == "effect"] == ["first"]


def test_the_tool_call_an_imported_write_names(open_new: Open, store_url: str, tmp_path: Path) -> None:
    """The line an imported write names as its cause is among its effects, whoever called, if it is a tool call."""
    lines: list[dict[str, Any]] = [
        {"kind": "tool_call", "agent": "helper", "tool": "search", "ok": True},
        {"kind": "tool_call", "agent": "helper", "tool": "other", "ok": True},
        {"kind": "write", "agent": "a", "key": "k", "value": 1, "cause": 1},
        {"kind": "write", "agent": "a", "key": "k", "value": 2, "cause": 3},
    ]
    path = tmp_path / "events.jsonl"
    numbered = enumerate(lines, 1)
    path.write_text("".join(json.dumps({"run": "r", "seq": seq, "ts": None} | line) + "\n" for seq, line in numbered))
    assert import_files(store_url, [path]).ok
    run = open_new().run("r")
    effects = [node for node in why(run, "k", 1).trace.nodes.values() if node.kind == "effect"]
    assert [(node.actor, node.tool) for node in effects] == [("helper", "search")]
    assert why(run, "k", 2).effects == 0


def test_pruned_reads_keep_the_lineage(run: Run) -> None:
    """After pruning, both walks reach the same writes; a line of reads stands as one node with its count."""
    for _ in range(2):
        run.read_state("routing", reader="reserve_agent")  # 11, 12
    run.write_state("reserve_cap", 1, writer="reserve_agent")
    forwards, backwards = impact(run, "routing", 1), why(run, "reserve_cap")
    prune(run, before="end", by="ops")
    assert versions(impact(run, "routing", 1).trace) == versions(forwards.trace)
    assert versions(why(run, "reserve_cap").trace) == versions(backwards.trace) == {("routing", 1)}
    assert impact(run, "routing", 1).reads == forwards.reads == 5
    lines = [(n.seq, n.last_seq, n.count) for n in impact(run, "routing", 1).trace.nodes.values() if n.kind == "read"]
    assert lines == [(4, 4, 1), (5, 5, 1), (7, 7, 1), (11, 12, 2)]
    [line] = [node for node in why(run, "reserve_cap").trace.nodes.values() if node.kind == "read"]
    assert (line.seq, line.last_seq, line.count, line.recorded_at) == (11, 12, 2, None)


def test_keys_of_a_scope(run: Run) -> None:
    """A tenant's key is read here and written elsewhere: its readers are told, and its write ends the walk back."""
    run.write_state("house_rule", "x", writer="triage_agent", basis="b")
    run.read_state("house_rule", reader="reserve_agent")  # 11
    run.write_state("reserve_cap", 1, writer="reserve_agent")  # 12
    found = impact(run, "house_rule", 1)
    assert (found.reads, found.writes) == (1, 1)
    assert "has scope 'tenant'" in found.notes[0]
    root = found.trace.nodes["n1"]
    assert (root.run, root.scope, root.actor, root.basis) == ("", "tenant", "triage_agent", "b")
    back = why(run, "reserve_cap").trace
    assert [(node.kind, node.scope, node.name) for node in back.nodes.values()] == [
        ("write", "run", "reserve_cap@1"),
        ("read", "tenant", "house_rule@1"),
        ("write", "tenant", "house_rule@1"),
    ]
    alone = why(run, "house_rule")
    assert len(alone.trace.nodes) == 1
    assert "not in the log of run 'clm-1'" in alone.notes[0]
    run.write_state("reserve_cap", 2, writer="reserve_agent", based_on=[("house_rule", 1)])
    assert ("reserve_cap", 2) in versions(impact(run, "house_rule", 1).trace)


def test_a_bound_on_nodes_and_on_grounds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is over the limit is counted, not kept; grounds of one write beyond the bound are counted on its node."""
    found = impact(run, "routing", 1, limit=3)
    assert (len(found.trace.nodes), found.trace.left) == (3, 4)
    assert (found.reads, found.writes) == (3, 3)
    assert {edge.target for edge in found.trace.edges} <= found.trace.nodes.keys()
    back = why(run, "reports", limit=2)
    assert (len(back.trace.nodes), back.trace.left) == (2, 1)
    monkeypatch.setattr(grounding, "GROUNDS_MAX", 2)
    monkeypatch.setattr(spreading, "GROUNDS_MAX", 2)
    for key in ("routing", "decision", "note", "reports"):
        run.read_state(key, reader="billing")
    run.write_state("amount", "1", writer="billing")
    node = why(run, "amount").trace.nodes["n1"]
    assert node.more == 2
    assert len([edge for edge in why(run, "amount").trace.edges if edge.target == "n1"]) == 2
    [last] = [one for one in impact(run, "routing", 1).trace.nodes.values() if one.key == "amount"]
    assert last.more == 1


def test_sensitive_and_erased(open_new: Open) -> None:
    """Nodes of sensitive keys are marked; after erasing, the walk is the same and the basis is gone."""
    keys = {"iban": {"owner": "a", "sensitive": True}, "paid": {"owner": "b"}}
    run = open_new({"keys": keys}, strict_reads=True).run("r")
    run.write_state("iban", "DE02", writer="a", basis="told")
    run.read_state("iban", reader="b")
    run.write_state("paid", True, writer="b")
    found = why(run, "paid").trace
    assert [(node.name, node.sensitive) for node in found.nodes.values()] == [
        ("paid@1", False),
        ("iban@1", True),
        ("iban@1", True),
    ]
    erase(run.store, "r", key="iban", by="dpo", reason="asked for")
    again = why(run, "paid").trace
    assert again.edges == found.edges
    assert (found.nodes["n3"].basis, again.nodes["n3"].basis) == ("told", None)


def test_mistakes(run: Run, open_new: Open) -> None:
    """Unknown runs, keys and versions are typed errors."""
    for version in (0, 2, 10**30):
        with pytest.raises(NoSuchVersion):
            impact(run, "routing", version)
        with pytest.raises(NoSuchVersion):
            why(run, "routing", version)
    with pytest.raises(UnknownKey):
        why(run, "rooting")
    with pytest.raises(NoSuchRun):
        impact(open_new(ClaimState).run("clm-9"), "routing", 1)


FOLDING = {"list", "sum"}
KEYS = {
    "a": {"owner": "one"},
    "b": {"owner": "two"},
    "c": {"owner": "three"},
    "list": {"owner": "two", "type": "array", "reducer": "append"},
    "sum": {"owner": "three", "type": "integer", "reducer": "add"},
}


def play(run: Run, seed: int, steps: int) -> None:
    """A random history: reads, late and old ones, of many keys, writes with and without stated grounds, deletes."""
    rng = random.Random(seed)
    for step in range(steps):
        key = rng.choice(sorted(KEYS))
        who, turn = str(KEYS[key]["owner"]), rng.choice([None, step // 5])
        have = len(run.history(key))
        match rng.randrange(6):
            case 0:
                run.read_many(rng.sample(sorted(KEYS), 2), reader=rng.choice(["one", "two", "three"]))
            case 1 | 2 if have:
                at = rng.randint(1, have)
                reader = rng.choice(["one", "two", "three"])
                record_read(run, reader, key, at, seen_seq=run.head_seq() - rng.choice([0, 0, 1]), turn=turn)
            case 3 if have and key not in FOLDING:
                run.delete_state(key, writer=who, turn=turn)
            case _:
                grounds = [(k, len(run.history(k))) for k in rng.sample(sorted(KEYS), 2) if run.history(k)]
                based_on = grounds if rng.random() < 0.3 else None
                value = {"list": ["x"], "sum": 1}.get(key, step)
                run.write_state(key, value, writer=who, turn=turn, based_on=based_on)


@pytest.mark.parametrize("seed", range(4))
def test_both_walks_agree_with_the_definition(open_new: Open, seed: int) -> None:
    """On random histories every version's impact and why reach exactly what the definition gives, with its kinds."""
    run = open_new({"keys": KEYS}, strict_reads=True).run("r")
    play(run, seed, 60)
    truth = naive(run, FOLDING)
    assert len(truth.grounds) > 15
    for key, version in truth.grounds:
        forth = impact(run, key, version)
        expected = truth.forth((key, version))
        assert versions(forth.trace) == expected
        assert reads(forth.trace) == truth.reads_of(expected | {(key, version)})
        back = why(run, key, version)
        made = {ground for ground in truth.back((key, version)) if ground[1]}
        assert versions(back.trace) == made
        own = {(trace_ground(back.trace, edge.source), edge.kind) for edge in back.trace.causes("n1")}
        assert {one for one in own if one[1] != "effect"} == truth.grounds[key, version]


def trace_ground(trace: Trace, id: str) -> tuple[str, int]:
    node = trace.nodes[id]
    return node.key or "", node.version or 0


def test_a_copied_fork_answers_as_before(run: Run) -> None:
    """A fork that was made self-contained tells the same of itself, and the original finds it all the same."""
    other = fork(run, "f", by="dana")
    other.write_state("decision", "no", writer="settlement_agent", basis="b")
    before = edges(why(other, "decision").trace)
    found = impact(run, "routing", 1)
    assert make_self_contained(run.store, "f") == 10
    assert edges(why(other, "decision").trace) == before
    again = impact(run, "routing", 1)
    assert (edges(again.trace), again.runs) == (edges(found.trace), ["clm-1", "f"])
    assert impact(run, "note", 1).forks == ["f"]
    assert impact(fork(run, "g", at=5, by="dana"), "routing", 1).forks == []

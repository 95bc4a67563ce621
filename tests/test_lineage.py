"""The pass lineage is built on: every form of read and write as items, names as text, forks and all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from claims import ONTARIO, QUEBEC, ClaimState
from reading import record_read

from refold import Run, Store
from refold_replay.explain import explain
from refold_replay.lineage import Item, Versions, passing
from refold_replay.tracing import impact, why
from refold_store.events import DELETED, KIND_ID, READ, WRITTEN, Draft
from refold_store.forking import fork
from refold_store.pruning import prune
from refold_store.requests import Request

Open = Callable[..., Store]


@pytest.fixture
def run(open_new: Open) -> Run:
    """A run with reads of all forms."""
    run = open_new(ClaimState, strict_reads=True).run("clm-1")
    run.write_state("routing", QUEBEC, writer="triage_agent", turn=1)  # 3
    run.read_state("routing", reader="settlement_agent")  # 4
    run.read_many(["routing", "note"], reader="liability_agent")  # 5
    with run.transaction(turn=2) as unit:  # 6, 7
        unit.write_state("routing", ONTARIO, writer="triage_agent", based_on=[("note", 0), ("note", 0)])
        unit.write_state("note", 1, writer="triage_agent", based_on=[])
    run.delete_state("note", writer="triage_agent")  # 8
    run.write_state("house_rule", "x", writer="triage_agent")
    run.read_state("house_rule", reader="liability_agent")  # 9
    run.append("tool.returned", actor="liability_agent", turn=3, body={"tool": "t"})  # 10
    run.append("note.added", actor="liability_agent", body={"text": "left out"})  # 11
    return run


def brief(items: list[Item]) -> list[tuple[Any, ...]]:
    return [(one.seq, one.kind, one.actor, one.address, one.version, one.turn) for one in items]


def test_every_form_of_event(run: Run) -> None:
    """Reads of many keys come key by key, a scope's key by its address; effects come, other events do not."""
    items = list(passing(run))
    assert brief(items) == [
        (3, WRITTEN, "triage_agent", "routing", 1, 1),
        (4, READ, "settlement_agent", "routing", 1, None),
        (5, READ, "liability_agent", "routing", 1, None),
        (5, READ, "liability_agent", "note", 0, None),
        (6, WRITTEN, "triage_agent", "routing", 2, 2),
        (7, WRITTEN, "triage_agent", "note", 1, 2),
        (8, DELETED, "triage_agent", "note", 2, None),
        (9, READ, "liability_agent", ("tenant", "house_rule"), 1, None),
        (10, KIND_ID["tool.returned"], "liability_agent", "", 0, 3),
    ]
    stated = {one.seq: one.stated for one in items}
    assert (stated[3], stated[6], stated[7]) == (None, [("note", 0)], [])
    assert [one.unit for one in items if one.kind <= DELETED] == [3, 6, 6, 8]
    assert {one.seen_seq for one in items if one.seq in (4, 5)} == {3, 4}


def test_a_part_of_a_run(run: Run) -> None:
    """Only items after one seq and up to another; nothing of a run that is not there."""
    assert [one.seq for one in passing(run, after=4, upto=6)] == [5, 5, 6]
    assert list(passing(run.store.run("nobody"))) == []


def test_forks_begin_in_their_ancestors(run: Run) -> None:
    """A fork's items are the shared ones, then its own; a pass may begin behind the fork's seq."""
    other = fork(run, "f", at=7, by="dana")
    other.write_state("note", 2, writer="triage_agent")  # 9
    run.write_state("note", 3, writer="triage_agent")
    assert [one.seq for one in passing(other)] == [3, 4, 5, 5, 6, 7, 9]
    assert [one.seq for one in passing(other, after=7)] == [9]


def test_pruned_reads(run: Run) -> None:
    """A line of pruned reads comes at its first seq with its count, and again at its last, among what is left."""
    for _ in range(3):
        run.read_state("routing", reader="settlement_agent")  # 12, 13, 14
    prune(run, before="end", by="ops")
    found = [(one.seq, one.actor, one.address, one.version, one.reads, one.last_seq) for one in passing(run)]
    assert [one for one in found if one[0] not in (3, 6, 7, 8, 10)] == [
        (4, "settlement_agent", "routing", 1, 1, 4),
        (5, "liability_agent", "routing", 1, 1, 5),
        (5, "liability_agent", "note", 0, 1, 5),
        (9, "liability_agent", ("tenant", "house_rule"), 1, 1, 9),
        (12, "settlement_agent", "routing", 2, 3, 14),
        (14, "settlement_agent", "routing", 2, 0, 14),
    ]
    assert [one[0] for one in found] == sorted(one[0] for one in found)


def test_which_version_was_newest(run: Run) -> None:
    """By seq, before a transaction, in a snapshot, and of a key that another run holds; also from the middle on."""
    versions = Versions(run)
    for item in passing(run):
        if item.kind <= DELETED:
            versions.made(item)
    assert [versions.newest("routing", seq) for seq in (2, 3, 5, 6, 99)] == [0, 1, 1, 2, 2]
    assert (versions.before("routing", 6), versions.before("note", 6), versions.before("note", 8)) == (1, 0, 1)
    assert [versions.seq_of("note", version) for version in (0, 1, 2, 3)] == [None, 7, 8, None]
    assert versions.newest(("tenant", "house_rule"), 99) == 1
    assert versions.newest("never", 99) == 0
    late = Versions(run)
    late.know("routing", 2, 6)
    assert (late.newest("routing", 6), late.newest("routing", 5), late.seq_of("routing", 1)) == (2, 0, None)
    other = late.copy()
    other.know("routing", 3, 9)
    assert (late.newest("routing", 9), other.newest("routing", 9)) == (2, 3)


@pytest.mark.parametrize(
    ("refs", "items"),
    [
        ("[]", []),
        ("5", []),
        ("nonsense", []),
        ('{"keys": 5}', []),
        ('{"scope": 7, "keys": [["a"], 5, [1, 2], ["b", "c"], ["routing", 1]]}', [("routing", 1)]),
        ('{"scope": "elsewhere", "keys": [["routing", 1]]}', [("routing", 1)]),
        ('{"scope": "global", "keys": [["world_rule", 2]]}', [(("global", "world_rule"), 2)]),
    ],
)
def test_refs_of_any_form(run: Run, refs: str, items: list[Any]) -> None:
    """What a read of many keys lists in another form than expected counts as not there."""
    draft = Draft(READ, "odd_agent", None, None, None, 3, refs=refs)
    run._committer.submit(Request(run._head, run.schema(), (draft,)))
    assert [(one.address, one.version) for one in passing(run) if one.actor == "odd_agent"] == items
    for call in (
        lambda: impact(run, "routing", 1),
        lambda: why(run, "routing"),
        lambda: explain(run, "odd", "routing"),
    ):
        call()


def test_reads_are_judged_by_their_snapshot(run: Run) -> None:
    """A read is stale by its `seen_seq`, wherever its event stands."""
    record_read(run, "late_agent", "routing", 1, seen_seq=5)
    record_read(run, "late_agent", "routing", 1, seen_seq=6)
    versions = Versions(run)
    seen = []
    for item in passing(run):
        if item.kind == READ and item.actor == "late_agent":
            seen.append(versions.seen(item))
        elif item.kind <= DELETED:
            versions.made(item)
    assert seen == [1, 2]

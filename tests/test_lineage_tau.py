"""Lineage on recorded retail runs: why a wrong key is wrong, or who read it if nobody wrote it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import Run, Store
from refold_replay.importing import import_files
from refold_replay.tracing import Why, impact, why

Open = Callable[..., Store]
Data = Callable[[str], Path]


@pytest.fixture
def store(open_new: Open, store_url: str, shared_data: Data) -> Store:
    """The retail runs, imported with their seed."""
    folder = shared_data("tau-retail/dev")
    assert import_files(store_url, [folder / "events.jsonl.gz"], seed=folder / "seed.jsonl.gz").ok
    return open_new(read_only=True)


@pytest.fixture
def answers(shared_data: Data) -> list[dict[str, Any]]:
    """The right answers, those of runs that went wrong."""
    lines = (shared_data("tau-retail/dev") / "answers.jsonl").read_text().splitlines()
    return [answer for answer in map(json.loads, lines) if answer.get("wrong_keys")]


def source_seqs(run: Run) -> dict[int, tuple[int, int | None]]:
    """The seq and turn here of each line of the source."""
    return {
        event.refs["source_seq"]: (event.seq, event.turn)
        for event in run.events()
        if event.kind != "state.read" and "source_seq" in event.refs
    } | {
        event.refs["source_seq"]: (event.seq, event.turn)
        for event in run.events(["state.read"])
        if "source_seq" in event.refs
    }


def check_written(run: Run, found: Why, last: int, lines: dict[int, tuple[int, int | None]]) -> None:
    """The root is the write that made the key what it is at the end, with its turn and the reads it names."""
    trace = found.trace
    assert trace.root is not None
    root = trace.nodes[trace.root]
    assert (root.seq, root.turn) == lines[last]
    [event] = run.events(after=root.seq - 1, until=root.seq)
    grounds = {
        (node.key, node.version)
        for edge in trace.causes(root.id)
        if edge.kind == "stated" and (node := trace.nodes[edge.source])
    }
    assert grounds == {tuple(pair) for pair in event.refs["based_on"]}
    behind = [node for edge in trace.causes(root.id) if (node := trace.nodes[edge.source]).kind == "read"]
    assert behind
    assert all(node.actor == root.actor and node.seq < root.seq for node in behind)
    tools = [node for edge in trace.causes(root.id) if (node := trace.nodes[edge.source]).kind == "effect"]
    assert lines[event.refs["source"]["cause"]][0] in {node.seq for node in tools}
    assert any(node.tool == event.refs["source"]["tool"] for node in tools)


def test_wrong_keys(store: Store, answers: list[dict[str, Any]]) -> None:
    """A wrong key that was written: its write, turn and reads; one nobody wrote: so it says, and who read it."""
    written = unwritten = 0
    for answer in answers:
        run = store.run(answer["run"])
        lines = source_seqs(run)
        for key in answer["wrong_keys"]:
            final = answer["final"].get(key)
            found = why(run, key)
            if final is not None:
                written += 1
                assert found.version == final["version"]
                check_written(run, found, final["last_write_seq"], lines)
                continue
            unwritten += 1
            check_unwritten(run, key, found)
    assert (written, unwritten) == COUNTS


def check_unwritten(run: Run, key: str, found: Why) -> None:
    """Nobody wrote the key in the run: at most the seed did; the answer says so, and who read it."""
    records = run.readers(key)
    assert not found.written
    assert found.notes[0].startswith(f"nobody wrote {key!r}")
    assert {one.name: one.reads for one in found.readers} == Counter(record.reader for record in records)
    if found.initial:
        assert (found.version, found.trace.edges, found.agents) == (1, [], ["import"])
        trace = impact(run, key, 1).trace
    else:
        trace = found.trace
    read = {(node.seq, node.actor) for node in trace.nodes.values() if node.kind == "read" and node.key == key}
    assert read == {(record.seq, record.reader) for record in records}


COUNTS = (5, 6)
"""Wrong keys that were written in their run, and that were not."""


def test_marked_roots_among_the_causes(
    store: Store, answers: list[dict[str, Any]], record_testsuite_property: Callable[[str, object], None]
) -> None:
    """How often the marked root of a failure is among the causes is reported; each can be looked up.

    Marks are starts of turns, which are no causes themselves: what can be met is their turn, where a wrong key was
    written.
    """
    seqs = turns = total = met = 0
    kinds: Counter[str] = Counter()
    for answer in answers:
        run, lines = store.run(answer["run"]), None
        for mark in (one for one in answer.get("annotated", ()) if one["root"]):
            lines = lines or source_seqs(run)
            total += 1
            seq, turn = lines[mark["seq"]]
            kinds[next(iter(run.events(after=seq - 1, until=seq))).kind] += 1
            met += any(why(run, key).written for key in answer["wrong_keys"])
            nodes = [node for key in answer["wrong_keys"] for node in why(run, key).trace.nodes.values()]
            seqs += any(node.seq == seq for node in nodes)
            turns += any(node.turn == turn and node.turn is not None for node in nodes)
    told = f"{total}, in {met} a wrong key was written: {turns} among the causes by their turn, {seqs} by their event"
    record_testsuite_property("marked roots", told)
    assert kinds == {"turn.started": total}
    assert (total, met) == (9, 4)

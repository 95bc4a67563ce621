"""Turns on the record: erased, masked, forked, pruned, exported, verified, told and played again like all else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept import walk
from turn_cases import SCHEMA, refused, told

from refold import (
    Conflict,
    Run,
    Store,
    check_bundle,
    erase,
    export,
    fork,
    import_bundle,
    prune,
    story,
    whatif,
)
from refold_replay.verify import verify
from refold_store.events import KINDS

Open = Callable[..., Store]


class Stop(Exception):
    """Ends a turn."""


def play(store: Store) -> Run:
    """A run with every kind of event that turns make: children, drafts that were lost, a conflict, an interrupt."""
    run = store.run("r")
    run.write_state("count", 1, writer="desk")
    with run.turn("ann") as turn:
        turn.read_state("count")
        turn.write_state("count", 2)
        turn.write_state("count", 3)
        turn.write_state("spent", 5)
        with turn.child("bob") as child:
            child.write_state("log", ["a"])
            child.write_state("log", ["b"])
    for attempt in range(2):
        with pytest.raises(Stop), run.turn("ann", number=3 if attempt else None) as turn:
            turn.write_state("secret", "swordfish")
            with turn.child("bob", number=4 if attempt else None) as child:
                child.write_state("count", 9)
            raise Stop("it said swordfish")
    run.turn("bob").begin()
    open_still = run.turn("bob", number=5).begin()
    open_still.append("tool.called", body={"name": "pay", "args": {"amount": 1}})
    open_still.append("tool.returned", body={"name": "pay", "ok": True})
    with pytest.raises(Conflict), run.turn("ann") as turn:
        turn.read_state("count")
        run.write_state("count", 4, writer="desk")
        turn.write_state("count", 10)
    with run.turn("ann") as turn:
        turn.read_state("count")
        turn.write_state("status", "asks")
        turn.at_commit("handoff.made", body={"to": "bob"})
        turn.interrupt([{"id": "ok?", "reason": "a lot"}])
    run.resume({"ok?": True}, by="ada")
    with run.turn("bob") as turn:
        turn.write_state("count", 5)
    run.store._committer.flush()
    return run


@pytest.fixture
def run(open_new: Open) -> Run:
    return play(open_new(SCHEMA))


def test_the_record_is_sound(run: Run) -> None:
    """Every digest, every rule of turns holds; the state is the fold; all kinds that turns make occur."""
    assert walk(run) == []
    assert run.fold() == run.state().json()
    kinds = {event.kind for event in told(run)}
    made = {kind for kind in KINDS if kind and kind.startswith("turn.")} | {"tool.called", "handoff.made"}
    assert made <= kinds


def test_nothing_changed_changes_nothing(run: Run) -> None:
    """`whatif` without a change reports nothing, whatever was drafted and lost."""
    assert not whatif(run)
    changed = whatif(run, skip=["count@1"], owners={"count": "bob"})
    assert [one for one in changed.differences if one.what == "accepted instead"] == []


def test_without_one_of_two_writes(run: Run) -> None:
    """Leaving out one of two writes of a key in a turn keeps the other, and everything else."""
    first, second = [event for event in told(run, "state.written") if event.key == "log"]
    for skipped, kept in ((first, ["b"]), (second, ["a"])):
        found = whatif(run, skip=[skipped.seq])
        assert (found.seqs("removed"), [one.key for one in found.final]) == ([skipped.seq], ["log"])
        assert found.final[0].sides.after == kept
    edited = whatif(run, edit={first.seq: ["x"], second.seq: ["y"]})
    assert edited.final[0].sides.after == ["x", "y"]
    for version in (2, 3):
        assert whatif(run, skip=[f"count@{version}"]).final == []


def test_a_lost_draft_is_erased(run: Run, refold_cli: Callable[..., Any], store_url: str) -> None:
    """A sensitive value that only a lost draft held is masked in what the command line shows, and erased by `erase`."""
    assert ("secret", "rolled_back", "swordfish") in refused(run)
    for command in (("events", "r"), ("log", "r"), ("events", "r", "--json")):
        result = refold_cli(*command, "--store", store_url)
        assert "swordfish" not in result.stdout
    assert "swordfish" in refold_cli("events", "r", "--json", "--show-sensitive", "--store", store_url).stdout
    erase(run.store, "r", key="secret", by="desk", reason="asked")
    assert not [event for event in told(run) if event.text is not None and b"swordfish" in event.text]
    assert walk(run) == []


def test_forks_keep_their_turns(run: Run) -> None:
    """A fork at every seq is sound, and its turns go on from the numbers it inherits."""
    ends = {event.txn or event.seq: event.seq for event in told(run)}
    for at in sorted(ends.values())[2::3]:
        child = fork(run, f"f{at}", at=at, by="desk")
        inherited = max((event.turn or 0 for event in child.events() if event.kind == "turn.started"), default=0)
        if child.interrupts():
            child.dismiss(by="desk")
        with child.turn("ann") as turn:
            turn.write_state("log", [at])
        assert turn.number == inherited + 1
    assert verify(run.store).findings == []


def test_pruned_turns(run: Run) -> None:
    """Old reads of turns are rolled up; turns go on, and begin again what was open."""
    before = run.state().json()
    prune(run, before="end", by="desk")
    assert run.state().json() == before
    assert walk(run) == []
    with run.turn("bob", number=5) as turn:
        turn.write_state("log", ["c"])
    assert turn.attempt == 3


def test_a_bundle_of_turns(run: Run, open_new: Open, tmp_path: Path) -> None:
    """An exported run comes back with its turns: numbers, attempts and interrupts go on."""
    export(run, tmp_path / "r.bundle")
    check_bundle(tmp_path / "r.bundle")
    store = open_new(SCHEMA, url=f"sqlite:///{tmp_path / 'other.db'}")
    import_bundle(store, tmp_path / "r.bundle", by="desk")
    back = store.run("r")
    assert [(one.kind, one.turn, one.refs) for one in back.events()][: run.head_seq()] == [
        (one.kind, one.turn, one.refs) for one in run.events()
    ]
    newest = max(event.turn or 0 for event in run.events())
    assert back.turn("ann").begin().number == newest + 1
    assert back.turn("bob", number=5).begin().attempt == 3
    assert verify(store).findings == []


def test_moments_of_turns(run: Run) -> None:
    """`turn:N` is the run when the turn had ended, never the middle of its commit."""
    assert run.at("turn:1").state().json() == {"count": 3, "log": ["a", "b"], "spent": 5}
    assert run.at("turn:2").state().json() == {"count": 3, "log": ["a", "b"], "spent": 5}


def test_turns_are_told(run: Run) -> None:
    """The story tells of each turn in words, with its attempt and what became of it."""
    lines = "\n".join(one.words for one in story(run))
    for words in (
        r"ann began turn 1\b", r"bob began turn 2, a part of turn 1", r"ann committed turn 1 \(5 writes\)",
        r"ann rolled back turn 3 \(error\)", r"bob began turn 5, attempt 2", r"attempt 1 of turn 5 was abandoned; bob",
        r"ann committed turn \d+ and asks 'ok\?'", r"ada answered 'ok\?'", r"bob calls pay", r"rolled_back",
    ):  # fmt: skip
        assert re.search(words, lines), (words, lines)

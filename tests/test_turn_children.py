"""Turns in turns: a child sees its parent's draft, commits into it, and is durable, or lost, with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from turn_cases import SCHEMA, brief, in_threads, refused, told

from refold import Conflict, Run, Store, TransactionInvalid
from refold_replay.verify import verify
from refold_store.turn_errors import TurnEnded, TurnFenced

Open = Callable[..., Store]


class Stop(Exception):
    """Ends a turn."""


@pytest.fixture
def run(open_new: Open) -> Run:
    return open_new(SCHEMA).run("r")


def test_a_child_sees_the_draft_and_commits_into_it(run: Run) -> None:
    """Two levels: each sees what is drafted above it, nothing is durable before the outermost commits, then all is."""
    with run.turn("ann") as outer:
        outer.write_state("count", 1)
        with outer.child("bob") as middle:
            assert middle.read_state("count").json == 1
            middle.write_state("count", 2)
            with middle.child("ann") as inner:
                assert inner.read_state("count").json == 2
                inner.write_state("log", ["deep"])
            assert outer.read_state("count").json == 1
            assert middle.read_state("log").json == ["deep"]
        assert outer.read_state("count").json == 2
        assert outer.read_state("count").written_by == "bob"
        assert run.state().json() == {}
    assert run.state().json() == {"count": 2, "log": ["deep"]}
    writes = [(event.actor, event.turn, event.key, event.version) for event in told(run, "state.written")]
    assert writes == [("ann", 1, "count", 1), ("bob", 2, "count", 2), ("ann", 3, "log", 1)]
    assert brief(run, "turn.committed") == [("turn.committed", number) for number in (2, 3, 1)]
    assert [[made.key for made in one.written] for one in (outer, middle, inner)] == [
        ["count", "count", "log"], ["count"], ["log"],
    ]  # fmt: skip
    assert [event.refs.get("parent") for event in told(run, "turn.started")] == [None, 1, 2]
    assert verify(run.store).findings == []


def test_a_child_that_fails(run: Run) -> None:
    """Only the child's draft is gone; its parent goes on from its own, and commits."""
    with run.turn("ann") as turn:
        turn.write_state("count", 1)
        with pytest.raises(Stop), turn.child("bob") as child:
            child.write_state("count", 2)
            child.write_state("log", ["x"])
            raise Stop
        assert turn.read_state("count").json == 1
        assert turn.read_state("log").absent
    assert run.state().json() == {"count": 1}
    assert refused(run) == [("count", "rolled_back", 2), ("log", "rolled_back", ["x"])]
    assert brief(run, "turn.rolled_back", "turn.committed") == [("turn.rolled_back", 2), ("turn.committed", 1)]


def test_a_parent_that_fails_after_its_child_committed(run: Run) -> None:
    """Nothing is durable, and both turns are on the record as rolled back; each may be tried again."""
    with pytest.raises(Stop), run.turn("ann") as turn:
        with turn.child("bob") as child:
            child.write_state("count", 2)
            child.at_commit("handoff.made", body={"to": "ann"})
        raise Stop
    assert run.state().json() == {}
    assert refused(run) == [("count", "rolled_back", 2)]
    assert brief(run, "turn.rolled_back", "handoff.made") == [("turn.rolled_back", 2), ("turn.rolled_back", 1)]
    with pytest.raises(TurnEnded):
        child.write_state("count", 1)
    with run.turn("ann", number=1) as again, again.child("bob", number=2) as child:
        child.write_state("count", 3)
    assert (again.attempt, child.number, child.attempt) == (2, 2, 2)
    assert run.state().json() == {"count": 3}
    assert verify(run.store).findings == []


def test_a_parent_that_conflicts(run: Run) -> None:
    """What a child read or overwrote must still hold when its parent commits."""
    run.write_state("count", 1, writer="ann")
    for change in ("read", "overwrite"):
        with pytest.raises(Conflict), run.turn("ann") as turn:
            with turn.child("bob") as child:
                if change == "read":
                    child.read_state("count")
                else:
                    child.write_state("count", 5)
            run.write_state("count", 2, writer="desk")
            turn.write_state("count", 6)
    assert run.state().json() == {"count": 2}


def test_siblings_add_side_by_side(run: Run) -> None:
    """Children in threads that only add to a key lose nothing, in the draft and in the log."""
    with run.turn("ann") as turn:
        turn.write_state("log", ["first"])

        def work(number: int) -> None:
            with turn.child("bob") as child:
                child.write_state("log", [number])
                child.write_state("spent", number)

        in_threads(work, 6)
        assert sorted(turn.read_state("log").json[1:]) == list(range(6))
        assert turn.read_state("spent").json == 15
    assert run.peek("log").json[0] == "first"
    assert len(run.peek("log").json) == 7
    assert run.peek("spent").json == 15
    assert verify(run.store).findings == []


@pytest.mark.parametrize("how", ["overwrite", "draft read", "plain read"])
def test_siblings_that_overwrite_each_other(run: Run, how: str) -> None:
    """A child whose parent's draft of a key it rests on has moved on conflicts, and is lost; its parent goes on."""
    key = "count" if how == "overwrite" else "spent"
    run.write_state("spent", 1, writer="ann")
    with run.turn("ann") as turn:
        if how == "draft read":
            turn.write_state(key, 1)
        one, two = turn.child("bob").begin(), turn.child("ann").begin()
        if how != "overwrite":
            two.read_state(key)
        one.write_state(key, 10)
        two.write_state(key, 20)
        one.commit()
        with pytest.raises(Conflict) as failed:
            two.commit()
        assert failed.value.actual_writer == "bob"
    assert run.peek(key).json == {"overwrite": 10, "draft read": 12, "plain read": 11}[how]
    assert (key, "rolled_back", 20) in refused(run)
    assert verify(run.store).findings == []


def test_grandchildren_join_level_by_level(run: Run) -> None:
    """A grandchild's draft joins its parent's and counts as the parent's own when that joins the outermost."""
    with run.turn("ann") as turn:
        turn.write_state("log", ["a"])
        middle = turn.child("bob").begin()
        with middle.child("ann") as inner:
            inner.write_state("log", ["b"])
            inner.write_state("count", 1)
        turn.write_state("log", ["c"])
        middle.commit()
        assert turn.read_state("log").json == ["a", "c", "b"]
    assert run.state().json() == {"count": 1, "log": ["a", "c", "b"]}


def test_a_child_that_is_open_holds_its_parent(run: Run) -> None:
    """A parent does not commit over an open child; as a block it rolls both back."""
    turn = run.turn("ann").begin()
    child = turn.child("bob").begin()
    with pytest.raises(TransactionInvalid, match="still open"):
        turn.commit()
    child.commit()
    turn.commit()
    with pytest.raises(TransactionInvalid, match="still open"), run.turn("ann") as turn:
        child = turn.child("bob").begin()
        child.write_state("count", 1)
    assert [event.turn for event in told(run, "turn.rolled_back")] == [4, 3]
    assert refused(run) == [("count", "rolled_back", 1)]
    with pytest.raises(TurnEnded):
        turn.child("bob")


def test_a_child_cannot_interrupt(run: Run) -> None:
    """Only the outermost turn may wait for a person: it commits with that."""
    with run.turn("ann") as turn, turn.child("bob") as child, pytest.raises(TransactionInvalid):
        child.interrupt([{"id": "ok?"}])


def test_a_child_is_fenced_with_its_parent(open_new: Open) -> None:
    """Once another process took the parent's turn over, a child cannot begin, append, or commit anything durable."""
    run, other = open_new(SCHEMA).run("r"), open_new(SCHEMA).run("r")
    turn = run.turn("ann").begin()
    child = turn.child("bob").begin()
    child.write_state("count", 1)
    with other.turn("ann", number=turn.number) as taken:
        with pytest.raises(TurnFenced):
            child.append("model.answered")
        with pytest.raises(TurnFenced):
            turn.child("bob").begin()
        child.commit()
        with pytest.raises(TurnFenced):
            turn.commit()
        taken.write_state("count", 2)
    assert run.state().json() == {"count": 2}
    assert verify(run.store).findings == []

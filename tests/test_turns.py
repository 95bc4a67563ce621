"""Turns: reads with their turn's number, drafts that commit together or leave no trace, children, conflicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from turn_cases import SCHEMA, brief, refused, told

from refold import (
    ABSENT,
    Conflict,
    InvalidValue,
    InvariantBroken,
    NotOwner,
    Run,
    SchemaChanged,
    Store,
    TransactionInvalid,
    compile_schema,
)
from refold_replay.verify import verify
from refold_store.errors import ReadOnlyStore, ReducerError
from refold_store.turn_errors import TurnEnded, TurnUnknown

Open = Callable[..., Store]


@pytest.fixture
def run(open_new: Open) -> Run:
    return open_new(SCHEMA).run("r")


class Stop(Exception):
    """Ends a turn."""


# --- one turn --------------------------------------------------------------------------------


def test_a_turn_commits_all_in_one_transaction(run: Run) -> None:
    """Everything drafted gets its place at the commit, contiguous, with the turn's number and its end."""
    with run.turn("ann") as turn:
        turn.write_state("count", 1)
        turn.write_state("log", ["a"], basis="heard")
        assert run.state().json() == {}
    assert run.state().json() == {"count": 1, "log": ["a"]}
    assert brief(run)[2:] == [("turn.started", 1), ("state.written", 1), ("state.written", 1), ("turn.committed", 1)]
    assert {event.txn for event in told(run)[3:]} == {turn.written[0].seq}
    assert [(made.key, made.version) for made in turn.written] == [("count", 1), ("log", 1)]
    assert verify(run.store).findings == []


def test_a_key_may_be_written_again(run: Run) -> None:
    """Several writes of one key become a version each; the turn sees the newest draft."""
    with run.turn("ann") as turn:
        for number in (1, 2, 3):
            turn.write_state("count", number)
            turn.write_state("log", [number])
            assert turn.read_state("count").json == number
        assert turn.read_state("log").json == [1, 2, 3]
        turn.delete_state("status")
        turn.write_state("spent", 2)
        turn.write_state("spent", 3)
    assert [read.json for read in run.history("count")] == [1, 2, 3]
    assert run.state().json() == {"count": 3, "log": [1, 2, 3], "spent": 5}
    assert [(made.key, made.version) for made in turn.written if made.key == "log"] == [("log", n) for n in (1, 2, 3)]
    assert run.fold() == run.state().json()
    assert verify(run.store).findings == []


def test_reads_carry_the_turn(run: Run) -> None:
    """A read of a turn is recorded with its number; a read of the draft names its base and says that it is one."""
    run.write_state("count", 1, writer="ann")
    with run.turn("ann") as turn:
        assert (turn.read_state("count").version, turn.read_state("count").json) == (1, 1)
        turn.write_state("count", 2)
        draft = turn.read_state("count")
        assert (draft.version, draft.json, draft.text, draft.absent) == (1, 2, b"2", False)
        assert set(turn.read_many(["count", "status"])) == {"count", "status"}
    reads = told(run, "state.read")
    assert [event.turn for event in reads] == [1] * len(reads)
    assert [(event.version, event.refs.get("draft")) for event in reads if event.key == "count"] == [
        (1, None), (1, None), (1, 1), (1, 1),
    ]  # fmt: skip
    assert [record.stale for record in run.readers("count")] == [False] * 4


def test_a_draft_read_is_stale_if_its_base_moved(run: Run) -> None:
    """A read of a draft whose key has moved on meanwhile was stale, and the turn conflicts."""
    with pytest.raises(Conflict), run.turn("ann") as turn:
        turn.write_state("count", 1)
        run.write_state("count", 5, writer="bob")
        turn.read_state("count")
    assert [record.stale for record in run.readers("count")] == [True]


def test_an_absent_key_and_a_deleted_draft(run: Run) -> None:
    """Absent is not None, in a draft as well."""
    run.write_state("count", 1, writer="ann")
    with run.turn("ann") as turn:
        turn.delete_state("count")
        read = turn.read_state("count")
        assert (read.absent, read.value, read.text) == (True, ABSENT, b"")
    assert run.peek("count").deleted


def test_a_failed_turn_leaves_no_trace_in_the_state(run: Run) -> None:
    """What was drafted is recorded as refused, with its update, and the attempt as rolled back, with the reason."""
    run.write_state("count", 1, writer="ann")
    with pytest.raises(Stop), run.turn("ann") as turn:
        turn.write_state("count", 2)
        turn.write_state("log", ["x"])
        raise Stop("no")
    assert run.state().json() == run.fold() == {"count": 1}
    assert refused(run) == [("count", "rolled_back", 2), ("log", "rolled_back", ["x"])]
    [end] = told(run, "turn.rolled_back")
    assert end.body == {"reason": "error", "error": "Stop", "message": "no"}
    assert {one.turn for one in told(run, "state.refused")} == {1}
    with pytest.raises(TurnEnded):
        turn.write_state("count", 3)
    assert verify(run.store).findings == []


def test_a_refused_write_keeps_the_draft_and_is_recorded(run: Run) -> None:
    """A refusal while drafting is on the record with the turn; the draft stays as it was, and may still commit."""
    with run.turn("ann") as turn:
        turn.write_state("count", 1)
        with pytest.raises(InvalidValue):
            turn.write_state("count", "many")
        with pytest.raises(NotOwner):
            turn.write_state("hers", 1)
        assert turn.read_state("count").json == 1
    assert refused(run) == [("count", "invalid", "many"), ("hers", "owner", 1)]
    assert [one.turn for one in told(run, "state.refused")] == [1, 1]
    with pytest.raises(InvalidValue), run.turn("ann") as turn:
        turn.write_state("count", 2)
        turn.write_state("count", "many")
    assert refused(run)[2:] == [("count", "invalid", "many"), ("count", "rolled_back", 2)]


def test_invariants_are_checked_at_the_commit(run: Run) -> None:
    """A rule across keys may be broken within the turn, not at its end; the refusal names the write to blame."""
    with run.turn("ann") as turn:
        turn.write_state("low", 5)
        turn.write_state("high", 3)
        turn.write_state("high", 7)
    with pytest.raises(InvariantBroken), run.turn("ann") as turn:
        turn.write_state("low", 6)
        turn.write_state("low", 9)
    assert run.state().json() == {"low": 5, "high": 7}
    assert refused(run) == [("low", "invariant", 9), ("low", "rolled_back", 6)]


def test_an_invariant_over_sums_of_several_updates(open_new: Open) -> None:
    """Several updates of an accumulating key count together when the rule across keys is checked."""
    keys = {"spent": {"owner": "ann", "type": "integer", "reducer": "add"}, "limit": {"owner": "ann"}}
    run = open_new({"keys": keys, "invariants": {"limit": "spent <= limit"}}).run("r")
    run.open(opened_by="ann", initial={"limit": 10, "spent": 1})
    with pytest.raises(InvariantBroken), run.turn("ann") as turn:
        for _ in range(5):
            turn.write_state("spent", 2)
    with run.turn("ann") as turn:
        for _ in range(4):
            turn.write_state("spent", 2)
    assert run.peek("spent").json == 9


def test_an_invariant_over_merged_updates(open_new: Open) -> None:
    """An update that breaks a rule is found although a later one of the same turn does not touch the rule."""
    keys = {"sums": {"owner": "ann", "type": "object", "reducer": "merge"}, "limit": {"owner": "ann"}}
    run = open_new({"keys": keys, "invariants": {"limit": "sums['paid'] <= limit"}}).run("r")
    run.open(opened_by="ann", initial={"limit": 10, "sums": {"paid": 1}})
    with pytest.raises(InvariantBroken), run.turn("ann") as turn:
        turn.write_state("sums", {"paid": 99})
        turn.write_state("sums", {"other": 1})
    with run.turn("ann") as turn:
        turn.write_state("sums", {"paid": 99})
        turn.write_state("sums", {"paid": 9})
    assert run.peek("sums").json == {"paid": 9}


def test_keys_of_a_scope_are_refused_with_the_next_step(run: Run) -> None:
    """A turn lies in one run: a key of another scope is refused, and the error says what to call."""
    with run.turn("ann") as turn, pytest.raises(TransactionInvalid, match=r"run\.write_state"):
        turn.write_state("house", 1)
    run.write_state("house", 1, writer="ann")
    with run.turn("ann") as turn:
        assert turn.read_state("house").json == 1


def test_an_erased_base_value(open_new: Open) -> None:
    """A turn writes and adds to keys whose values were erased, as a write outside a turn does."""
    from refold import erase

    store = open_new(SCHEMA)
    run = store.run("r")
    run.write_state("log", ["a"], writer="ann")
    run.write_state("count", 1, writer="ann")
    erase(store, "r", key="log", by="desk", reason="asked")
    erase(store, "r", key="count", by="desk", reason="asked")
    with run.turn("ann") as turn:
        turn.write_state("log", ["b"])
        turn.write_state("count", 2)
        assert (turn.read_state("log").json, turn.read_state("count").json) == (["b"], 2)
    assert run.state().json() == {"log": ["b"], "count": 2}
    assert verify(store).findings == []


def test_a_read_only_store_begins_no_turn(open_new: Open) -> None:
    """A turn is a writer's."""
    open_new(SCHEMA).run("r").write_state("count", 1, writer="ann")
    with pytest.raises(ReadOnlyStore):
        open_new(SCHEMA, read_only=True).run("r").turn("ann").begin()


def test_use_out_of_order(run: Run) -> None:
    """A turn is used after it began and before it ended, and begun once; a number must have begun before."""
    turn = run.turn("ann")
    with pytest.raises(TransactionInvalid):
        turn.write_state("count", 1)
    with turn, pytest.raises(TransactionInvalid):
        turn.begin()
    with pytest.raises(TurnEnded):
        turn.read_state("count")
    with pytest.raises(TurnEnded):
        run.turn("ann", number=1).begin()
    with pytest.raises(TurnUnknown, match="newest is 1"):
        run.turn("ann", number=7).begin()
    assert turn.number == 1
    assert run.turn("ann").begin().number == 2


def test_other_events_of_a_turn(run: Run) -> None:
    """`append` is on the record at once and stays; `at_commit` and `conclude` come with the commit only."""
    with run.turn("ann", body={"by": "me"}) as turn:
        seq = turn.append("model.answered", body={"text": "hi"})
        turn.at_commit("handoff.made", body={"to": "bob"})
        turn.conclude({"outcome": "done"})
        turn.write_state("count", 1)
    events = told(run)
    assert events[seq - 1].kind == "model.answered"
    assert events[2].body == {"by": "me"}
    assert [event.kind for event in events[-3:]] == ["state.written", "handoff.made", "turn.committed"]
    assert events[-1].body == {"writes": 1, "outcome": "done"}
    assert verify(run.store).findings == []
    with pytest.raises(Stop), run.turn("ann") as turn:
        turn.append("model.answered", body={"text": "ho"})
        turn.at_commit("handoff.made", body={"to": "bob"})
        raise Stop
    assert [kind for kind, number in brief(run) if number == 2] == [
        "turn.started", "model.answered", "turn.rolled_back",
    ]  # fmt: skip


def test_a_draft_read_is_a_ground(run: Run) -> None:
    """A write may be based on a drafted value: it names the version that the draft becomes."""
    run.write_state("count", 1, writer="ann")
    with run.turn("ann") as turn:
        turn.write_state("count", 2)
        turn.write_state("status", "two", based_on=[turn.read_state("count")])
        turn.write_state("spent", 2, based_on=turn.read_state("status"))
    grounds = {event.key: event.refs.get("based_on") for event in told(run, "state.written")}
    assert grounds["status"] == [["count", 2]]
    assert grounds["spent"] == [["status", 1]]


# --- conflicts -------------------------------------------------------------------------------


def test_a_drafted_key_that_was_read_conflicts(run: Run) -> None:
    """A key that moved after the turn read it conflicts at the commit, even if it was drafted after the move."""
    run.write_state("count", 1, writer="bob")
    with pytest.raises(Conflict) as failed, run.turn("ann") as turn:
        turn.read_state("count")
        run.write_state("count", 2, writer="bob")
        turn.write_state("count", 10)
        turn.write_state("status", "x")
    assert (failed.value.expected, failed.value.actual, failed.value.actual_writer) == (1, 2, "bob")
    assert run.state().json() == {"count": 2}
    assert refused(run) == [("count", "conflict", 10), ("status", "rolled_back", "x")]
    assert told(run, "turn.rolled_back")[0].body["reason"] == "conflict"
    assert verify(run.store).findings == []


def test_an_overwritten_key_conflicts(run: Run) -> None:
    """A key that is overwritten unread must still be where it was when it was drafted."""
    with pytest.raises(Conflict), run.turn("ann") as turn:
        turn.write_state("count", 10)
        run.write_state("count", 2, writer="bob")
    with run.turn("ann") as turn:
        run.write_state("status", "moved", writer="bob")  # neither read nor written here
        turn.write_state("count", 10)
    assert run.state().json() == {"count": 10, "status": "moved"}


@pytest.mark.parametrize("look", ["read", "draft", "many"])
def test_accumulating_keys_conflict_only_if_read(run: Run, look: str) -> None:
    """Updates of keys that accumulate and were never read all stay; once read, in the draft too, they conflict."""
    run.write_state("log", ["a"], writer="bob")
    with run.turn("ann") as turn:
        turn.write_state("log", ["b"])
        turn.write_state("spent", 1)
        run.write_state("log", ["c"], writer="bob")
        run.write_state("spent", 10, writer="bob")
        turn.write_state("log", ["d"])
        turn.write_state("spent", 100)
    assert run.peek("spent").json == 111
    assert run.peek("log").json == ["a", "c", "b", "d"]
    with pytest.raises(Conflict), run.turn("ann") as turn:
        if look == "read":
            turn.read_state("log")
        turn.write_state("log", ["e"])
        if look == "draft":
            turn.read_state("log")
        elif look == "many":
            turn.read_many(["log"])
        run.write_state("log", ["f"], writer="bob")
    assert run.peek("log").json == ["a", "c", "b", "d", "f"]
    assert verify(run.store).findings == []


def test_turns_side_by_side(run: Run) -> None:
    """Two open turns do not see each other's drafts; the second to commit a common key conflicts."""
    one, two = run.turn("ann").begin(), run.turn("bob").begin()
    one.write_state("count", 1)
    assert two.read_state("count").absent
    two.write_state("count", 2)
    one.commit()
    with pytest.raises(Conflict):
        two.commit()
    assert run.state().json() == {"count": 1}


def test_a_run_goes_on_under_a_new_schema(open_new: Open) -> None:
    """A turn under a schema the run has left is refused and rolled back; the run goes on under the new one."""
    old = open_new(SCHEMA).run("r")
    turn = old.turn("ann").begin()
    turn.write_state("count", 1)
    wider: dict[str, Any] = {"keys": {"count": {"owner": "ann"}, "more": {"owner": "ann"}}}
    new = open_new(compile_schema(wider)).run("r")
    with new.turn("ann") as later:
        later.write_state("more", 1)
    with pytest.raises(SchemaChanged):
        turn.commit()
    with new.turn("ann") as later:
        later.write_state("count", 5)
    assert new.state().json() == {"more": 1, "count": 5}
    assert refused(new) == [("count", "schema_changed", 1)]
    assert [one.turn for one in told(new, "turn.rolled_back")] == [1]
    assert verify(new.store).findings == []


def test_a_reducer_that_refuses(open_new: Open) -> None:
    """A reducer that cannot take an update refuses it while drafting, against the draft."""
    keys = {"total": {"owner": "ann", "type": "integer", "reducer": "add"}}
    run = open_new({"keys": keys}).run("r")
    with run.turn("ann") as turn:
        turn.write_state("total", 1)
        with pytest.raises((InvalidValue, ReducerError)):
            turn.write_state("total", "one")
        assert turn.read_state("total").json == 1

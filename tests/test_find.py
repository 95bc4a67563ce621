"""Find: the moments at which a condition became true."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold import ConditionError, Owner, StateSchema, Store, compile_condition, open_store
from refold_replay.finding import find
from refold_store.erasing import erase
from refold_store.forking import fork

Open = Callable[..., Store]
KEYS: dict[str, Any] = {
    "a": {"owner": "w", "type": "any"},
    "b": {"owner": "w", "type": "any"},
    "other": {"owner": "w", "type": "any"},
    "list": {"owner": "w", "type": "array", "reducer": "append"},
    "order/{id}": {"owner": "w", "type": "object"},
    "house": {"owner": "w", "type": "any", "scope": "tenant"},
}


class Dated(StateSchema):
    """Keys whose stored texts stand for something else."""

    due: Annotated[date, Owner("w")]
    paid: Annotated[date, Owner("w")]
    opened: Annotated[datetime, Owner("w")]
    amount: Annotated[Decimal, Owner("w")]


def places(found: Any) -> list[tuple[int, int | None]]:
    """(from, until) of each stretch."""
    return [(one.seq, one.ended_seq) for one in found]


def test_first_last_and_all(open_new: Open) -> None:
    """Each stretch in which it held is told with its begin, its end, the write that made it so, and the values."""
    run = open_new({"keys": KEYS}).run("r")
    seqs = [run.write_state("a", value, writer="w", basis=f"v{value}").seq for value in (1, -1, -2, 3, -4)]
    run.write_state("other", 1, writer="w")
    every = find(run, "a < 0", which="all")
    assert places(every) == [(seqs[1], seqs[3]), (seqs[4], None)]
    assert places(find(run, "a < 0")) == [(seqs[1], seqs[3])]
    assert places(find(run, "a < 0", which="last")) == [(seqs[4], None)]
    (wrote,) = every.found[0].writes
    assert (wrote.seq, wrote.key, wrote.version, wrote.writer, wrote.basis) == (seqs[1], "a", 2, "w", "v-1")
    assert (every.found[0].values, every.at_seq, every.keys) == ({"a": -1}, run.head_seq(), ["a"])
    assert every.found[0].recorded_at == run.history("a")[1].recorded_at
    assert places(find(run, "a < 0", which="all", at="a@2")) == [(seqs[1], None)]
    assert not find(run, "a > 100").found


def test_a_missing_key_is_unknown_and_not_true(open_new: Open) -> None:
    """Neither a comparison nor its opposite holds before the key is there; a delete ends what held."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("b", 1, writer="w")
    made = run.write_state("a", 5, writer="w")
    gone = run.delete_state("a", writer="w")
    assert places(find(run, "not a < 3", which="all")) == [(made.seq, gone.seq)]
    assert places(find(run, "a == 5 or b == 1", which="all")) == [(made.seq - 1, None)]
    assert find(run, "a == 5 or b == 1").found[0].values == {"b": 1}


def test_the_middle_of_a_transaction_is_never_seen(open_new: Open) -> None:
    """What holds only between two writes of one transaction never became true; the moment is the transaction's end."""
    run = open_new({"keys": KEYS}).run("r")
    with run.transaction() as tx:
        tx.write_state("a", 1, writer="w")
        tx.write_state("b", 1, writer="w")
    with run.transaction() as tx:
        tx.write_state("a", 2, writer="w")
        tx.write_state("b", 2, writer="w")
        tx.write_state("other", 2, writer="w")
    assert not find(run, "a != b", which="all").found
    (found,) = find(run, "b == 2 and a == 2")
    assert found.seq == run.head_seq()
    assert [(one.key, one.version) for one in found.writes] == [("a", 2), ("b", 2)]
    assert run.at(found.seq).state().json()["other"] == 2
    assert find(run, "a == 2", at=found.seq - 2).at_seq == found.seq - 2


def test_values_are_compared_as_what_they_are(open_new: Open) -> None:
    """Dates with dates, decimals with numbers; the functions of a condition make them from texts."""
    run = open_new(Dated).run("r")
    run.write_state("due", date(2026, 9, 1), writer="w")
    run.write_state("paid", date(2026, 10, 1), writer="w")
    run.write_state("amount", Decimal("9.50"), writer="w")
    run.write_state("opened", datetime(2026, 3, 1, 12, tzinfo=UTC), writer="w")
    for condition in (
        "paid > due",
        "amount < 10",
        'amount == decimal("9.5")',
        'due == date("2026-09-01")',
        'opened == datetime("2026-03-01T13:00:00+01:00")',
    ):
        assert len(find(run, condition)) == 1, condition
    assert not find(run, 'opened > datetime("2026-03-01T12:00:00Z")').found


def test_updates_are_folded(open_new: Open) -> None:
    """A key that stores updates is judged by its value, families by their members."""
    run = open_new({"keys": KEYS}).run("r")
    seqs = [run.write_state("list", [number], writer="w").seq for number in range(5)]
    order = run.write_state("order/7", {"total": 9}, writer="w")
    assert places(find(run, "len(list) >= 3", which="all")) == [(seqs[2], None)]
    assert find(run, "len(list) >= 3").found[0].values == {"list": [0, 1, 2]}
    assert places(find(run, 'state["order/7"]["total"] > 5')) == [(order.seq, None)]
    assert not find(run, 'state["order/8"]["total"] > 5').found


def test_what_has_no_meaning_counts_as_unknown_and_is_told(open_new: Open) -> None:
    """A text against a number ends no search; the answer counts such steps and names the first."""
    run = open_new({"keys": KEYS}).run("r")
    bad = run.write_state("a", "text", writer="w")
    good = run.write_state("a", 9, writer="w")
    found = find(run, "a > 5")
    assert places(found) == [(good.seq, None)]
    assert (found.unjudged, found.unjudged_first and found.unjudged_first[0]) == (1, bad.seq)
    assert find(run, "a > 5", at=bad.seq).unjudged == 1


def test_names_must_be_known(open_new: Open) -> None:
    """An unknown name is an error with near names, so is a key of another scope; an older schema's key is known."""
    store = open_new({"keys": KEYS})
    run = store.run("r")
    run.write_state("other", 1, writer="w")
    with pytest.raises(ConditionError, match="did you mean other"):
        find(run, "othr == 1")
    with pytest.raises(ConditionError, match="another run"):
        find(run, "house == 1")
    newer = open_new({"keys": {"a": KEYS["a"], "other2": KEYS["a"], "other": KEYS["other"]}}).run("r")
    newer.write_state("a", 1, writer="w")
    assert len(find(newer, "other == 1")) == 1
    assert not find(newer, "b == 1").found


def test_an_erased_value_is_left_out(open_new: Open) -> None:
    """What was erased makes the condition unknown, and the answer says so; an erased update changes nothing."""
    run = open_new({"keys": KEYS}).run("r")
    run.write_state("a", 1, writer="w")
    lost = run.write_state("a", 2, writer="w")
    run.write_state("list", [1], writer="w")
    update = run.write_state("list", [2], writer="w")
    for key in ("a", "list"):
        erase(run.store, "r", key=key, version=2, by="dpo", reason="asked for")
    assert places(find(run, "a == 1", which="all")) == [(lost.seq - 1, lost.seq)]
    search = find(run, "a == 2")
    assert not search.found
    assert (search.unjudged, search.unjudged_first) == (1, (lost.seq, "a@2 was erased"))
    run.write_state("a", 3, writer="w")
    assert find(run, "a == 3").unjudged == 1
    assert find(run, "list == [1, 2]").unjudged_first == (update.seq, "list@2 was erased")
    assert places(find(run, "len(list) == 1", which="all")) == [(update.seq - 1, None)]


def test_a_fork_is_searched_through_its_past(open_new: Open) -> None:
    """A fork's stretch may begin in what it inherits; a transaction there ends where it ended."""
    run = open_new({"keys": KEYS}).run("r")
    with run.transaction() as tx:
        tx.write_state("a", 1, writer="w")
        tx.write_state("other", 1, writer="w")
    other = fork(run, "f", by="dana")
    end = other.write_state("a", 2, writer="w")
    assert places(find(other, "a == 1", which="all")) == [(run.head_seq(), end.seq)]
    assert places(find(run, "a == 1", which="all")) == [(run.head_seq(), None)]


HISTORY = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(-1, 1)), min_size=1, max_size=3), max_size=12
)


CONDITIONS = ("a < 0", "a == b", "not (a > b)", "a == 1 or b == 1", "a and not b")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORY, condition=st.sampled_from(CONDITIONS))
def test_it_agrees_with_looking_at_every_moment(history: Any, condition: str) -> None:
    """For random histories the stretches are those a look at the state of each moment gives."""
    with open_store("sqlite://", {"keys": KEYS}) as store:
        run = store.run("r")
        ends = [0]
        for unit in history:
            with run.transaction() as tx:
                for key, value in dict(unit).items():
                    tx.delete_state(key, writer="w") if value is None else tx.write_state(key, value, writer="w")
            ends.append(run.head_seq())
        compiled = compile_condition(condition)
        expected: list[tuple[int, int | None]] = []
        held = False
        for seq in ends:
            holds = compiled(run.fold(until=seq)) is True
            if holds and not held:
                expected.append((seq, None))
            elif held and not holds:
                expected[-1] = (expected[-1][0], seq)
            held = holds
        assert places(find(run, condition, which="all")) == expected

"""Interrupts: a turn commits and waits for answers; while they are open no turn begins. It survives a restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kept import Clock
from turn_cases import SCHEMA, brief, in_threads, told

from refold import Conflict, Run, Store, TransactionInvalid
from refold_replay.verify import verify
from refold_store.errors import NameInvalid, ReadOnlyStore
from refold_store.turn_errors import InterruptInvalid, InterruptsOpen, TurnEnded

Open = Callable[..., Store]
ASKED = [{"id": "pay?", "reason": "over the limit", "amount": 12000}, {"id": "who?"}]


class Stop(Exception):
    """Ends a turn."""


@pytest.fixture
def run(open_new: Open) -> Run:
    return open_new(SCHEMA).run("r")


def ask(run: Run, *asked: dict[str, Any]) -> int:
    """A turn that writes and interrupts; its number."""
    with run.turn("ann") as turn:
        turn.write_state("count", 1)
        turn.interrupt(list(asked) or ASKED)
    return turn.number


def test_an_interrupt_commits_and_waits(run: Run) -> None:
    """T7: the draft is committed; `set_state` works, new turns are refused; answers to all of them let turns begin."""
    number = ask(run)
    assert run.state().json() == {"count": 1}
    assert {name: (one.turn, one.question) for name, one in run.interrupts().items()} == {
        "pay?": (number, ASKED[0]), "who?": (number, ASKED[1]),
    }  # fmt: skip
    run.set_state({"status": "waiting"}, writer="desk")
    with pytest.raises(InterruptsOpen) as failed:
        run.turn("bob").begin()
    assert failed.value.ids == ("pay?", "who?")
    run.resume({"pay?": True, "who?": "ada"}, by="ada")
    assert run.interrupts() == {}
    with pytest.raises(TurnEnded):
        run.turn("ann", number=number).begin()
    with run.turn("bob") as turn:
        turn.write_state("count", 2)
    [resumed] = told(run, "turn.resumed")
    assert (resumed.actor, resumed.turn, resumed.body) == ("ada", 1, {"answers": {"pay?": True, "who?": "ada"}})
    assert verify(run.store).findings == []


WRONG: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    ({}, ("pay?", "who?"), ()),
    ({"pay?": True}, ("who?",), ()),
    ({"pay?": True, "who?": 1, "what?": 2}, (), ("what?",)),
    ({"pay": True, "who?": 1}, ("pay?",), ("pay",)),
]


@pytest.mark.parametrize(("answers", "missing", "unknown"), WRONG)
def test_answers_that_do_not_fit(
    run: Run, answers: dict[str, Any], missing: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    """T7: incomplete or unknown answers raise before anything happens."""
    ask(run)
    head = run.head_seq()
    with pytest.raises(InterruptInvalid) as failed:
        run.resume(answers, by="ada")
    assert (failed.value.missing, failed.value.unknown) == (missing, unknown)
    assert run.head_seq() == head
    assert len(run.interrupts()) == 2


def test_the_same_resume_again_is_a_no_op(run: Run) -> None:
    """T7: the same answers again do nothing; other answers, or the same ones later on, raise."""
    answers = {"pay?": 1, "who?": [1.0, None]}
    ask(run)
    run.resume(answers, by="ada")
    head = run.head_seq()
    run.resume(dict(reversed(answers.items())), by="ada")
    assert run.head_seq() == head
    for second in ({"pay?": 1.0, "who?": [1.0, None]}, {"pay?": 1}, {}):
        with pytest.raises(InterruptInvalid):
            run.resume(second, by="ada")
    ask(run, {"id": "more?"})
    with pytest.raises(InterruptInvalid) as stale:
        run.resume(answers, by="ada")
    assert (stale.value.missing, stale.value.unknown) == (("more?",), ("pay?", "who?"))
    assert brief(run, "turn.resumed") == [("turn.resumed", 1)]


def test_expired_interrupts(open_new: Open, clock: Clock) -> None:
    """T7: an interrupt that has expired cannot be answered, only dismissed; that is on the record."""
    run = open_new(SCHEMA, clock=clock).run("r")
    ask(run, {"id": "quick?", "expires_at": clock.now + 1_000_000}, {"id": "slow?", "expires_at": None})
    clock.now += 2_000_000
    with pytest.raises(InterruptInvalid, match="dismiss") as failed:
        run.resume({"quick?": 1, "slow?": 2}, by="ada")
    assert failed.value.expired == ("quick?",)
    run.dismiss(by="ada")
    assert told(run, "turn.resumed")[0].body == {"dismissed": True}
    assert run.interrupts() == {}
    run.dismiss(by="ada")
    with pytest.raises(InterruptInvalid):
        run.resume({"quick?": 1}, by="ada")
    run.turn("bob").begin()


def test_an_interrupt_in_time(open_new: Open, clock: Clock) -> None:
    """Before it expires it is answered like any other."""
    run = open_new(SCHEMA, clock=clock).run("r")
    ask(run, {"id": "quick?", "expires_at": clock.now + 60_000_000})
    run.resume({"quick?": 1}, by="ada")
    assert run.interrupts() == {}


def test_all_of_it_survives_a_restart(open_new: Open) -> None:
    """T7: a store opened anew knows what waits, refuses turns, takes the answers, and knows that they were given."""
    ask(open_new(SCHEMA).run("r"))
    run = open_new(SCHEMA).run("r")
    assert sorted(run.interrupts()) == ["pay?", "who?"]
    with pytest.raises(InterruptsOpen):
        run.turn("bob").begin()
    answers = {"pay?": True, "who?": None}
    open_new(SCHEMA).run("r").resume(answers, by="ada")
    last = open_new(SCHEMA).run("r")
    last.resume(answers, by="ada")
    run.resume(answers, by="ada")
    with pytest.raises(InterruptInvalid):
        last.resume({"pay?": False, "who?": None}, by="eve")
    assert run.turn("bob").begin().number == last.turn("bob").begin().number - 1 == 2


def test_a_failure_after_a_resume(run: Run) -> None:
    """T8: a turn that fails after a resume is tried again in the same run; what it had done is on the record."""
    ask(run, {"id": "ok?"})
    run.resume({"ok?": True}, by="ada")
    done: list[int] = []

    def work(turn: Any) -> None:
        finished = [event.seq for event in run.events(["tool.returned"]) if event.turn == turn.number]
        if not finished:
            done.append(turn.append("tool.returned", body={"name": "pay", "result": "paid"}))
        turn.write_state("status", "paid")
        if turn.attempt < 3:
            raise Stop

    run.run_turn("ann", work, retries=2, pause=lambda _s: None)
    assert len(done) == len(told(run, "tool.returned")) == 1
    assert run.state().json() == {"count": 1, "status": "paid"}
    assert verify(run.store).findings == []


def test_two_turns_interrupt(run: Run) -> None:
    """Turns that were open side by side may both ask: one resume answers all."""
    one, two = run.turn("ann").begin(), run.turn("bob").begin()
    one.interrupt([{"id": "a?"}])
    two.interrupt([{"id": "b?"}])
    assert list(run.interrupts()) == ["a?", "b?"]
    with pytest.raises(InterruptInvalid):
        run.resume({"a?": 1}, by="ada")
    run.resume({"a?": 1, "b?": 2}, by="ada")
    assert brief(run, "turn.resumed") == [("turn.resumed", 2)]


def test_one_of_many_resumes(open_new: Open) -> None:
    """Of several people who answer at once exactly one does; the others hear that it is answered."""
    runs = [open_new(SCHEMA).run("r") for _ in range(4)]
    ask(runs[0], {"id": "ok?"})

    def answer(number: int) -> bool:
        try:
            runs[number].resume({"ok?": number}, by=f"w{number}")
        except InterruptInvalid:
            return False
        return True

    assert sorted(in_threads(answer, 4)) == [False, False, False, True]
    assert len(told(runs[0], "turn.resumed")) == 1
    assert verify(runs[0].store).findings == []


def test_an_interrupt_that_cannot_commit(run: Run) -> None:
    """An interrupt whose draft conflicts asks nothing; one that is not well-formed leaves the turn open."""
    with pytest.raises(Conflict), run.turn("ann") as turn:
        turn.write_state("count", 1)
        run.write_state("count", 2, writer="bob")
        turn.interrupt([{"id": "ok?"}])
    assert run.interrupts() == {}
    with run.turn("ann") as turn:
        turn.write_state("count", 3)
        for wrong in ([], [{"reason": "no id"}], [{"id": "a"}, {"id": "a"}], [{"id": "a", "expires_at": "now"}]):
            with pytest.raises(TransactionInvalid):
                turn.interrupt(wrong)
        with pytest.raises(NameInvalid):
            turn.interrupt([{"id": "\0"}])
    assert run.state().json() == {"count": 3}


def test_answers_to_nothing(open_new: Open) -> None:
    """A run that was never opened, or that asks nothing, takes no answers; neither does a read-only store."""
    run = open_new(SCHEMA).run("r")
    assert run.interrupts() == {}
    with pytest.raises(InterruptInvalid):
        run.resume({"ok?": 1}, by="ada")
    with run.turn("ann"):
        pass
    with pytest.raises(InterruptInvalid):
        run.resume({}, by="ada")
    with pytest.raises(ReadOnlyStore):
        open_new(SCHEMA, read_only=True).run("r").resume({"ok?": 1}, by="ada")


def test_an_interrupt_crosses_a_fork(run: Run) -> None:
    """A fork of a run that waits, waits too, and is answered on its own."""
    from refold import fork

    ask(run, {"id": "ok?"})
    child = fork(run, "f", by="ann")
    with pytest.raises(InterruptsOpen):
        child.turn("ann").begin()
    child.resume({"ok?": 1}, by="ada")
    child.turn("ann").begin().commit()
    assert list(run.interrupts()) == ["ok?"]
    assert verify(run.store).findings == []

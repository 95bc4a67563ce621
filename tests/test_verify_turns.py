"""Verification of turns: what a writer that signs well breaks of their rules is found and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from forge import Cells, Forge, forging
from sound import found
from turn_cases import SCHEMA

from refold import open_store
from refold_replay.verify import verify
from refold_store.events import (
    KIND_ID,
    TURN_COMMITTED,
    TURN_ROLLED_BACK,
    TURN_STARTED,
    WRITTEN,
)


class Stop(Exception):
    """Ends a turn."""


@pytest.fixture
def url(store_url: str) -> str:
    """A sound store: a turn that wrote a key twice, one tried again after it failed, a transaction, an open turn."""
    with open_store(store_url, SCHEMA) as store:
        run = store.run("r")
        with run.turn("ann") as turn:
            turn.write_state("count", 1)
            turn.write_state("count", 2)
        with pytest.raises(Stop), run.turn("ann") as turn:
            turn.write_state("count", 3)
            raise Stop
        with run.turn("ann", number=2) as turn:
            turn.write_state("log", ["a"])
        with run.transaction() as tx:
            tx.write_state("count", 4, writer="ann")
            tx.write_state("log", ["b"], writer="ann")
        run.turn("bob").begin()
    assert verify(store_url).findings == []
    return store_url


def of_turn(rows: list[Cells], kind: int, turn: int, nth: int = 0) -> Cells:
    """The nth row of a kind and a turn."""
    return [row for row in rows if row["kind"] == kind and row["turn"] == turn][nth]


def _attempt_of_an_end(rows: list[Cells], _forge: Forge) -> Cells:
    row = of_turn(rows, TURN_COMMITTED, 2)
    row["refs"] = '{"attempt":1}'
    return row


def _attempt_of_a_start(rows: list[Cells], _forge: Forge) -> Cells:
    row = of_turn(rows, TURN_STARTED, 2, 1)
    row["refs"] = '{"attempt":3,"newest":2}'
    return row


def _begun_while_open(rows: list[Cells], _forge: Forge) -> Cells:
    end = of_turn(rows, TURN_ROLLED_BACK, 2)
    end["kind"] = KIND_ID["note.added"]
    return of_turn(rows, TURN_STARTED, 2, 1)


def _begun_after_commit(rows: list[Cells], _forge: Forge) -> Cells:
    row = of_turn(rows, TURN_STARTED, 3)
    row["turn"], row["refs"] = 2, '{"attempt":3,"newest":2}'
    return row


def _ends_twice(rows: list[Cells], _forge: Forge) -> Cells:
    row = of_turn(rows, TURN_STARTED, 3)
    row["kind"], row["turn"], row["refs"] = TURN_ROLLED_BACK, 2, '{"attempt":2}'
    return row


def _twice_outside_a_turn(rows: list[Cells], _forge: Forge) -> Cells:
    end = of_turn(rows, TURN_COMMITTED, 1)
    end["kind"], end["txn"] = KIND_ID["note.added"], None
    return of_turn(rows, WRITTEN, 1, 1)


def _a_note_in_a_transaction(rows: list[Cells], _forge: Forge) -> Cells:
    row = of_turn(rows, TURN_COMMITTED, 1)
    row["kind"] = KIND_ID["note.added"]
    return row


RULES = [
    (_attempt_of_an_end, "turn"), (_attempt_of_a_start, "turn"), (_begun_while_open, "turn"),
    (_begun_after_commit, "turn"), (_ends_twice, "turn"), (_twice_outside_a_turn, "transaction"),
    (_a_note_in_a_transaction, "transaction"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "damage"), RULES, ids=[change.__name__ for change, _damage in RULES])
def test_a_broken_turn_is_found(url: str, change: Callable[[list[Cells], Forge], Cells], damage: str) -> None:
    """A rule of turns that is broken and signed well is named with seq and kind of damage."""
    with forging(url) as forge:
        rows = forge.rows()
        row = change(rows, forge)
        forge.put(rows, forge=True)
    assert (row["seq"], damage) in found(url)

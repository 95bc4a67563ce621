"""The state events of some keys of a run, oldest first, and the declarations they were written under.

Rules of this module
- A stream: memory does not grow with the run. One key is found by its index; several are one pass over the run's
  state events, in the order of the log.
- A fork's steps begin in its ancestors, like everything a fork shares.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from refold_store.errors import UnknownKey
from refold_store.heads import declared_schemas
from refold_store.keys import Key
from refold_store.looking import key_for_reading
from refold_store.run import Run

BATCH = 1000
"""Rows fetched at once."""

_COLUMNS = "kind, actor, owner, key, version, txn, recorded_at, commitment IS NOT NULL, body"


class Step(NamedTuple):
    """One state event. `body` is None if it was erased, or if it is a delete without a reason."""

    seq: int
    kind: int
    actor: int | None
    owner: int | None
    key: int
    version: int
    txn: int | None
    recorded_at: int
    erased: bool
    body: bytes | None


_new_step = tuple.__new__
"""A Step from a row, without the cost of its constructor's arguments."""


@dataclass(frozen=True, slots=True)
class Walks:
    """Statements of one database. Parameters: run, what the name says, the last seq."""

    key: str
    """The state events of one key."""
    keys: str
    """Those of several keys, their ids given as JSON: one pass in the order of the log."""
    turn_first: str
    """The first seq of a turn."""


_SQLITE: Final = Walks(
    key=(
        f"SELECT pos & 4294967295, {_COLUMNS} FROM events WHERE key = ?2 AND kind <= 2 "
        "AND pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3) ORDER BY pos"
    ),
    keys=(
        f"SELECT pos & 4294967295, {_COLUMNS} FROM events WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3) "
        "AND kind <= 2 AND +key IN (SELECT value FROM json_each(?2)) ORDER BY pos"
    ),
    turn_first=(
        "SELECT min(pos) & 4294967295 FROM events WHERE turn = ?2 AND pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3)"
    ),
)
_POSTGRESQL: Final = Walks(
    key=f"SELECT seq, {_COLUMNS} FROM events WHERE run = $1 AND key = $2 AND kind <= 2 AND seq <= $3 ORDER BY seq",
    keys=(
        f"SELECT seq, {_COLUMNS} FROM events WHERE run = $1 AND kind <= 2 AND seq <= $3 "
        "AND key = ANY (ARRAY(SELECT x::int FROM json_array_elements_text($2::json) j(x))) ORDER BY seq"
    ),
    turn_first="SELECT min(seq) FROM events WHERE run = $1 AND turn = $2 AND seq <= $3",
)
WALKS: Final = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}


def steps(run: Run, keys: Sequence[str], upto: int) -> Iterator[Step]:
    """The state events of these keys up to a seq, oldest first."""
    backend, run_id = run._backend, run._run_id()
    numbers = [number for key in keys if (number := backend.id_of(key)) is not None]
    if run_id is None or not numbers:
        return
    sql = WALKS[backend.name]
    text, chosen = (sql.key, numbers[0]) if len(numbers) == 1 else (sql.keys, str(numbers))
    for raw in backend.streaming(text, run_id, (chosen,), upto, BATCH):
        yield _new_step(Step, raw)


def first_of_turn(run: Run, turn: int, upto: int) -> int | None:
    """The first seq of a turn, or None."""
    run_id = run._run_id()
    if run_id is None:
        return None
    rows = run._backend.spanning(WALKS[run._backend.name].turn_first, run_id, (turn,), upto)
    return min((int(row[0]) for row in rows if row[0] is not None), default=None)


class Declarations:
    """How keys were declared at each seq of a run: updates fold by the reducer they were written under."""

    def __init__(self, run: Run) -> None:
        self._run = run
        run_id = run._run_id()
        found = declared_schemas(run._backend, run_id) if run_id is not None else []
        self._seqs = [seq for seq, _ in found]
        self._prints = [fingerprint for _, fingerprint in found]
        self._known: dict[tuple[str, int], Key] = {}

    def at(self, seq: int) -> int:
        """Which declaration was in force at a seq: its number, -1 before the first."""
        return bisect_right(self._seqs, seq) - 1

    def key(self, name: str, seq: int) -> Key:
        """The declaration of a key in force at a seq."""
        place = (name, self.at(seq))
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = self._look_up(name, place[1])
        return found

    def _look_up(self, name: str, number: int) -> Key:
        store = self._run.store
        if number >= 0 and (store.schema is None or store.schema.fingerprint != self._prints[number]):
            try:
                return store._schema_of(self._prints[number]).key(name)
            except UnknownKey:  # a delete may name a key that its schema has dropped
                pass
        return key_for_reading(self._run, name)

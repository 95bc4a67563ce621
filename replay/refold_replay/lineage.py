"""The reads, writes and effects of a run, in the order of the log, as lineage needs them: one pass, no bodies.

The result of a tool of the engine's own is no effect: what it read or wrote is on the record itself.

Rules of this module
- A stream over the light columns: memory does not grow with the run. A fork begins in its ancestors.
- Names are text. A key of a scope is another key than one of the run with the same name: `address` tells them apart.
- A read of many keys is one item for each of them. Reads that were pruned come from their roll-ups.
- Refs may hold anything: logs come from anywhere. What is not of the form expected counts as not there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from refold_replay.judging import pairs_of
from refold_replay.rolledup import RolledUp, rolled_up
from refold_replay.stretches import refs_of
from refold_store.backend import MAX_SEQ
from refold_store.errors import UnknownKey
from refold_store.events import DELETED, KIND_ID, READ, WRITTEN
from refold_store.looking import key_for_reading
from refold_store.run import Run

BATCH = 2_000
"""Rows fetched at once."""
SCOPES: Final = ("tenant", "global")
MODEL_ANSWERED, TOOL_RETURNED = KIND_ID["model.answered"], KIND_ID["tool.returned"]
EFFECTS: Final = (MODEL_ANSWERED, TOOL_RETURNED)

_COLUMNS = "kind, actor, key, version, seen_seq, turn, txn, refs"
_KINDS = f"({WRITTEN}, {DELETED}, {READ}, {MODEL_ANSWERED}, {TOOL_RETURNED})"
_SQL: Final = {
    "sqlite": (
        f"SELECT pos & 4294967295, {_COLUMNS} FROM events "
        f"WHERE pos BETWEEN (?1 << 32 | ?2) + 1 AND (?1 << 32 | ?3) AND kind IN {_KINDS} ORDER BY pos"
    ),
    "postgresql": (
        f"SELECT seq, {_COLUMNS} FROM events WHERE run = $1 AND seq > $2 AND seq <= $3 AND kind IN {_KINDS} "
        "ORDER BY seq"
    ),
}
"""Parameters: run, the seq after which to begin, the last seq."""

Address = str | tuple[str, str]
"""A key of the run by its name; a key of a scope as (scope, name)."""


class Item(NamedTuple):
    """One write, one read of one key, or one effect."""

    seq: int
    kind: int
    """WRITTEN, DELETED, READ, MODEL_ANSWERED or TOOL_RETURNED."""
    actor: str
    key: str
    """Empty for an effect."""
    scope: str
    """`run`; of a read of a scope's key its scope."""
    version: int
    """Made, or seen; 0: absent."""
    seen_seq: int
    """Of a read: a seq of the run that holds the key."""
    turn: int | None
    txn: int | None
    stated: list[tuple[Address, int]] | None
    """Of a write: what it says it rests on; None if it does not say."""
    newest: int | None
    """Of pruned reads: the newest version in their snapshots; else None."""
    reads: int
    """Of a read: 1; of pruned reads how many; 0 where such a line comes again, at its last read."""
    last_seq: int
    """Of pruned reads the last one's seq; else the seq."""

    @property
    def address(self) -> Address:
        """The key, told apart from keys of another scope."""
        return self.key if self.scope == "run" else (self.scope, self.key)

    @property
    def unit(self) -> int:
        """The first seq of the transaction it belongs to, or its own."""
        return self.seq if self.txn is None else self.txn


_new_item = tuple.__new__
"""An Item from a tuple, without the cost of its constructor's arguments."""


def passing(run: Run, *, after: int = 0, upto: int = MAX_SEQ) -> Iterator[Item]:
    """The items after a seq up to another, in the order of the log."""
    backend, run_id = run._backend, run._run_id()
    if run_id is None:
        return
    scope_of = scopes(run)
    waiting = _places(run, scope_of, after, upto)
    names = _Names(backend.text_of)
    new, none_stated = _new_item, None
    for seq, kind, actor, key, version, seen, turn, txn, refs in backend.streaming(
        _SQL[backend.name], run_id, (after,), upto, BATCH, after=after
    ):
        while waiting and waiting[-1].seq < seq:
            yield waiting.pop()
        if kind == READ:
            if refs is None:
                yield new(
                    Item,
                    (
                        seq,
                        READ,
                        names[actor],
                        names[key],
                        "run",
                        version or 0,
                        seen or 0,
                        turn,
                        txn,
                        None,
                        None,
                        1,
                        seq,
                    ),
                )
                continue
            told = refs_of(refs)
            scope = told.get("scope")
            if scope not in SCOPES:
                scope = "run"
            pairs = pairs_of(told.get("keys")) if key is None else [(names[key], version or 0)]
            for name, saw in pairs:
                yield new(Item, (seq, READ, names[actor], name, scope, saw, seen or 0, turn, txn, None, None, 1, seq))
        elif kind <= DELETED:
            stated = none_stated if refs is None or '"based_on"' not in refs else _stated(refs, scope_of)
            yield new(
                Item, (seq, kind, names[actor], names[key], "run", version or 0, 0, turn, txn, stated, None, 0, seq)
            )
        elif kind != TOOL_RETURNED or refs is None or '"call"' not in refs or '"request"' in refs:
            yield new(Item, (seq, kind, names[actor], "", "run", 0, 0, turn, txn, None, None, 0, seq))
    while waiting:
        yield waiting.pop()


def _stated(refs: str, scope_of: Callable[[str], str]) -> list[tuple[Address, int]] | None:
    listed = refs_of(refs).get("based_on")
    if not isinstance(listed, list):
        return None
    pairs = dict.fromkeys(pairs_of(listed))
    return [(key if (scope := scope_of(key)) == "run" else (scope, key), version) for key, version in pairs]


def scopes(run: Run) -> Callable[[str], str]:
    """Where keys belong, remembered: `run`, `tenant` or `global`. In the run of a scope all are its own."""
    known: dict[str, str] = {}

    def scope_of(key: str) -> str:
        found = known.get(key)
        if found is None:
            try:
                found = "run" if run.scope else key_for_reading(run, key).scope
            except UnknownKey:
                found = "run"
            known[key] = found
        return found

    return scope_of


def _places(run: Run, scope_of: Callable[[str], str], after: int, upto: int) -> list[Item]:
    """Pruned reads at the place of the first and of the last of each line, the last place first."""
    found = []
    for one in rolled_up(run):
        places = (one.first_seq,) if one.first_seq == one.last_seq else (one.first_seq, one.last_seq)
        found += [_rolled(one, at, scope_of(one.key)) for at in places if after < at <= upto]
    return sorted(found, key=lambda item: item.seq, reverse=True)


def _rolled(one: RolledUp, at: int, scope: str) -> Item:
    reads = one.reads if at == one.first_seq else 0
    return Item(
        at, READ, one.reader, one.key, scope, one.version, one.first_seq - 1, None, None, None, one.newest, reads,
        one.last_seq,
    )  # fmt: skip


class _Names(dict[int | None, str]):
    """Names by their ids; an event without an actor counts as of the empty name."""

    def __init__(self, text_of: Callable[[int | None], str | None]) -> None:
        super().__init__()
        self._text_of = text_of

    def __missing__(self, number: int | None) -> str:
        found = self[number] = self._text_of(number) or ""
        return found


class Versions:
    """Where versions were made, as a pass goes by: which was the newest at a seq?

    A pass may begin anywhere: of a key it knows the versions from the first that it met.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._made: dict[Address, tuple[int, array[int]]] = {}

    def copy(self) -> Versions:
        """The same, to go on from here in another log."""
        found = Versions(self._run)
        found._made = {key: (base, seqs[:]) for key, (base, seqs) in self._made.items()}
        return found

    def made(self, item: Item) -> None:
        """A write makes the next version."""
        self.know(item.key, item.version, item.seq)

    def know(self, key: str, version: int, seq: int) -> None:
        """A version, and where it was made."""
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = (version - 1, array("Q"))
        known[1].append(seq)

    def newest(self, key: Address, seq: int) -> int:
        """The newest version at a seq; 0 if none is known."""
        base, seqs = self._of(key)
        at = bisect_right(seqs, seq)
        return base + at if at else 0

    def before(self, key: Address, unit: int) -> int:
        """The newest version before a transaction."""
        base, seqs = self._of(key)
        at = bisect_left(seqs, unit)
        return base + at if at else 0

    def seq_of(self, key: Address, version: int) -> int | None:
        """Where a version was made, if that is known."""
        base, seqs = self._of(key)
        return seqs[version - base - 1] if base < version <= base + len(seqs) else None

    def seen(self, item: Item) -> int:
        """The version that was newest in the snapshot of a read."""
        if item.newest is not None:
            return max(item.newest, item.version)
        return max(self.newest(item.address, item.seen_seq), item.version)

    def _of(self, key: Address) -> tuple[int, array[int]]:
        known = self._made.get(key)
        if known is None:
            if isinstance(key, str):
                return _NONE
            known = self._made[key] = (0, array("Q", home_versions(self._run, key)))
        return known


_NONE: Final[tuple[int, array[int]]] = (0, array("Q"))


def home_of(run: Run, key: Address) -> tuple[Run, str]:
    """The run that holds a key, and the key's name."""
    if isinstance(key, str):
        return run, key
    return run._home(key_for_reading(run, key[1])), key[1]


def home_versions(run: Run, key: Address) -> list[int]:
    """The seqs of a key's versions, in the run that holds it."""
    home, name = home_of(run, key)
    backend, run_id, number = run._backend, home._run_id(), run._backend.id_of(name)
    if run_id is None or number is None:
        return []
    rows: list[Any] = backend.spanning(backend.sql.versions, run_id, (number,))
    return [int(row[0]) for row in rows]

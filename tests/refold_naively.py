"""A what-if as its definition says it, slow and plain: the whole log folded twice, with a change and without.

It shares no code with the product: the tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from refold import Run

GONE = object()
"""What a key holds that was never written, or deleted."""


@dataclass
class Line:
    """One event, as plain data."""

    seq: int
    kind: str
    actor: str
    key: str | None
    version: int | None
    turn: int | None
    txn: int | None
    seen: int | None
    refs: dict[str, Any]
    body: dict[str, Any]
    pairs: list[tuple[str, int]] = field(default_factory=list)
    edited: Any = None

    @property
    def known(self) -> bool:
        """Whether a refusal says what was handed in: an update or a delete."""
        return "update" in self.body or self.edited is not None or self.body.get("op") == "delete"

    @property
    def update(self) -> Any:
        """What was handed in."""
        if self.edited is not None:
            return self.edited
        if self.kind == "state.deleted" or (self.kind == "state.refused" and "update" not in self.body):
            return GONE
        return self.body.get("update", self.body.get("value"))


def lines_of(run: Run) -> list[Line]:
    """A run's log as plain data."""
    found = []
    for event in run.events():
        line = Line(
            event.seq, event.kind, event.actor or "", event.key, event.version,
            event.turn, event.txn, event.seen_seq, event.refs, event.body,
        )  # fmt: skip
        if event.kind == "state.read":
            line.pairs = [(key, version) for key, version in event.refs.get("keys", [(event.key, event.version)])]
        found.append(line)
    return found


@dataclass
class Laws:
    """The rules of a run, as functions. `reduce` raises ValueError where it refuses."""

    owners: Mapping[str, Collection[str]] | None = None
    """None: nothing is checked."""
    reduce: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    holds: Callable[[Mapping[str, Any]], bool] = lambda _state: True
    refusals: bool = True
    """Whether refusals can be judged: an imported one keeps no update."""


@dataclass
class World:
    """What became of each write, and the writes of each key that count, in order."""

    outcome: dict[int, Any] = field(default_factory=dict)
    """seq to ("ok", value), ("no",) or ("skipped",)."""
    moved: set[int] = field(default_factory=set)
    log: dict[str, list[tuple[int, Any, Any]]] = field(default_factory=dict)
    """key to (seq, label, value)."""

    def at(self, key: str, seq: int) -> tuple[Any, Any]:
        """(label, value) of a key at a seq."""
        known = [one for one in self.log.get(key, []) if one[0] <= seq]
        return (known[-1][1], known[-1][2]) if known else (0, GONE)


def units(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The state events, a transaction together."""
    unit: list[Line] = []
    for line in lines:
        if line.kind not in ("state.written", "state.deleted", "state.refused"):
            continue
        if unit and (line.txn is None or line.txn != unit[0].txn):
            yield unit
            unit = []
        unit.append(line)
    if unit:
        yield unit


def fold(lines: Sequence[Line], laws: Laws, skip: Collection[int] = (), edit: Mapping[int, Any] | None = None) -> World:
    """The whole log by its rules, without some writes, and with other values in some."""
    world = World()
    lines = [replace(line, edited=edit[line.seq]) if edit and line.seq in edit else line for line in lines]
    for unit in units(lines):
        live = [line for line in unit if line.seq not in skip]
        for line in unit:
            world.outcome[line.seq] = ("skipped",)
        made = _made(live, laws, world)
        for line in live:
            if made is None:
                world.outcome[line.seq] = ("no",)
            else:
                assert line.key is not None
                label = line.version if line.kind != "state.refused" else f"instead {line.seq}"
                world.log.setdefault(line.key, []).append((line.seq, label, made[line.key]))
                world.outcome[line.seq] = ("ok", made[line.key])
    return world


def _made(unit: Sequence[Line], laws: Laws, world: World) -> dict[str, Any] | None:
    """The values a unit makes; None if it is refused."""
    made: dict[str, Any] = {}
    for line in unit:
        if line.key is None or (line.kind == "state.refused" and not (laws.refusals and line.known)):
            return None
        if laws.owners is not None and line.actor not in laws.owners[line.key] and "initial" not in line.refs:
            return None
        label, before = world.at(line.key, line.seq)
        expected = line.refs.get("expected", line.body.get("expected"))
        if expected is not None and label != expected:
            newest = label if isinstance(label, int) else _last_version(world, line.key)
            here = any(one[1] == expected for one in world.log.get(line.key, []))
            if here or expected == 0 or expected <= newest:
                return None
            world.moved.add(line.seq)
        try:
            reduce = laws.reduce.get(line.key)
            made[line.key] = line.update if line.update is GONE or reduce is None else reduce(before, line.update)
        except ValueError:
            return None
    state = {key: known[-1][2] for key, known in world.log.items() if known[-1][2] is not GONE} | made
    return made if laws.holds({key: value for key, value in state.items() if value is not GONE}) else None


def _last_version(world: World, key: str) -> int:
    return max((one[1] for one in world.log.get(key, []) if isinstance(one[1], int)), default=0)


@dataclass
class Change:
    """What is changed."""

    skip: Collection[int] = ()
    edit: Mapping[int, Any] = field(default_factory=dict)
    laws: Laws | None = None


def differences(lines: Sequence[Line], laws: Laws, change: Change) -> set[tuple[int, str]]:
    """(seq, what) of every event that would be another with a change."""
    real, other = fold(lines, laws), fold(lines, change.laws or laws, change.skip, change.edit)
    found: set[tuple[int, str]] = set()
    altered: set[tuple[str | None, int | None]] = set()
    doubtful: set[tuple[str | None, int | None]] = set()
    other_reads: set[tuple[int, str]] = set()
    for at, line in enumerate(lines):
        if line.kind == "state.read":
            for key, version in line.pairs:
                assert line.seen is not None
                if real.at(key, line.seen)[0] == version:
                    changed = real.at(key, line.seen) != other.at(key, line.seen)
                else:
                    changed = (key, version) in altered
                if changed:
                    other_reads.add((line.seq, key))
                    found.add((line.seq, "saw another value"))
        elif line.kind in ("state.written", "state.deleted"):
            rules = change.laws or laws
            what = _what(real.outcome[line.seq], other.outcome[line.seq])
            if what is not None:
                altered.add((line.key, line.version))
            edited = line.seq in change.edit and what in (None, "value changed")
            if edited or what is not None:
                found.add((line.seq, "edited" if edited or what is None else what))
            elif line.seq in other.moved or _rests(lines[:at], line, rules, altered | doubtful, other_reads):
                doubtful.add((line.key, line.version))
                found.add((line.seq, "depends"))
        elif line.kind == "state.refused":
            if other.outcome[line.seq][0] == "ok":
                found.add((line.seq, "accepted instead"))
            elif line.seq in change.edit:
                found.add((line.seq, "edited"))
    return found


def _what(real: tuple[Any, ...], other: tuple[Any, ...]) -> str | None:
    if other[0] == "ok":
        return None if real[1] is other[1] or real[1] == other[1] else "value changed"
    return "removed" if other[0] == "skipped" else "refused"


def _rests(
    earlier: Sequence[Line], line: Line, laws: Laws, doubted: Collection[Any], other_reads: Collection[Any]
) -> bool:
    """Whether a write rests on what would be another."""
    if line.key in laws.reduce and line.kind == "state.written" and (line.key, (line.version or 0) - 1) in doubted:
        return True
    reads: dict[str, tuple[int, int]] = {}
    for read in earlier:
        if read.kind == "state.read" and read.actor == line.actor:
            for key, version in read.pairs:
                if key not in reads or version >= reads[key][0]:
                    reads[key] = (version, read.seq)
    stated = line.refs.get("based_on")
    for key, version in reads.items() if stated is None else ():
        if (version[1], key) in other_reads or (key, version[0]) in doubted:
            return True
    for key, version in stated or ():
        behind = reads.get(key)
        if (key, version) in doubted or (behind and behind[0] == version and (behind[1], key) in other_reads):
            return True
    return False


def end(lines: Sequence[Line], laws: Laws, change: Change) -> set[str]:
    """The keys that hold another value at the end."""
    real, other = fold(lines, laws), fold(lines, change.laws or laws, change.skip, change.edit)
    last = lines[-1].seq
    keys = {*real.log, *other.log}
    return {key for key in keys if real.at(key, last)[1] != other.at(key, last)[1]}

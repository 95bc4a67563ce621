"""What a what-if found: each event that would be another, with what it would be, and the state at the end.

Rules of this module
- Pure. Differences stand in the order of the log.
- What is told is bounded: PATHS_MAX paths and GROUNDS_MAX grounds an event, VALUES_MAX bytes of values in all. `cut`
  says that a value was left out; the paths then still say what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

from refold_replay.diff import MISSING, Change, changes
from refold_replay.grounds import Ground
from refold_store.jsontext import decode

PATHS_MAX = 20
"""Paths told of one event or key."""
GROUNDS_MAX = 20
"""Grounds told of one write."""
VALUES_MAX = 64 * 1024 * 1024
"""Bytes of value text kept with all differences of one what-if."""

What = Literal[
    "removed",
    "edited",
    "value changed",
    "refused",
    "accepted instead",
    "saw another value",
    "cannot be judged",
    "depends",
]
EFFECTS: Final[tuple[What, ...]] = ("value changed", "refused", "accepted instead")
"""What happens to events that were not changed themselves."""


@dataclass(frozen=True, slots=True)
class Sides:
    """A value as it was and as it would be; MISSING where there is none, or where `cut` says it was left out."""

    before: Any = MISSING
    after: Any = MISSING
    paths: tuple[Change, ...] = ()
    more: bool = False
    """Whether there are more paths."""
    cut: bool = False


NO_SIDES: Final = Sides()


@dataclass(frozen=True, slots=True)
class Difference:
    """One event that would be another. `direct` is false for what only rests on a change."""

    seq: int
    kind: str
    actor: str | None
    key: str | None
    version: int | None
    """The version as recorded; None for a refusal."""
    what: What
    sides: Sides = NO_SIDES
    reason: str | None = None
    """Of a refusal, or of an edited one that would be refused all the same: its one word."""
    message: str | None = None
    sees: str | None = None
    """Of a read: what it would have seen, `routing@1`, in a few words."""
    rests_on: tuple[Ground[str], ...] = ()
    """The grounds of a write that would be others, the first GROUNDS_MAX of them."""
    more_grounds: int = 0

    @property
    def direct(self) -> bool:
        """Whether the event itself would be another; else only what it rests on would."""
        return self.what != "depends"

    @property
    def before(self) -> Any:
        """The value as recorded."""
        return self.sides.before

    @property
    def after(self) -> Any:
        """The value as it would be."""
        return self.sides.after

    @property
    def paths(self) -> tuple[Change, ...]:
        """Where the two differ."""
        return self.sides.paths


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key that would hold another value at the end."""

    key: str
    sides: Sides
    written_at: int | None
    """The seq of the write that would have made it; None if it would be absent."""
    erased: bool = False
    """Whether what it would hold was erased: then `sides` cannot tell it."""


@dataclass(slots=True)
class WhatIf:
    """What would differ in a run. Empty (false) if nothing would."""

    run: str
    tenant: str
    at_seq: int
    """The newest seq that was gone through."""
    differences: list[Difference] = field(default_factory=list)
    final: list[KeyDifference] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.differences or self.final)

    def of(self, *what: What) -> list[Difference]:
        """The differences of some kinds."""
        return [one for one in self.differences if one.what in what]

    @property
    def direct(self) -> list[Difference]:
        """Events that would be others themselves."""
        return [one for one in self.differences if one.direct]

    @property
    def dependents(self) -> list[Difference]:
        """Writes that stay as they are and rest on what would be another: only their writer could tell."""
        return [one for one in self.differences if not one.direct]

    def seqs(self, *what: What) -> list[int]:
        """The seqs of some kinds of difference, each once."""
        return sorted({one.seq for one in self.of(*what)})


class Values:
    """Keeps what is told of values within bounds."""

    def __init__(self) -> None:
        self._left = VALUES_MAX

    def sides(self, before: bytes | None, after: bytes | None) -> Sides:
        """Two value texts, compared."""
        old = MISSING if before is None else decode(before)
        new = MISSING if after is None else decode(after)
        paths = tuple(islice(changes(old, new), PATHS_MAX + 1))
        more, paths = len(paths) > PATHS_MAX, paths[:PATHS_MAX]
        size = len(before or b"") + len(after or b"")
        if size > self._left:
            return Sides(MISSING, MISSING, _small(paths), more, cut=True)
        self._left -= size
        return Sides(old, new, paths, more)


def _small(paths: Sequence[Change]) -> tuple[Change, ...]:
    """The paths alone: what stands there may be as large as the values themselves."""
    return tuple(Change(one.op, one.path, MISSING, MISSING) for one in paths)


def named(grounds: Iterable[Ground[str]], more: int = 0) -> str:
    """Grounds in words: `routing@1 (stated), loss@1 (direct, read at 7)`."""
    found = [
        f"{one.key}@{one.version} ({one.kind if one.read_seq is None else f'{one.kind}, read at {one.read_seq}'})"
        for one in grounds
    ]
    return ", ".join([*found, f"and {more} more"] if more else found)

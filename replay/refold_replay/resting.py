"""Which reads would have seen another value, and which writes rest on those: the ripple of a what-if.

Rules of this module
- Pure. Told of events in the order of the log.
- A version is *altered* if it is gone or holds another value, and *doubtful* if its writer would have decided on other
  grounds. A read of a doubtful version sees what it saw; what its reader writes is doubtful, too.
- A read of the newest version is another if the key would have been another at its `seen_seq`; a read of an older one
  if that version is altered.
- Memory: one entry for each pair of a reader and a key, four bytes for each version, and what was altered.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from refold_replay.differences import GROUNDS_MAX
from refold_replay.grounds import Ground, Grounds


@dataclass(frozen=True, slots=True)
class Standing:
    """What a key would be from a seq on. `differs` is false where it is as recorded again."""

    seq: int
    differs: bool
    sees: str


class Ripple:
    """Follows a change through reads and writes."""

    def __init__(self) -> None:
        self._grounds: Grounds[str, str] = Grounds()
        self._made: dict[str, array[int]] = {}
        self._standing: dict[str, list[Standing]] = {}
        self._other: dict[str, dict[str, None]] = {}
        self._altered: set[tuple[str, int]] = set()
        self._doubtful: set[tuple[str, int]] = set()

    # --- writes ------------------------------------------------------------------------------

    def made(self, key: str, seq: int) -> None:
        """The record makes the next version of a key."""
        seqs = self._made.get(key)
        if seqs is None:
            seqs = self._made[key] = array("I")
        seqs.append(seq)

    def stands(self, key: str, seq: int, differs: bool, sees: str) -> None:
        """What a key would be from a seq on."""
        if differs or key in self._standing:
            self._standing.setdefault(key, []).append(Standing(seq, differs, sees))

    def alter(self, key: str, version: int) -> None:
        """A recorded version is gone, or holds another value."""
        self._altered.add((key, version))

    def doubt(self, key: str, version: int) -> None:
        """The writer of a version would have decided on other grounds."""
        self._doubtful.add((key, version))

    def rests_on(
        self,
        actor: str,
        key: str,
        version: int,
        *,
        turn: int | None,
        stated: Iterable[tuple[str, int]] | None,
        folds: bool,
    ) -> tuple[list[Ground[str]], int]:
        """Those grounds of a write that would be others: the first of them, and how many more there are."""
        other = self._other.get(actor, {})
        if stated is None and not other and not folds:
            return [], 0
        among = {} if stated is not None else dict.fromkeys(islice(other, GROUNDS_MAX))
        grounds = self._grounds.of(actor, key, version, turn=turn, stated=stated, folds=folds, among=among)
        found = [one for one in grounds if self._is_other(one, other)]
        left = 0 if stated is not None else len(other) - len(among)
        return found[:GROUNDS_MAX], left + max(0, len(found) - GROUNDS_MAX)

    def _is_other(self, ground: Ground[str], other: dict[str, None]) -> bool:
        if ground.read_seq is not None and ground.key in other:
            return True
        return (ground.key, ground.version) in self._altered or (ground.key, ground.version) in self._doubtful

    # --- reads -------------------------------------------------------------------------------

    def read(self, actor: str, key: str, version: int, *, seq: int, seen: int, turn: int | None) -> str | None:
        """A read of a version. What it would have seen, if that is another value; else None."""
        counts = self._grounds.read(actor, key, version, seq=seq, turn=turn)
        sees = self._would_see(key, version, seen) if key in self._standing else None
        if counts:
            if sees is not None or (key, version) in self._doubtful:
                self._other.setdefault(actor, {})[key] = None
            elif actor in self._other:
                self._other[actor].pop(key, None)
        return sees

    def seen_at(self, key: str, newest: int, seq: int) -> int:
        """A seq before `seq` at which a version was the newest of its key."""
        made = self._made.get(key, ())
        return min(seq - 1, made[newest] - 1) if newest < len(made) else seq - 1

    def _would_see(self, key: str, version: int, seen: int) -> str | None:
        standings = self._standing[key]
        at = bisect_right(standings, seen, key=lambda one: one.seq)
        standing = standings[at - 1] if at else None
        if version == bisect_right(self._made.get(key, ()), seen):
            return standing.sees if standing is not None and standing.differs else None
        if (key, version) in self._altered:
            return standing.sees if standing is not None else "another value"
        return None

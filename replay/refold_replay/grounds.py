"""What a write rests on: the versions it states, else what its actor had read before; and, where it folds, the version
before it.

Rules of this module
- Pure. Reads and writes come in the order of the log; nothing is looked up.
- Of each key only the newest version an actor has read counts, at its last read of that version.
- A read is `direct` if its turn is the turn of the write, else `carried`; events that number no turn share one.
- Memory: one entry for each pair of an actor and a key it read.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import Generic, Literal, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
A = TypeVar("A", bound=Hashable)

GroundKind = Literal["stated", "direct", "carried", "folded"]


class Ground(NamedTuple, Generic[K]):
    """A version that a write rests on (0: that the key was absent), why, and the read behind it if there is one."""

    key: K
    version: int
    kind: GroundKind
    read_seq: int | None


class Grounds(Generic[A, K]):
    """What each actor has read so far. Actors and keys are whatever names them: texts, or ids."""

    __slots__ = ("_read",)

    def __init__(self) -> None:
        self._read: dict[A, dict[K, tuple[int, int, int | None]]] = {}

    def copy(self) -> Grounds[A, K]:
        """The same, to go on from here in another log."""
        found: Grounds[A, K] = Grounds()
        found._read = {actor: dict(seen) for actor, seen in self._read.items()}
        return found

    def read(self, actor: A, key: K, version: int, *, seq: int, turn: int | None = None) -> bool:
        """An actor reads a version. Whether this read is now the one that counts for the key."""
        seen = self._read.get(actor)
        if seen is None:
            seen = self._read[actor] = {}
        known = seen.get(key)
        if known is not None and known[0] > version:
            return False
        seen[key] = (version, seq, turn)
        return True

    def has_read(self, actor: A, key: K) -> bool:
        """Whether an actor has read a key: what it only stated is no ground of its other writes."""
        return key in self._read.get(actor, ())

    def of(
        self,
        actor: A,
        key: K,
        version: int,
        *,
        turn: int | None = None,
        stated: Iterable[tuple[K, int]] | None = None,
        folds: bool = False,
        among: Collection[K] | None = None,
    ) -> list[Ground[K]]:
        """The grounds of the write that makes `key@version`, in the order they were stated or first read.

        `stated` is what it says itself (an empty list: on nothing). `folds` if the key's reducer is not `last`.
        `among` looks at these keys only, of what was read.
        """
        seen = self._read.get(actor, {})
        if stated is not None:
            found: list[Ground[K]] = [Ground(one, at, "stated", self._behind(seen.get(one), at)) for one, at in stated]
        else:
            keys = seen if among is None else [one for one in among if one in seen]
            found = [
                Ground(one, seen[one][0], "direct" if seen[one][2] == turn else "carried", seen[one][1]) for one in keys
            ]
        if folds and version > 1:
            found.append(Ground(key, version - 1, "folded", None))
        return found

    @staticmethod
    def _behind(known: tuple[int, int, int | None] | None, version: int) -> int | None:
        return known[1] if known is not None and known[0] == version else None

"""Which writes of one key take something away from each other: what a merge must name, so that nothing is lost unseen.

Rules of this module
- Pure, on JSON documents. What an update replaces is a set of paths: `$` for the whole value, members where a reducer
  works member by member, nothing where it only adds.
- Equal values take nothing away.
- A function of the user's is judged by what it does to these very updates: the later one replaces the earlier one if
  the result is as if that had never been, and is another one the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from refold_store.errors import RefoldError
from refold_store.jsontext import encode, member_path
from refold_store.keys import Key
from refold_store.reducers import Reducer

WHOLE = "$"
"""The path of a whole value."""
ADDING = frozenset(("append", "add", "union"))
"""Reducers that take nothing away."""

Replaced = Mapping[str, bytes | None]
"""Paths and the JSON texts put there; None: deleted."""


class Change:
    """What one writer did to one key: updates in their order, as JSON documents; a delete is DELETED."""

    __slots__ = ("key", "updates")

    def __init__(self, key: Key, updates: Sequence[Any]) -> None:
        self.key = key
        self.updates = updates

    @property
    def replaced(self) -> Replaced:
        """What it puts in the place of something else."""
        found: dict[str, bytes | None] = {}
        for update in self.updates:
            if update is DELETED:
                found = {WHOLE: None}
            else:
                found |= dict(_replaced(self.key.reducer, update, WHOLE))
        return found


class _Deleted:
    __slots__ = ()


DELETED = _Deleted()
"""Stands for a delete among updates."""


def lost(earlier: Change, later: Change) -> list[str]:
    """The paths of what `later` takes away from `earlier`, sorted."""
    plain = DELETED not in earlier.updates and DELETED not in later.updates
    if earlier.key.reducer.custom and not earlier.key.reducer.fields and plain:
        return [WHOLE] if _undone(earlier.key, earlier.updates, later.updates) else []
    before, after = earlier.replaced, later.replaced
    if WHOLE in after and WHOLE not in before and after[WHOLE] is None:
        return [WHOLE]  # what was added is deleted
    if WHOLE in before or WHOLE in after:
        both = before.keys() & after.keys()
        return [WHOLE] if not both or any(before[path] != after[path] for path in both) else []
    return sorted(path for path in before.keys() & after.keys() if before[path] != after[path])


def _replaced(reducer: Reducer, update: Any, path: str) -> Iterator[tuple[str, bytes]]:
    if reducer.name in ADDING:
        return
    if reducer.name in ("merge", "deep_merge") and isinstance(update, dict):
        for name, value in update.items():
            inside = member_path(path, name)
            if reducer.name == "deep_merge" and isinstance(value, dict):
                yield from _replaced(reducer, value, inside)
            else:
                yield inside, encode(value)
    elif reducer.fields and isinstance(update, dict):
        for name, value in update.items():
            if name in reducer.fields:
                yield from _replaced(reducer.fields[name], value, member_path(path, name))
    elif not (reducer.custom and reducer.commutative):
        yield path, encode(update)


def _undone(key: Key, earlier: Iterable[Any], later: Iterable[Any]) -> bool:
    if key.reducer.commutative:
        return False
    first, second = list(earlier), list(later)
    try:
        forth = encode(key.fold_many(None, [*first, *second]))
        alone = encode(key.fold_many(None, second))
        back = encode(key.fold_many(None, [*second, *first]))
    except RefoldError:  # it wants values of its own types, or a value to begin with
        return False
    return forth == alone and forth != back

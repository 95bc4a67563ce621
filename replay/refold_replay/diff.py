"""The difference of two JSON documents, as a list of changes with paths.

Rules of this module
- Pure. It goes down where both sides are objects, or lists; everything else is replaced whole.
- Types matter: `1`, `1.0` and `true` are three values. Text is compared by code points.
- Changes come in the order of the paths. A list's members are compared by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from refold_store.jsontext import member_path


class Missing:
    """What stands on the side that has no value at a path. Not `None`, which is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()
"""The one Missing."""

Op = Literal["add", "remove", "replace"]


class Change(NamedTuple):
    """One difference: `$.a[1]` and what stood there before and after."""

    op: Op
    path: str
    before: Any
    after: Any


def diff(before: Any, after: Any) -> list[Change]:
    """What changed from one document to another. Either may be MISSING."""
    return list(_changes(before, after))


def changes(before: Any, after: Any) -> Iterator[Change]:
    """`diff`, one change at a time: who wants a few of many pays for those."""
    return _changes(before, after)


def diff_states(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Change]]:
    """(key, change) of two whole states, given as key to plain JSON; keys in byte order."""
    return [
        (key, change)
        for key in sorted({*before, *after})
        for change in _changes(before.get(key, MISSING), after.get(key, MISSING))
    ]


def same(one: Any, other: Any) -> bool:
    """Whether two documents are equal, types included."""
    return next(_changes(one, other), None) is None


def _changes(before: Any, after: Any) -> Iterator[Change]:
    """Depth first without recursion, so that a deep document cannot exhaust the stack; each when it is asked for."""
    levels: list[Iterator[tuple[str, Any, Any]]] = [iter((("$", before, after),))]
    while levels:
        for path, old, new in levels[-1]:
            if old is MISSING and new is MISSING:
                continue
            if old is MISSING:
                yield Change("add", path, old, new)
            elif new is MISSING:
                yield Change("remove", path, old, new)
            elif isinstance(old, dict) and isinstance(new, dict):
                levels.append(_members(path, old, new))
                break
            elif isinstance(old, list) and isinstance(new, list):
                levels.append(_items(path, old, new))
                break
            elif type(old) is not type(new) or not _equal(old, new):
                yield Change("replace", path, old, new)
        else:
            levels.pop()


def _members(path: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted({*old, *new}):
        yield member_path(path, name), old.get(name, MISSING), new.get(name, MISSING)


def _items(path: str, old: list[Any], new: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    for at in range(max(len(old), len(new))):
        yield member_path(path, at), _item(old, at), _item(new, at)


def _item(items: list[Any], at: int) -> Any:
    return items[at] if at < len(items) else MISSING


def _equal(old: Any, new: Any) -> bool:
    """Scalars of one type; 0.0 and -0.0 are told apart, as the stored texts tell them."""
    return bool(old == new) and (not isinstance(old, float) or str(old) == str(new))

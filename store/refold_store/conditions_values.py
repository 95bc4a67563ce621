"""What conditions do with two values: equality, order, membership, members.

Rules: as Python does, except that the shapes in which one JSON array can come back (list, tuple, set) are equal when
their members are, and that a set has no order. What has no meaning raises TypeError. Nothing is changed or repeated.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

UNKNOWN: Final = object()
"""Stands for a value that the state does not hold."""

_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Exact types whose own comparison is all there is to say: the usual ones, told apart first because that is quick."""
_ARRAYS = (list, tuple)
_SETS = (set, frozenset)
_INDEXED = frozenset({list, tuple, str})
_HOLDERS = frozenset({list, tuple, set, frozenset, dict})
_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "a text"),
    (_ARRAYS, "a list"),
    (_SETS, "a set"),
    (Mapping, "an object"),
)


def kind(value: object) -> str:
    """The kind of a value in words: its type, never its content, which may be sensitive."""
    if value is None:
        return "None"
    return next((word for types, word in _KINDS if isinstance(value, types)), f"a {type(value).__name__}")


def same(a: object, b: object) -> bool:
    """Whether a and b are equal, with list, tuple and set as one array."""
    if a == b:
        return True
    if type(a) in _SCALARS or type(b) in _SCALARS:
        return False
    if isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[name]) for name, value in a.items())
    if isinstance(a, _SETS):
        return isinstance(b, _ARRAYS) and _same_members(a, b)
    return isinstance(b, _SETS) and isinstance(a, _ARRAYS) and _same_members(b, a)


def _same_members(members: set[object] | frozenset[object], array: list[object] | tuple[object, ...]) -> bool:
    if len(members) != len(array):
        return False
    try:
        return members == frozenset(map(_hashable, array))
    except TypeError:
        return False  # an object in the array: no set holds one


def _hashable(value: object) -> object:
    return tuple(map(_hashable, value)) if isinstance(value, _ARRAYS) else value


def _differ(a: object, b: object) -> bool:
    return not same(a, b)


def _within(a: object, b: Any) -> bool:
    if isinstance(b, str):
        if not isinstance(a, str):
            raise TypeError("only a text can be in a text")
        return a in b
    if type(b) not in _HOLDERS and not isinstance(b, (*_ARRAYS, *_SETS, Mapping)):
        raise TypeError("only lists, sets, objects and texts have members")
    if type(a) in _SCALARS or not isinstance(a, (*_ARRAYS, *_SETS, dict)):
        return a in b
    return any(same(a, each) for each in b)


def _not_within(a: object, b: object) -> bool:
    return not _within(a, b)


def _ordered(order: Callable[[Any, Any], bool]) -> Test:
    def test(a: object, b: object) -> bool:
        if type(a) in _SCALARS:
            return order(a, b)
        if isinstance(a, _SETS):
            raise TypeError("sets have no order")
        if not (isinstance(a, _ARRAYS) and isinstance(b, _ARRAYS)):
            return order(a, b)
        for x, y in zip(a, b, strict=False):
            if not same(x, y):
                return test(x, y)
        return order(len(a), len(b))

    return test


Test = Callable[[object, object], bool]

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, Callable[[object, object], bool]]]] = {
    ast.Eq: ("==", same),
    ast.NotEq: ("!=", _differ),
    ast.Lt: ("<", _ordered(operator.lt)),
    ast.LtE: ("<=", _ordered(operator.le)),
    ast.Gt: (">", _ordered(operator.gt)),
    ast.GtE: (">=", _ordered(operator.ge)),
    ast.In: ("in", _within),
    ast.NotIn: ("not in", _not_within),
}
"""Each comparison of the language: how it is spelled, what it does."""


def take(value: object, index: str | int) -> object:
    """The member of a list, text or object; UNKNOWN when it is absent; TypeError when there can be none."""
    if type(value) is dict or (type(value) not in _INDEXED and isinstance(value, Mapping)):
        return value.get(index, UNKNOWN)
    if not isinstance(index, int) or not isinstance(value, (list, tuple, str)):
        raise TypeError("no such kind of member")
    try:
        return value[index]
    except IndexError:
        return UNKNOWN

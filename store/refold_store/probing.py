"""Probing a reducer when it becomes the reducer of a key: is it pure, and does order matter?

Rules
- A reducer is called on a few small values of the key's kind. The same inputs must give the same result, and inputs
  must be left as they were; otherwise the declaration is refused.
- A call that raises says nothing: the probes are guesses at what the function takes.
- Order: a pair of updates that gives another result when swapped proves that order matters. Where at least
  `ENOUGH` pairs agree and none differs, the reducer counts as commutative; otherwise nothing is known.
- A function that fails on every `None` as previous value, but not on values (`max`, `operator.or_`), was not written
  for a key without a value: the first update then is the first value.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from refold_store.errors import ConfigError

ENOUGH = 3
"""Swapped pairs that must agree before order counts as free."""

_FAILED = object()

PROBES: dict[str, tuple[Any, ...]] = {
    "int": (0, 1, 2, -7, 40),
    "float": (0.0, 0.5, -2.25, 1024.0),
    "bool": (True, False),
    "str": ("", "a", "b", "longer text"),
    "list": ([], [1], [2, 3], ["a"], [{"id": "x"}]),
    "dict": ({}, {"a": 1}, {"a": 2, "b": [1]}, {"b": {"c": 1}}),
    "set": (set(), {1}, {2, 3}, {"a"}),
    "tuple": ((), (1,), (2, 3)),
    "Decimal": (Decimal("0"), Decimal("1.5"), Decimal("-2")),
}


class Probed(NamedTuple):
    """What probing found out."""

    commutative: bool | None
    """Whether the order of updates is free; None if that is not known."""
    starts_itself: bool
    """Whether it may be called without a previous value."""


def probe(function: Callable[[Any, Any], Any], name: str, kind: str | None) -> Probed:
    """Probe a reducer on values of a kind. Raises ConfigError if it is not pure."""
    values = PROBES.get(kind or "", tuple(value for values in PROBES.values() for value in values[:2]))
    worked = {
        previous is None
        for previous in (None, *values)
        for update in values
        if _is_pure_call(function, name, previous, update)
    }
    starts_itself = worked != {False}
    return Probed(_order_is_free(function if starts_itself else started(function), values), starts_itself)


def started(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The function, with the first update as first value."""

    def start(previous: Any, update: Any) -> Any:
        return update if previous is None else function(previous, update)

    return start


def _call(function: Callable[[Any, Any], Any], previous: Any, update: Any) -> Any:
    try:
        return function(previous, update)
    except Exception:  # a probe the function does not take
        return _FAILED


def _is_pure_call(function: Callable[[Any, Any], Any], name: str, previous: Any, update: Any) -> bool:
    """Whether the call gave a result at all. Raises ConfigError if it is not pure."""
    old, new = copy.deepcopy(previous), copy.deepcopy(update)
    first = _call(function, old, new)
    first = first if first is _FAILED else copy.deepcopy(first)
    if old != previous or new != update:
        raise ConfigError(
            f"reducer {name!r} changes its inputs (tried on {previous!r} and {update!r}): build a new value instead"
        )
    second = _call(function, copy.deepcopy(previous), copy.deepcopy(update))
    if (first is _FAILED) is (second is _FAILED) and (first is _FAILED or first == second or first != first):
        return first is not _FAILED
    raise ConfigError(
        f"reducer {name!r} is not pure: {previous!r} and {update!r} gave {_shown(first)}, then {_shown(second)}; "
        "a reducer may depend on its two inputs only (no clock, no random, no kept state)"
    )


def _shown(result: object) -> str:
    return "an error" if result is _FAILED else repr(result)


def _order_is_free(function: Callable[[Any, Any], Any], values: Sequence[Any]) -> bool | None:
    agreed = 0
    for start in (None, *values[:2]):
        for first in values:
            for second in values:
                if first == second:
                    continue
                one, other = (_twice(function, start, *pair) for pair in ((first, second), (second, first)))
                if one is _FAILED or other is _FAILED:
                    continue
                if one != other:
                    return False
                agreed += 1
    return True if agreed >= ENOUGH else None


def _twice(function: Callable[[Any, Any], Any], start: Any, first: Any, second: Any) -> Any:
    middle = _call(function, copy.deepcopy(start), copy.deepcopy(first))
    return _FAILED if middle is _FAILED else _call(function, middle, copy.deepcopy(second))

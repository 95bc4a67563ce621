"""Reducers: what each gives, what each refuses, and that inputs never change."""

from __future__ import annotations

import copy
import operator
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold_store.errors import ConfigError, ReducerError
from refold_store.jsontext import encode
from refold_store.probing import probe
from refold_store.reducers import (
    BUILT_IN,
    Reducer,
    add,
    append,
    by_key,
    deep_merge,
    from_function,
    import_path,
    last,
    merge,
    overwrite,
    recorded,
    reducer,
    union,
)

FIELDS = by_key({"i": append, "e": last})


@pytest.mark.parametrize(
    ("function", "previous", "update", "expected"),
    [
        (last, 1, 2, 2),
        (overwrite, 1, 2, 2),
        (append, None, 1, [1]),
        (append, [1], [2, 3], [1, 2, 3]),
        (append, [1], (2,), [1, 2]),
        (append, [1], {"a": 1}, [1, {"a": 1}]),
        (append, None, None, [None]),
        (append, ["a"], "xy", ["a", "xy"]),
        (append, [1], [[2]], [1, [2]]),
        (add, None, 5, 5),
        (add, 2, 3, 5),
        (add, Decimal("1.5"), 2, Decimal("3.5")),
        (add, timedelta(1), timedelta(2), timedelta(3)),
        (merge, {"a": 1, "b": 1}, {"b": 2}, {"a": 1, "b": 2}),
        (merge, {"a": 1}, {}, {"a": 1}),
        (merge, {"a": 1}, None, {"a": 1}),
        (merge, None, {"a": 1}, {"a": 1}),
        (merge, {"a": {"x": 1}}, {"a": {"y": 1}}, {"a": {"y": 1}}),
        (deep_merge, {"a": {"x": 1}, "b": 1}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}, "b": 1}),
        (deep_merge, {"a": [1], "b": None}, {"a": [2], "b": {"c": 1}}, {"a": [2], "b": {"c": 1}}),
        (deep_merge, {"a": 1}, {"a": "text"}, {"a": "text"}),
        (deep_merge, {"a": 1}, None, {"a": 1}),
        (union, None, "s", {"s"}),
        (union, {1}, [1, 2], {1, 2}),
        (union, None, frozenset({2}), {2}),
        (FIELDS, {"i": [1], "z": 9}, {"e": []}, {"i": [1], "z": 9, "e": []}),
        (FIELDS, {"i": [1]}, {"i": 2}, {"i": [1, 2]}),
        (FIELDS, {"i": [1]}, {}, {"i": [1]}),
        (FIELDS, {"i": [1]}, None, {"i": [1]}),
        (FIELDS, None, {"i": 1}, {"i": [1]}),
    ],
)
def test_results(function: Reducer, previous: Any, update: Any, expected: Any) -> None:
    """The result is right, a new object, and the inputs are as they were."""
    before = copy.deepcopy((previous, update))
    result = function(previous, update)
    assert result == expected
    assert type(result) is type(expected)
    assert (previous, update) == before
    if isinstance(previous, (list, dict, set)) and function is not last:
        assert result is not previous


@pytest.mark.parametrize(
    ("function", "previous", "update", "says"),
    [
        (append, "hi", "x", "not str"),
        (append, {"a": 1}, 1, "not dict"),
        (append, 1, 1, "not int"),
        (add, 1, None, "int and NoneType"),
        (add, None, "x", "str"),
        (add, [1], [2], "list"),
        (add, 1, True, "bool"),
        (add, 1.5, Decimal(1), "float and Decimal"),
        (merge, {"a": 1}, [1], "not list"),
        (merge, "x", {"a": 1}, "not str"),
        (deep_merge, {"a": {"b": "text"}}, {"a": {"b": {"c": 1}}}, "$.a.b"),
        (deep_merge, {"a": {"b": {"c": 1}}}, {"a": {"b": None}}, "$.a.b"),
        (deep_merge, {"a": [1]}, {"a": 1}, "$.a"),
        (union, None, [{}], "unhashable"),
        (union, None, [[1]], "unhashable"),
        (union, "abc", "x", "not str"),
        (FIELDS, None, {"x": 1}, "['e', 'i']"),
        (FIELDS, None, [1], "not list"),
        (FIELDS, {"i": "text"}, {"i": 1}, "$.i"),
        (FIELDS, [1], {"i": 1}, "not list"),
    ],
)
def test_refusals(function: Reducer, previous: Any, update: Any, says: str) -> None:
    """What cannot be combined is a typed error that names the types or the place."""
    with pytest.raises(ReducerError) as caught:
        function(previous, update)
    assert says in str(caught.value)


def test_by_key_names_the_unknown_field_and_nests() -> None:
    """The path leads to the field, also through a by_key in a by_key."""
    outer = by_key({"inner": by_key({"list": append})})
    assert outer({"inner": {"list": [1]}}, {"inner": {"list": 2}}) == {"inner": {"list": [1, 2]}}
    with pytest.raises(ReducerError, match="no field 'nope'") as caught:
        outer(None, {"inner": {"nope": 1}})
    assert caught.value.path == "$.inner.nope"


PLAIN = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=2)
DOCUMENTS = st.dictionaries(st.sampled_from("abc"), PLAIN | st.lists(PLAIN, max_size=3), max_size=3)


@given(st.sampled_from(["append", "merge", "union", "last"]), st.data())
@settings(max_examples=200, deadline=None)
def test_folding_all_at_once_equals_folding_one_by_one(name: str, data: st.DataObject) -> None:
    """`fold_many` over a whole history is the fold, for every built-in that stores updates."""
    chosen = BUILT_IN[name]
    kinds: dict[str, Any] = {"append": st.lists(PLAIN), "merge": DOCUMENTS, "union": st.lists(PLAIN), "last": PLAIN}
    updates = data.draw(st.lists(kinds[name], max_size=6))
    before = copy.deepcopy(updates)
    step: Any = None
    for update in updates:
        step = chosen.fold_many(step, [update])
    if updates:
        assert encode(chosen.fold_many(None, updates)) == encode(step)
    assert updates == before


def test_folding_a_long_list_takes_time_in_proportion() -> None:
    """A hundred thousand appends fold in one pass, where copying each time would take minutes."""
    assert len(append.fold_many(None, ([index] for index in range(100_000)))) == 100_000


def test_union_documents_have_the_same_bytes_for_any_hash_seed() -> None:
    """The stored order is that of canonical text, whatever the hash of this process."""
    program = "from refold_store.reducers import union; print(union.normal({'b', 'a', 'é', '10', '9', 10, 9, None}))"
    path = os.pathsep.join(filter(None, sys.path))
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert printed == {"['10', '9', 'a', 'b', 'é', 10, 9, None]\n"}


def test_order_of_updates() -> None:
    """Each built-in says whether order matters; by_key is free only if every field is."""
    free = {name: known.commutative for name, known in BUILT_IN.items()}
    assert free == {
        "last": False,
        "overwrite": False,
        "append": False,
        "add": True,
        "merge": False,
        "deep_merge": False,
        "union": True,
    }
    assert by_key({"a": add, "b": union}).commutative is True
    assert by_key({"a": add, "b": last}).commutative is False
    assert by_key({"a": add, "b": lambda old, new: new}).commutative is None


# -- functions -----------------------------------------------------------------------------------------------------


def longest(previous: str | None, update: str) -> str:
    """A pure function for the tests."""
    return update if previous is None or len(update) > len(previous) else previous


def _changes_its_input(previous: Any, update: Any) -> Any:
    previous = [] if previous is None else previous
    previous.append(update)
    return previous


def _changes_its_update(previous: Any, update: Any) -> Any:
    update["seen"] = True
    return update


def _draws(previous: Any, update: Any) -> Any:
    return random.random()


def _counter() -> Callable[[Any, Any], Any]:
    calls: list[int] = []

    def count(previous: Any, update: Any) -> Any:
        calls.append(1)
        return len(calls)

    return count


def _keeps_a_list() -> Callable[[Any, Any], Any]:
    kept: list[Any] = []

    def grow(previous: Any, update: Any) -> Any:
        kept.append(update)
        return kept

    return grow


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_changes_its_input, "changes its inputs"),
        (_changes_its_update, "changes its inputs"),
        (_draws, "not pure"),
        (_counter(), "not pure"),
        (_keeps_a_list(), "not pure"),
    ],
)
def test_an_impure_function_is_refused_when_registered(function: Callable[[Any, Any], Any], says: str) -> None:
    """Changing an input, drawing a number, keeping state: all found by calling it twice."""
    with pytest.raises(ConfigError, match=says):
        from_function("f", function, None)


def test_a_pure_function_passes_and_tells_its_order() -> None:
    """max is free of order; subtraction is not; a function that fails on every probe tells nothing."""
    assert probe(max, "max", "int") == (True, False)
    assert probe(operator.sub, "sub", "int") == (False, False)
    assert probe(operator.add, "add", "str").commutative is False

    def picky(previous: Any, update: Any) -> Any:
        raise TypeError("never")

    assert probe(picky, "picky", None) == (None, True)


def test_a_function_that_cannot_start_takes_the_first_update() -> None:
    """`max` fails on None: the first update is the first value."""
    greatest = from_function("max", max, "int")
    assert greatest(None, 3) == 3
    assert greatest(3, 2) == 3
    assert from_function("longest", longest, "str")(None, "x") == "x"


def test_a_failing_function_is_a_reducer_error() -> None:
    """Whatever the function raises arrives as a typed error with the cause."""
    with pytest.raises(ReducerError, match="ZeroDivisionError") as caught:
        reducer(operator.truediv)(1, 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_functions_are_named_by_path() -> None:
    """A function that can be imported is recorded by path, a local one as local."""
    assert import_path(operator.add) == "operator:add"
    assert reducer("operator:add").spec == "operator:add"
    assert reducer("operator.mul")(2, 3) == 6
    assert import_path(lambda old, new: new).startswith("local:test_functions_are_named_by_path")


@pytest.mark.parametrize("source", ["nope", "no.such.module:f", "operator:nope", "sys:path", 7, {"x": 1}])
def test_unknown_reducers_are_configuration_errors(source: object) -> None:
    """What names no reducer is refused."""
    with pytest.raises(ConfigError):
        reducer(source)


def test_recorded_reducers_come_back_or_say_why_not() -> None:
    """Built-ins and paths are found again; a local function is not, which is told only when it is needed."""
    assert recorded("append") is append
    spec = FIELDS.spec
    assert recorded(spec)({"i": [1]}, {"i": 2}) == {"i": [1, 2]}
    assert recorded("builtins:max")(None, 2) == 2
    lost = recorded("local:f.<locals>.<lambda>")
    with pytest.raises(ReducerError, match="cannot be rebuilt"):
        lost(1, 2)
    missing = recorded("no.such.module:f")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        missing(1, 2)

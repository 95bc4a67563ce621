"""The difference of two documents."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold_replay.diff import MISSING, Change, diff, diff_states, same

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({"a": [1, 2]}, {"a": [1, 3]}, [Change("replace", "$.a[1]", 2, 3)]),
        ({"a": 1}, {"a": 1, "b c": None}, [Change("add", '$["b c"]', MISSING, None)]),
        ([1, 2], [1], [Change("remove", "$[1]", 2, MISSING)]),
        (1, 1.0, [Change("replace", "$", 1, 1.0)]),
        (1, True, [Change("replace", "$", 1, True)]),
        (0.0, -0.0, [Change("replace", "$", 0.0, -0.0)]),
        ({}, [], [Change("replace", "$", {}, [])]),
        (MISSING, 5, [Change("add", "$", MISSING, 5)]),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, []),
        ({"b": 1, "a": 1}, {"b": 2, "a": 2}, [Change("replace", "$.a", 1, 2), Change("replace", "$.b", 1, 2)]),
    ],
)
def test_changes_are_named_by_path(before: Any, after: Any, changes: list[Change]) -> None:
    """Each difference has its path, in order, and types matter."""
    assert diff(before, after) == changes


@given(JSON, JSON)
def test_no_change_means_equal(one: Any, other: Any) -> None:
    """Two documents differ exactly if a change is found; a copy never differs."""
    assert same(one, copy.deepcopy(one))
    if one != other:
        assert not same(one, other)


def test_states_are_compared_key_by_key() -> None:
    """Keys that came or went are added and removed whole."""
    assert diff_states({"a": 1, "b": 2}, {"b": 3, "c": 4}) == [
        ("a", Change("remove", "$", 1, MISSING)),
        ("b", Change("replace", "$", 2, 3)),
        ("c", Change("add", "$", MISSING, 4)),
    ]


def test_deep_documents_do_not_exhaust_the_stack() -> None:
    """A difference 5,000 levels down is found."""
    before: Any = 1
    after: Any = 2
    for _ in range(5000):
        before, after = [before], [after]
    [change] = diff(before, after)
    assert change.path == "$" + "[0]" * 5000

"""JSON Patch: the public suite, all or none, exact values, bounds, and deltas that give the same bytes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold_store import jsontext, patch
from refold_store.patch import apply, delta
from refold_store.turn_errors import PatchInvalid

SUITE = "json-patch/dev/tests.json"

names = st.sampled_from(["", "a", "b", "a/b", "~", "~1", "~01", "0", "-", "é", "\x00", '"'])
scalars = st.sampled_from([None, True, False, 0, 1, -1, 1.0, 0.0, -0.0, 1e22, 2**64, "", "1", "text", "\x00"])
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=4), max_leaves=25
)


def operation(op: str, path: str, **rest: Any) -> dict[str, Any]:
    return {"op": op, "path": path, **rest}


def refusal(document: Any, *operations: Any) -> PatchInvalid:
    """The error of a patch, after a look that the document is as it was."""
    before = copy.deepcopy(document)
    with pytest.raises(PatchInvalid) as caught:
        apply(document, list(operations))
    assert patch.same(document, before)
    return caught.value


def test_the_public_suite_passes(shared_data: Callable[[str], Path]) -> None:
    """Every enabled case of the public suite ends in its document, or is refused; no case changes its input."""
    cases = [case for case in json.loads(shared_data(SUITE).read_bytes()) if not case.get("disabled")]
    wrong = []
    for case in cases:
        before = jsontext.encode(case["doc"])
        try:
            found = jsontext.encode(apply(case["doc"], case["patch"]))
        except PatchInvalid:
            found = None
        expected = jsontext.encode(case["expected"]) if "expected" in case else None
        if found != expected or jsontext.encode(case["doc"]) != before:
            wrong.append((case.get("comment"), case["patch"], found))
    assert wrong == []
    assert len(cases) == 92


def test_a_failing_operation_is_named_and_nothing_changes() -> None:
    """When operation 3 of 5 fails, the error says so with op, path and reason, and the document is as it was."""
    good = operation("add", "/list/-", value=1)
    error = refusal({"list": [0]}, good, good, operation("replace", "/list/7", value=1), good, good)
    assert (error.index, error.count, error.op, error.path) == (3, 5, "replace", "/list/7")
    assert error.reason == "'/list' has 3 elements and holds no '7'"
    assert str(error).startswith("operation 3 of 5 ('replace' '/list/7'): ")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (0.0, -0.0, True),
        (10**22, 1e22, True),
        (2**53 + 1, float(2**53), False),
        (True, 1, False),
        (False, 0, False),
        ([True], [1], False),
        ({"a": {"b": False}}, {"a": {"b": 0}}, False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ("1", 1, False),
        (None, False, False),
    ],
)
def test_numbers_are_equal_by_value_and_true_is_no_number(one: Any, other: Any, equal: bool) -> None:
    """`test` takes 1 for 1.0 and never true for 1, at any depth."""
    tested = [operation("test", "/it", value=other)]
    if equal:
        assert apply({"it": one}, tested) == {"it": one}
    else:
        assert refusal({"it": one}, *tested).reason == "the value there is not the one tested for"


@pytest.mark.parametrize(
    ("document", "wrong", "reason"),
    [
        ({"a": {"b": 1}}, operation("move", "/a/b", **{"from": "/a"}), "into itself"),
        ({"a": 1}, operation("move", "/b", **{"from": ""}), "into itself"),
        ({"a": [1]}, operation("move", "/b", **{"from": "/a/-"}), "from: '/a' is a list, and '-' is no index"),
        ({"a": [1]}, operation("copy", "/a/5", **{"from": "/a/0"}), "past their end"),
        ({"a": "xyz"}, operation("test", "/a/0", value="x"), "'/a' is a text, which has no members"),
        ({"a": None}, operation("add", "/a/b", value=1), "'/a' is null, which has no members"),
        ([1, 2], operation("test", "/01", value=2), "no leading zeros"),
        ([1, 2], operation("test", "/١", value=2), "is no index"),
        ([1, 2], operation("remove", "/-1"), "is no index"),
        ([1, 2], operation("add", "/" + "9" * 5000, value=1), "is no index"),
        ({"~2": 1}, operation("remove", "/~2"), "is no JSON Pointer"),
        ({"a": 1}, operation("remove", ""), "cannot be removed"),
        ({"a": 1}, operation("remove", "/b"), "is an object and holds no 'b'"),
        ({"a": 1}, {"op": "copy", "path": "/b"}, "it has no 'from'"),
        ({"a": 1}, {"op": "move", "path": "/b", "from": 1}, "'from' is text, not a number"),
        ({"a": 1}, {"op": "add", "path": "/b"}, "'value'"),
        ({"a": 1}, {"op": ["add"], "path": "/b"}, "string"),
        ({"a": 1}, "add", "an operation is an object, not a text"),
    ],
)
def test_what_the_standard_forbids_is_refused_with_its_reason(document: Any, wrong: Any, reason: str) -> None:
    """Moves into a descendant, odd indexes, members of texts and operations without their members are refused."""
    error = refusal(document, operation("test", "", value=copy.deepcopy(document)), wrong)
    assert reason in error.reason
    assert error.index == 2


def test_no_message_quotes_a_value_of_the_document() -> None:
    """A refusal shows paths and kinds, so that a sensitive value does not get into a log."""
    document = {"card": {"number": "4111-1111"}, "codes": ["4111-1111"]}
    for wrong in (
        operation("test", "/card", value=1),
        operation("replace", "/card/owner", value=1),
        operation("remove", "/codes/3"),
        operation("copy", "/x", **{"from": "/card/y"}),
        operation("add", "/card/number/x", value=1),
    ):
        assert "4111" not in str(refusal(document, wrong))


def test_a_move_changes_only_copies() -> None:
    """A move that shifts the indexes before its target leaves the elements of the given document alone."""
    document = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    moved = apply(document, [operation("move", "/1/first", **{"from": "/0"})])
    assert moved == [{"name": "b"}, {"name": "c", "first": {"name": "a"}}]
    assert document == [{"name": "a"}, {"name": "b"}, {"name": "c"}]


def test_what_is_not_touched_stays_the_same_object() -> None:
    """A patch copies the way to what it changes and shares the rest; values of the patch are copied."""
    document = {"log": [{"n": 1}, {"n": 2}], "other": {"big": [1]}}
    value = {"n": 3}
    found = apply(document, [operation("add", "/log/-", value=value)])
    assert found["other"] is document["other"]
    assert found["log"][0] is document["log"][0]
    assert found["log"] is not document["log"]
    assert found["log"][2] is not value


class Counted(list[Any]):
    copies = 0

    def copy(self) -> list[Any]:
        Counted.copies += 1
        return Counted(self)


def test_a_container_is_copied_once_a_patch() -> None:
    """However many operations touch a list, the patch copies it once."""
    Counted.copies = 0
    found = apply({"list": Counted()}, [operation("add", "/list/-", value=n) for n in range(50)])
    assert found == {"list": list(range(50))}
    assert Counted.copies == 1


def test_a_message_is_short() -> None:
    """An operation of a size beyond sense is named by its beginning."""
    long = "x" * 100_000
    assert len(str(refusal({}, operation(long, f"/{long}", value=1)))) < 1_000
    assert len(str(refusal({}, operation("remove", f"/{long}")))) < 1_000


def test_work_is_bounded() -> None:
    """Too many operations, copies that double the document again and again, and what is no list of operations end."""
    assert "at most 10000" in refusal({}, *[operation("add", "/a", value=1)] * 10_001).reason
    doubling = [operation("copy", f"/{n}", **{"from": ""}) for n in range(40)]
    assert "its copies come to more than" in refusal({"text": "x" * 1000}, *doubling).reason
    with pytest.raises(PatchInvalid, match="a patch is a list of operations, not a text"):
        apply({}, "[]")  # type: ignore[arg-type]  # what a client may send


def test_a_deep_value_is_refused() -> None:
    """A value nested beyond what can be walked is a refusal, not a crash."""
    deep: list[Any] = []
    for _ in range(20_000):
        deep = [deep]
    assert refusal({}, operation("add", "/a", value=deep)).reason == "its value is nested too deep"


@given(documents, documents)
def test_a_delta_ends_in_the_same_bytes(before: Any, after: Any) -> None:
    """Applying the delta of two documents gives the canonical bytes of the second, and changes neither."""
    kept = jsontext.encode(before), jsontext.encode(after)
    operations = delta(before, after)
    assert jsontext.encode(apply(before, operations)) == kept[1]
    assert (jsontext.encode(before), jsontext.encode(after)) == kept
    assert (operations == []) == (kept[0] == kept[1])
    assert delta(copy.deepcopy(before), copy.deepcopy(after)) == operations


@given(documents, documents)
def test_same_means_the_same_bytes(one: Any, other: Any) -> None:
    """Two values are the same exactly if their canonical bytes are."""
    assert patch.same(one, other) == (jsontext.encode(one) == jsontext.encode(other))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"count": 1}, {"count": 2, "status": "x"}, ["replace /count", "add /status"]),
        ({"b": 1, "a": 1}, {"c": 1, "a": 1}, ["remove /b", "add /c"]),
        ({"a/b": {"~": 1, "keep": "x" * 99}}, {"a/b": {"~": 2, "keep": "x" * 99}}, ["replace /a~1b/~0"]),
        ({"a": 1}, {"a": True}, ["replace /a"]),
        ({"a": 1}, {"a": 1.0}, ["replace /a"]),
        ({"a": 0.0}, {"a": -0.0}, ["replace /a"]),
        ([*"abcdefgh"] * 9, [*"abcdefgh"] * 9 + ["i"], ["add /72"]),
        ([*"abcdefgh"] * 9, ["i"] + [*"abcdefgh"] * 9, ["add /0"]),
        ([*"abcdefgh"] * 9, [*"abcdefgh"] * 8, [f"remove /{n}" for n in range(71, 63, -1)]),
        ({"a": [1, 2, 3]}, {"a": [4, 5, 6]}, ["replace /a"]),
        ([1], {"0": 1}, ["replace "]),
    ],
)
def test_a_delta_is_short(before: Any, after: Any, expected: list[str]) -> None:
    """Members are changed one by one, list elements added where they stand, and small members replaced whole."""
    found = [f"{one['op']} {one['path']}" for one in delta(before, after)]
    assert found == expected


def test_a_delta_never_outweighs_the_document() -> None:
    """A list that was shuffled is replaced, in linear time, and not moved about element by element."""
    before = [{"n": n} for n in range(20_000)]
    after = random.Random(7).sample(before, len(before))
    assert [one["path"] for one in delta({"list": before}, {"list": after})] == ["/list"]
    assert [one["path"] for one in delta(before, after)] == [""]
    assert delta({}, many := {str(n): n for n in range(20_000)}) == [operation("replace", "", value=many)]


def edited(chance: random.Random, document: Any) -> Any:
    """A copy with one random change somewhere."""
    value = chance.choice([None, True, 1, 1.0, -0.0, 2**70, "ü/~", [], {}, [[1]], {"~/": [True]}])
    if not isinstance(document, (dict, list)) or chance.random() < 0.1:
        return value
    if isinstance(document, dict):
        name = chance.choice([*document, "a", "b/c", "~d", "", "0"])
        inner = edited(chance, document[name]) if name in document else value
        return (
            {**document, name: inner}
            if len(document) < 8 and chance.random() < 0.8
            else {other: kept for other, kept in document.items() if other != name}
        )
    index = chance.randrange(len(document) + 1)
    if len(document) > 8 or chance.random() < 0.3:
        return document[:index] + document[index + 1 :]
    if index < len(document) and chance.random() < 0.6:
        return [*document[:index], edited(chance, document[index]), *document[index + 1 :]]
    return [*document[:index], value, *document[index:]]


def test_ten_thousand_edits_in_a_chain() -> None:
    """A client that applies each delta has the very bytes of the source after each of 10,000 random edits."""
    chance = random.Random(20_240)
    source: Any = {"list": [1, 2, 3], "object": {"a": 1}}
    client, expected = json.loads(json.dumps(source)), jsontext.encode(source)
    for _ in range(10_000):
        changed = edited(chance, source) if chance.random() > 0.002 else {"list": [1], "object": {}}
        if not isinstance(changed, (dict, list)):
            changed = {"list": [changed], "object": {"b/c": changed}}
        client = apply(client, json.loads(json.dumps(delta(source, changed))))
        source, expected = changed, jsontext.encode(changed)
        assert jsontext.encode(client) == expected

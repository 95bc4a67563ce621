"""Canonical JSON text: exact both ways, or refused with its place."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from refold_store.errors import NotExact
from refold_store.jsontext import MAX_DEPTH, canonical, decode, encode, find_fault, is_plain, parse, snapshot

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


def nested(levels: int) -> list[Any]:
    """Lists in lists, `levels` deep."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_any_json_value_reads_back_equal(value: Any) -> None:
    """Whatever JSON can hold comes back equal and with the same types."""
    text = encode(value)
    assert decode(text) == value
    assert json.loads(text) == value
    assert json.dumps(decode(text), sort_keys=True) == json.dumps(value, sort_keys=True)
    assert encode(decode(text)) == text
    assert canonical(json.dumps(value, indent=1).encode()) == text


@pytest.mark.parametrize(
    "value",
    [1e22, 1e100, -0.0, 1.0, 5e-324, 2**63, 2**64, -(2**63) - 1, 10**400, "", "\0", {"\0": 1}, "😀"],
)
def test_what_others_lose_is_kept(value: Any) -> None:
    """Floats stay floats, wide integers stay exact, NUL and emoji stay in place."""
    back = decode(encode({"a": [value]}))["a"][0]
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, float):
        assert math.copysign(1, back) == math.copysign(1, value)


def test_a_megabyte_of_text_and_a_hundred_levels_are_kept() -> None:
    """Size and usual depth are no reason to refuse."""
    assert decode(encode("x" * 1_000_000)) == "x" * 1_000_000
    assert decode(encode([10**4299])) == [10**4299]
    assert decode(encode(nested(100))) == nested(100)
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 240, 300, 5000])
def test_too_deep_is_refused(levels: int) -> None:
    """One level over the bound is refused, at any size of the rest, without exhausting the stack."""
    for value in (nested(levels), {"pad": list(range(1000)), "deep": nested(levels)}):
        with pytest.raises(NotExact, match="nested deeper") as caught:
            encode(value)
        assert caught.value.path is not None
        assert caught.value.path.count("[0]") >= MAX_DEPTH - 1


def test_wide_is_not_deep() -> None:
    """Many brackets side by side are no depth."""
    value = [{"i": [index]} for index in range(1000)]
    assert decode(encode(value)) == value


def test_keys_are_sorted_by_code_point_without_blanks() -> None:
    """The order is that of code points, on the fast and on the slow path."""
    expected = '{"":0,"Z":[1,{"a":1,"b":2}],"a":1,"é":2,"\uffff":3,"😀":4}'
    value = {"😀": 4, "\uffff": 3, "é": 2, "a": 1, "Z": [1, {"b": 2, "a": 1}], "": 0}
    assert encode(value).decode() == expected
    wide = encode({**value, "wide": 10**30}).decode()
    assert wide == expected.replace('"é":2', f'"wide":{10**30},"é":2')


class Text(str):
    """A str subclass."""


class Number(float):
    """A float subclass."""


class Colour(str, Enum):  # noqa: UP042  # the older spelling is what people have
    """An enum of text."""

    RED = "red"


class Level(IntEnum):
    """An enum of numbers."""

    LOW = 1


def test_subclasses_are_taken_as_what_they_hold() -> None:
    """An IntEnum is its number, a text enum its text, a defaultdict a dict: they equal what is read back."""
    value = {
        Text("k"): Text("v"),
        "f": Number(-0.0),
        "e": Colour.RED,
        "i": Level.LOW,
        "d": defaultdict(list, {"x": [1]}),
        "o": OrderedDict(b=1, a=2),
    }
    assert encode(value) == b'{"d":{"x":[1]},"e":"red","f":-0.0,"i":1,"k":"v","o":{"a":2,"b":1}}'


class Plain(Enum):
    """An enum that is no text."""

    A = "a"


@dataclass
class Point:
    """A dataclass, which orjson would write as an object."""

    x: int = 1


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Number("-inf"), "-inf"),
        ("\ud800", "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        ((1, 2), "declare a tuple type or pass a list"),
        (Pair(1, 2), "declare a tuple type"),
        ({1, 2}, "declare a set type"),
        (frozenset(), "declare a set type"),
        (b"x", "bytes"),
        (bytearray(b"x"), "bytearray"),
        ({1: "a", "1": "b"}, "text keys only"),
        ({None: 1}, "text keys only"),
        (UUID(int=1), "no declared type"),
        (datetime(2026, 1, 1, tzinfo=UTC), "no declared type"),
        (date(2026, 1, 1), "no declared type"),
        (Decimal("1"), "no declared type"),
        (Fraction(1, 2), "no declared type"),
        (Plain.A, "no declared type"),
        (Point(), "no declared type"),
        (object(), "no declared type"),
        pytest.param(10**4300, "4300 digits", id="wide"),
        (range(3), "no declared type"),
    ],
)
def test_what_has_no_exact_text_is_refused_with_its_path(value: Any, reason: str) -> None:
    """The path leads to the very value, through objects and lists."""
    with pytest.raises(NotExact) as caught:
        encode({"z": 0, "a": [0, {"b c": value}]})
    assert caught.value.path == '$.a[1]["b c"]'
    assert reason in str(caught.value)


def test_a_cycle_is_refused_where_it_closes() -> None:
    """A list in itself, and a dict in its own list; but the same object twice side by side is fine."""
    loop: dict[str, Any] = {"a": []}
    loop["a"].append(loop)
    with pytest.raises(NotExact, match="contains itself") as caught:
        encode(loop)
    assert caught.value.path == "$.a[0]"
    shared = [1]
    assert (
        encode([shared, shared, {"wide": 2**70, "s": shared}]) == b'[[1],[1],{"s":[1],"wide":1180591620717411303424}]'
    )


class Liar:
    """Equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def test_an_object_that_equals_everything_is_still_refused() -> None:
    """Equality alone does not let an object through."""
    with pytest.raises(NotExact):
        encode([Liar()])


def test_two_keys_of_one_text_are_refused() -> None:
    """A text subclass with an identity of its own cannot smuggle in a second member of one name."""

    class Other(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return self is other

        def __hash__(self) -> int:
            return id(self)

    with pytest.raises(NotExact, match="same text"):
        encode({"a": 1, Other("a"): 2})


def test_snapshot_gives_a_copy_of_its_own() -> None:
    """Changing the value afterwards does not change the copy."""
    value = {"a": [1]}
    text, copy = snapshot(value)
    value["a"].append(2)
    assert (text, copy) == (b'{"a":[1]}', {"a": [1]})


def test_find_fault_and_is_plain() -> None:
    """A fine value has no fault; only JSON's own types are plain."""
    assert find_fault({"a": [1, None, True, 1.5, "x"]}) is None
    assert is_plain({"a": [1]})
    assert not is_plain({"a": Point()})
    assert not is_plain([Text("x")])


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=1000, deadline=None)
def test_both_serializers_spell_floats_alike(value: float) -> None:
    """Typed keys are written by Pydantic, plain ones by orjson: the bytes must not differ."""
    assert to_json(value) == encode(value)


def test_both_serializers_spell_text_alike() -> None:
    """The same for every character that might be escaped."""
    characters = "".join(map(chr, [*range(0x300), 0x2028, 0x2029, 0xFEFF, 0xFFFF, 0x1F600]))
    for character in [characters, *characters]:
        assert to_json(character) == encode(character)


# -- foreign text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ('{"a":{"b":1,"c":2,"b":1}}', "$.a.b", "twice"),
        ('[{"a":1},{"a":1,"a":2}]', "$[1].a", "twice"),
        ('{"a":[1,NaN]}', "$.a[1]", "NaN"),
        ("-Infinity", "$", "finite"),
        ("[1e400]", "$[0]", "range of a float"),
        ("[1e-400]", "$[0]", "become 0"),
        ('["\\ud800"]', "$[0]", "surrogate"),
        ("[1]x", "$", "position 3"),
        ("\ufeff1", "$", "byte order mark"),
        ("", "$", "position 0"),
        ("[" * 300 + "]" * 300, "$" + "[0]" * 200, "deeper"),
        ("[" * 100_000, "$", "deeper"),
        ("[" + "1" * 5000 + "]", "$[0]", "4300 digits"),
    ],
)
def test_foreign_text_is_read_strictly(text: str, path: str, reason: str) -> None:
    """What a lenient reader would drop or change is refused with its place."""
    with pytest.raises(NotExact) as caught:
        parse(text)
    assert caught.value.path == path
    assert reason in str(caught.value)


def test_bad_utf8_is_refused_with_its_byte() -> None:
    """Text must be UTF-8."""
    with pytest.raises(NotExact, match="byte 2"):
        parse(b'["\xff"]')


@pytest.mark.parametrize("text", ["0.0", "-0.0e5", "0e400", "0.000", "1e-320"])
def test_true_zeros_and_small_numbers_are_read(text: str) -> None:
    """Only a number that is not zero and would become zero is refused."""
    assert parse(text) == float(text)


# These ask for the last member to win; refold refuses duplicates, since dropping one silently is a loss.
REFUSED_HERE = {"y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"}


def attempt(raw: bytes) -> tuple[Any, str | None]:
    """The value of a text, and the place of its refusal."""
    try:
        return parse(raw), None
    except NotExact as error:
        return None, error.path


def test_json_test_suite(shared_data: Callable[[str], Path]) -> None:
    """Accepted texts read back equal, bad ones are refused with a place, the rest is never silently converted."""
    with gzip.open(shared_data("jsontestsuite") / "dev" / "cases.jsonl.gz") as lines:
        cases = [json.loads(line) for line in lines]
    assert len(cases) > 100
    for case in cases:
        raw = base64.b64decode(case["base64"])
        expected = "reject" if case["name"] in REFUSED_HERE else case["expect"]
        value, place = attempt(raw)
        assert (place is None) is (expected == "accept") or expected == "either", (case["name"], place)
        if place is not None:
            assert place.startswith("$")
            continue
        assert decode(encode(value)) == value
        assert json.loads(raw) == value, case["name"]
        assert canonical(raw) == encode(value)


def test_naughty_strings_are_values(shared_data: Callable[[str], Path]) -> None:
    """Each comes back equal, as a value and as a member's name."""
    strings = json.loads((shared_data("blns") / "dev" / "strings.json").read_bytes())
    assert len(strings) > 200
    for text in strings:
        assert decode(encode({text: text})) == {text: text}
    assert decode(encode(strings)) == strings

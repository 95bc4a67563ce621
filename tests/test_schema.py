"""The compiled schema: what a key stores, what it refuses, how names are found, and the stored declaration."""

# ruff: noqa: RUF012  # a schema class declares groups and invariants as plain attributes, as users write them

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from annotated_types import Ge, Len
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_serializer, model_validator

from refold_store.compare import compare
from refold_store.declare import (
    Owner,
    StateSchema,
    basis_required,
    compile_schema,
    family,
    max_bytes,
    readers,
    scope,
    sensitive,
)
from refold_store.errors import ConfigError, InvalidValue, NotExact, ReducerError, Refused, TooLarge, UnknownKey
from refold_store.families import Family
from refold_store.jsontext import decode, encode
from refold_store.keys import Key
from refold_store.reducers import add, append, by_key, deep_merge, last, merge, union
from refold_store.schema import Schema


class Status(Enum):
    """A plain enum."""

    OPEN = "open"
    DONE = "done"


class Level(IntEnum):
    """An enum of numbers."""

    LOW = 1


class Party(BaseModel):
    """A nested model."""

    name: str
    born: datetime | None = None


class Band(BaseModel):
    """A model with a rule of its own."""

    reserve_band: tuple[int, int]

    @model_validator(mode="after")
    def _rises(self) -> Band:
        if self.reserve_band[0] > self.reserve_band[1]:
            raise ValueError("the reserve band is reversed")
        return self


class Claim(BaseModel):
    """A bit of everything."""

    status: Status
    party: Party
    amount: Decimal
    tags: set[str]
    codes: frozenset[int] = frozenset()
    kind: Literal["auto", "home", 3] = "auto"
    pairs: list[tuple[int, str]] = []
    nested: dict[str, list[set[int]]] = {}


class Config(BaseModel):
    """A closed model: its text is known to read back equal."""

    ruleset: str
    limit: float = 0.0
    codes: list[int] = []


def key_of(annotation: Any) -> Key:
    """The one key of a schema that declares `annotation`."""
    schema = type("OneKey", (StateSchema,), {"__annotations__": {"k": annotation}})
    return compile_schema(schema, owners={"k": "a"} if "Owner" not in str(annotation) else None).key("k")


def write(key: Key, *updates: Any) -> Any:
    """The typed value after these updates, by way of stored texts only."""
    previous: bytes | None = None
    for update in updates:
        prepared = key.prepare(update)
        text = key.reduce(prepared, previous)
        if key.stores == "update":
            assert text is None
            text = encode(key.fold(None if previous is None else decode(previous), decode(prepared.text)))
        previous = text
    assert previous is not None
    assert encode(decode(previous)) == previous
    return key.typed(previous)


EAST = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (tuple[float, float], (5000.0, 25000.5)),
        (tuple[int, ...], (1, 2, 3)),
        (Literal["a", "b"], "b"),
        (datetime, datetime(2026, 11, 30, 2, 40, tzinfo=UTC)),
        (datetime, datetime(2026, 11, 30, 2, 40, 1, 234567, tzinfo=EAST)),
        (datetime, datetime(2026, 11, 30, 2, 40)),  # noqa: DTZ001  # a naive time stays naive
        (timedelta, timedelta(days=1, microseconds=3)),
        (Decimal, Decimal("1.50")),
        (Status, Status.DONE),
        (Level, Level.LOW),
        (set[str], {"b", "a", "é"}),
        (frozenset[int], frozenset({1000, 3, 5})),
        (set[frozenset[int]], {frozenset({3, 1000}), frozenset({2})}),
        (UUID, UUID(int=7)),
        (bytes, b"text"),
        (Party, Party(name="x", born=datetime(2026, 1, 1, tzinfo=EAST))),
        (list[Party], [Party(name="x"), Party(name="y")]),
        (dict[str, Party], {"é": Party(name="x"), "a": Party(name="y")}),
        (dict[int, float], {1: 2.5, -3: 1.0}),
        (int | str, "1"),
        (Party | None, None),
        (int, 10**400),
        (Any, {"a": [1, None, 2**70]}),
        (
            Claim,
            Claim(
                status=Status.OPEN,
                party=Party(name="é"),
                amount=Decimal("0.10"),
                tags={"z", "a"},
                codes=frozenset({10, 9}),
                kind=3,
                pairs=[(1, "x")],
                nested={"b": [{100, 20}], "a": []},
            ),
        ),
    ],
)
def test_declared_types_come_back_equal(annotation: Any, value: Any) -> None:
    """Each comes back as its declared type and equal, and its text is canonical."""
    back = write(key_of(annotation), value)
    assert back == value
    assert type(back) is type(value)


def test_a_naive_time_stays_naive_and_a_zone_stays() -> None:
    """Equal times could differ in their zone: the offset is kept."""
    key = key_of(datetime)
    assert write(key, datetime(2026, 1, 1)).tzinfo is None  # noqa: DTZ001
    assert write(key, datetime(2026, 1, 1, tzinfo=EAST)).utcoffset() == timedelta(hours=5, minutes=30)


def test_sets_have_the_same_bytes_for_any_hash_seed() -> None:
    """Also nested in models, whose classes bring ready-made serializers along."""
    program = """
from pydantic import BaseModel
from refold_store.typed import TypedCodec
class Inner(BaseModel):
    tags: set[str]
class Outer(BaseModel):
    inner: list[Inner]
    more: dict[str, frozenset[str]] | None = None
value = {"inner": [{"tags": {"b", "a", "c"}}], "more": {"x": {"z", "y", "é"}}}
print(TypedCodec(Outer).check(value)[1])
"""
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
    assert len(printed) == 1
    assert b'"tags":["a","b","c"]' in printed.pop().encode()


def test_the_schema_decides() -> None:
    """ "12345" is text for a text key and a number for an int key."""
    assert write(key_of(str), "12345") == "12345"
    assert write(key_of(int), "12345") == 12345


def test_a_reversed_band_is_refused_with_its_message() -> None:
    """The model's own rule holds; the right order is accepted."""
    key = key_of(Annotated[Band, Owner("triage_agent")])
    with pytest.raises(InvalidValue, match="reversed") as caught:
        key.prepare({"reserve_band": (25000, 5000)})
    assert caught.value.key == "k"
    assert write(key, {"reserve_band": (5000, 25000)}).reserve_band == (5000, 25000)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (float, float("nan"), "$"),
        (float | None, float("inf"), "$"),
        (list[float], [1.0, float("-inf")], "$[1]"),
        (dict[str, float], {"a": float("nan")}, "$.a"),
        (dict[str, Any], {"a": [1, float("nan")]}, "$.a[1]"),
        (dict[str, list[Any]], {"a": [1, (2,)]}, "$.a[1]"),
        (dict[str, list[Any]], {"a": [1, {3}]}, "$.a[1]"),
        (dict[str, list[Any]], {"a": [float("nan")]}, "$.a[0]"),
        (dict[str, list[Any]], {"a": [Party(name="x")]}, "$.a[0]"),
        (str, "\ud800", "$"),
        (bytes, b"\xff", "$"),
        (Party, {"name": "\ud800"}, "$.name"),
        (Party, {"name": 1}, "$.name"),
        (Party, {}, "$.name"),
        (Annotated[int, AfterValidator(lambda number: number + 1)], 1, "$"),
        (dict[str, Any], [1], "$"),
        (list[Any], {"a": 1}, "$"),
    ],
)
def test_what_a_type_cannot_keep_is_refused_with_its_path(annotation: Any, value: Any, path: str) -> None:
    """NaN, infinity, untyped parts that JSON would change, wrong types: before the log, with the place."""
    with pytest.raises(InvalidValue) as caught:
        key_of(annotation).prepare(value)
    assert caught.value.path == path
    assert caught.value.key == "k"


def test_changed_and_derived_instances_cannot_slip_through() -> None:
    """An instance spoiled behind its validators, and a subclass whose extra field would be cut off, are refused."""

    class Longer(Config):
        note: str = "kept"

    class Holder(BaseModel):
        inner: Config

    spoiled = Config.model_construct(ruleset=3, limit="x")
    for value in (spoiled, Longer(ruleset="a")):
        with pytest.raises(InvalidValue):
            key_of(list[Config]).prepare([value])
    with pytest.raises(InvalidValue):
        key_of(Config).prepare(spoiled)
    with pytest.raises(InvalidValue):
        key_of(Holder).prepare({"inner": Longer(ruleset="a")})
    with pytest.raises(InvalidValue):
        key_of(Config).prepare(Config.model_construct(ruleset="a", limit=float("nan"), codes=[]))


def test_prepared_is_detached_from_the_callers_objects() -> None:
    """Changing what was handed in changes neither the text nor the validated object."""
    for annotation in (Config, dict[str, Any], Claim, dict[str, list[int]]):
        key = key_of(annotation)
        value: Any = {"codes": [1], "ruleset": "x"} if annotation in (Config, dict[str, Any]) else {"codes": [1]}
        if annotation is Claim:
            value = Claim(status=Status.OPEN, party=Party(name="x"), amount=Decimal(1), tags={"a"})
        prepared = key.prepare(value)
        text = prepared.text
        if annotation is Claim:
            value.tags.add("b")
            assert prepared.typed.tags == {"a"}
        else:
            value["codes"].append(2)
            assert 2 not in decode(encode(decode(prepared.text)))["codes"]
            typed = prepared.typed if isinstance(prepared.typed, dict) else prepared.typed.__dict__
            assert typed["codes"] == [1]
        assert prepared.text == text


def test_an_instance_and_its_dict_give_the_same_bytes() -> None:
    """The fast path for closed models writes what the full one writes."""
    key = key_of(Config)
    given = {"ruleset": "é\n\x7f", "limit": 1e22, "codes": [3, 1]}
    texts = {key.prepare(value).text for value in (given, Config(**given), dict(reversed(given.items())))}
    assert texts == {encode(given)}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


class Wide(BaseModel):
    """Closed, with containers in containers."""

    zeta: dict[str, float]
    alpha: list[int | None]
    text: str
    flag: bool = True


@given(
    st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=4),
    st.lists(st.integers() | st.none(), max_size=4),
    st.text(),
)
@settings(max_examples=200, deadline=None)
def test_the_fast_text_is_canonical(zeta: dict[str, float], alpha: list[int | None], text: str) -> None:
    """What Pydantic writes for a closed type is, byte for byte, the canonical text."""
    value = {"zeta": zeta, "alpha": alpha, "text": text, "flag": False}
    prepared = WIDE.prepare(value)
    assert prepared.text == encode(value)
    assert WIDE.typed(prepared.text) == prepared.typed


WIDE = key_of(Wide)
ANYTHING = key_of(dict[str, list[Any]])


@given(st.dictionaries(st.text(), st.lists(JSON, max_size=3), max_size=3))
@settings(max_examples=200, deadline=None)
def test_the_proven_text_is_canonical(value: dict[str, list[Any]]) -> None:
    """The same where the type is open inside, so that each write is proven."""
    prepared = ANYTHING.prepare(value)
    assert prepared.text == encode(value)
    assert ANYTHING.typed(prepared.text) == value


def test_aliases_computed_and_excluded_fields() -> None:
    """Aliases are written and both spellings read; a field that would be left out is refused when it matters."""

    class Aliased(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        inner_name: int = Field(alias="innerName")

    class Hidden(BaseModel):
        secret: int = Field(default=0, exclude=True)

    class Rounded(BaseModel):
        x: float

        @field_serializer("x")
        def _round(self, value: float) -> float:
            return round(value)

    key = key_of(Aliased)
    assert key.prepare({"inner_name": 1}).text == key.prepare({"innerName": 1}).text == b'{"innerName":1}'
    assert write(key, Aliased(inner_name=1)) == Aliased(inner_name=1)
    assert write(key_of(Hidden), {"secret": 0}) == Hidden()
    with pytest.raises(NotExact):
        key_of(Hidden).prepare({"secret": 1})
    with pytest.raises(NotExact) as caught:
        key_of(Rounded).prepare({"x": 1.5})
    assert caught.value.path == "$.x"


# -- reducers on keys --------------------------------------------------------------------------------------------------


class Report(BaseModel):
    """An element."""

    id: str
    cost: Decimal = Decimal(0)


class Ledger(BaseModel):
    """An object written in parts."""

    items: list[Report] = []
    total: Decimal = Decimal(0)
    tags: set[str] = set()
    owner: str = ""


@pytest.mark.parametrize(
    ("annotation", "stores", "updates", "expected"),
    [
        (Annotated[list[Report], append], "update", [Report(id="1"), [{"id": "2"}]], [Report(id="1"), Report(id="2")]),
        (Annotated[list[int], append], "update", ["1", (2,), [3, 4]], [1, 2, 3, 4]),
        (Annotated[list, append], "update", [None, {"a": 1}, [2]], [None, {"a": 1}, 2]),
        (Annotated[Any, append], "update", [1, 2], [1, 2]),
        (Annotated[list[int], Len(0, 3), append], "value", [1, [2, 3]], [1, 2, 3]),
        (Annotated[tuple[int, ...], append], "value", [1, [2]], (1, 2)),
        (Annotated[list[int] | None, append], "value", [1, 2], [1, 2]),
        (Annotated[float, add], "value", [1, 2.5], 3.5),
        (Annotated[int, Ge(0), add], "value", [5, -3], 2),
        (Annotated[Decimal, add], "value", ["1.10", Decimal("2.20")], Decimal("3.30")),
        (Annotated[timedelta, add], "value", [timedelta(1), timedelta(2)], timedelta(3)),
        (Annotated[dict[str, Report], merge], "update", [{"a": {"id": "1"}}, None, {}], {"a": Report(id="1")}),
        (Annotated[dict, merge], "update", [{"a": 1}, {"b": 2}], {"a": 1, "b": 2}),
        (Annotated[Ledger, merge], "value", [{"owner": "x"}, {"total": 2}], Ledger(owner="x", total=Decimal(2))),
        (Annotated[Ledger, merge], "value", [Ledger(owner="x"), Ledger(total=Decimal(2))], Ledger(owner="x", total=2)),
        (Annotated[dict[str, Any], deep_merge], "update", [{"a": {"x": 1}}, {"a": {"y": 2}}], {"a": {"x": 1, "y": 2}}),
        (Annotated[set[str], union], "update", ["abc", ["x"], {"y"}, frozenset("z")], {"abc", "x", "y", "z"}),
        (Annotated[frozenset[int], union], "update", [1, {1, 2}], frozenset({1, 2})),
        (Annotated[list[str], union], "update", ["b", ["a", "b"]], ["a", "b"]),
        (Annotated[set[int], Len(0, 3), union], "value", [1, {2}], {1, 2}),
        (Annotated[Any, union], "update", ["s", [1]], {"s", 1}),
        (Annotated[dict, by_key({"i": append, "e": last})], "update", [{"i": 1}, {"i": [2]}], {"i": [1, 2]}),
        (
            Annotated[Ledger, by_key({"items": append, "total": add, "tags": union, "owner": last})],
            "value",
            [{"items": {"id": "1"}, "total": "1.5", "tags": "a"}, {"items": [{"id": "2"}], "total": 2, "tags": {"b"}}],
            Ledger(items=[Report(id="1"), Report(id="2")], total=Decimal("3.5"), tags={"a", "b"}),
        ),
        (Annotated[int, max], "value", [3, "7", 5], 7),
    ],
)  # fmt: skip
def test_accumulating_keys(annotation: Any, stores: str, updates: list[Any], expected: Any) -> None:
    """Updates have the element type; open types store the update, types with rules on the whole the value."""
    key = key_of(annotation)
    assert key.stores == stores
    back = write(key, *updates)
    assert back == expected
    assert type(back) is type(expected)


@pytest.mark.parametrize(
    ("annotation", "updates", "error", "path"),
    [
        (Annotated[list[int], append], ["x"], InvalidValue, "$[0]"),
        (Annotated[list[int], Len(0, 2), append], [[1, 2], 3], InvalidValue, "$"),
        (Annotated[float, add], [1e308, 1e308], NotExact, "$"),
        (Annotated[float, add], [1, None], ReducerError, None),
        (Annotated[int, Ge(0), add], [1, -3], InvalidValue, "$"),
        (Annotated[dict[str, Any], deep_merge], [{"a": {"b": "text"}}, {"a": {"b": {}}}], ReducerError, "$.a.b"),
        (Annotated[set[str], union], [[{}]], InvalidValue, "$[0]"),
        (Annotated[dict, by_key({"i": append})], [{"x": 1}], ReducerError, "$.x"),
        (Annotated[dict, by_key({"i": append})], [3], ReducerError, None),
        (Annotated[dict, by_key({"i": add})], [{"i": 1}, {"i": "x"}], ReducerError, "$.i"),
        (Annotated[Ledger, by_key({"items": append})], [{"owner": "x"}], ReducerError, "$.owner"),
        (Annotated[Ledger, merge], [{"nope": 1}], InvalidValue, "$.nope"),
        (Annotated[Ledger, merge], [{"total": "x"}], InvalidValue, "$.total"),
        (Annotated[dict, merge], [[1]], ReducerError, None),
        (Annotated[int, max], [1, {"a": 1}], ReducerError, None),
    ],
)
def test_accumulating_keys_refuse(annotation: Any, updates: list[Any], error: type[Refused], path: str | None) -> None:
    """The refusal names key and path, and is of the right kind."""
    with pytest.raises(error) as caught:
        write(key_of(annotation), *updates)
    assert caught.value.key == "k"
    assert caught.value.path == path


@pytest.mark.parametrize(
    "annotation",
    [Annotated[int, append], Annotated[str, add], Annotated[list[int], merge], Annotated[dict, union]],
)
def test_a_reducer_that_cannot_work_on_its_type_is_a_configuration_error(annotation: Any) -> None:
    """Found when the schema is compiled, not at the first write."""
    with pytest.raises(ConfigError, match="works on"):
        key_of(annotation)


def test_max_bytes() -> None:
    """A value, and the result of a reducer, over the bound is refused with both sizes."""
    small = key_of(Annotated[str, Owner("a"), max_bytes(10)])
    assert write(small, "12345678") == "12345678"
    with pytest.raises(TooLarge) as caught:
        small.prepare("123456789")
    assert (caught.value.size, caught.value.max_bytes) == (11, 10)
    grown = key_of(Annotated[list[int], Len(0, 99), Owner("a"), max_bytes(10), append])
    with pytest.raises(TooLarge):
        write(grown, [1, 2, 3], [4, 5, 6])


# -- names, families, groups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "key", "expected"),
    [
        ("order/{order_id}", "order/#W1", {"order_id": "#W1"}),
        ("order/{order_id}", "order/", None),
        ("order/{order_id}", "order/a/b", None),
        ("order/{order_id}", "xorder/a", None),
        ("order/{order_id}", "order/a\nb", {"order_id": "a\nb"}),
        ("flight/{number}/{date}", "flight/HAT004/2024-05-24", {"number": "HAT004", "date": "2024-05-24"}),
        ("file/{path*}", "file/a/b", {"path": "a/b"}),
        ("{a}.{b}", "x.y", {"a": "x", "b": "y"}),
        ("a{1}/{x}", "a{1}/y", {"x": "y"}),
    ],
)
def test_families_match(template: str, key: str, expected: dict[str, str] | None) -> None:
    """A variable takes one or more characters other than a slash; a starred one takes slashes too."""
    assert Family(template).match(key) == expected


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("order/{id}", "order/{name}", True),
        ("order/{id}", "orders/{id}", False),
        ("{kind}/{id}", "order/{id}", True),
        ("order/{id}", "order/{id}/item/{n}", False),
        ("order/{id*}", "order/{id}/item/{n}", True),
        ("a{x}", "{y}b", True),
        ("a{x}c", "b{y}", False),
        ("{x}-{y}", "{a}+{b}", True),
        ("{x*}", "/{y}", True),
        ("{x}", "{a}/{b}", False),
    ],
)
def test_overlap_is_decided_exactly(one: str, other: str, overlap: bool) -> None:
    """Two families overlap exactly if some key belongs to both."""
    assert Family(one).overlaps(Family(other)) is overlap
    assert Family(other).overlaps(Family(one)) is overlap


@given(st.text("ab/", max_size=6), st.sampled_from(["{x}", "a{x}", "{x*}b", "{x}/{y}", "{x}a{y*}"]), st.data())
@settings(max_examples=300, deadline=None)
def test_a_key_of_two_families_proves_overlap(key: str, template: str, data: st.DataObject) -> None:
    """No key matches two families that are said to be apart."""
    other = data.draw(st.sampled_from(["a{z}", "{z}/a{w}", "b{z*}", "{z}b", "/{z}"]))
    one, two = Family(template), Family(other)
    if one.match(key) is not None and two.match(key) is not None:
        assert one.overlaps(two)


@pytest.mark.parametrize("template", ["order", "{a}{b}", "{a}/{a}", "{}", "{1}"])
def test_bad_templates(template: str) -> None:
    """No variable, two without text between them, one name twice."""
    with pytest.raises(ConfigError):
        Family(template)


class Shop(StateSchema):
    """Exact keys beside a family."""

    routing: Annotated[Config, Owner("triage"), basis_required, readers("b", "a")]
    order: Annotated[dict, Owner("sales"), family("order/{order_id}"), sensitive]
    limits: Annotated[tuple[int, int], Owner("desk"), max_bytes(99)]

    groups = {"desk": ["ann", "bob"]}
    invariants = {"limits": "limits[0] <= limits[1]"}


def test_names_lead_to_keys() -> None:
    """Exact, by family, or unknown with near names; the family's key serves all its members."""
    schema = compile_schema(Shop)
    assert schema.key("order/1") is schema.key("order/2") is schema.keys[1]
    assert "order/1" in schema
    assert "order/" not in schema
    assert list(schema) == ["routing", "order/{order_id}", "limits"]
    with pytest.raises(UnknownKey) as caught:
        schema.key("routin")
    assert caught.value.near == ("routing",)
    for name in range(70_000):
        schema.key(f"order/{name}")


def test_a_group_is_its_members() -> None:
    """The owner is the group, the actors are its members."""
    schema = compile_schema(Shop)
    assert (schema.key("limits").owner, schema.key("limits").actors) == ("desk", {"ann", "bob"})
    assert schema.key("routing").actors == {"triage"}
    key = schema.key("routing")
    assert (key.basis_required, key.readers, key.sensitive, key.scope) == (True, ("b", "a"), False, "run")


def test_invariants() -> None:
    """An invariant holds, is broken, or cannot be told; it is found by the keys it speaks of."""
    schema = compile_schema(Shop)
    (rule,) = schema.invariants_for({"limits", "routing"})
    assert (rule.check({"limits": [1, 2]}), rule.check({"limits": (3, 2)}), rule.check({})) == (True, False, None)
    assert schema.invariants_for({"routing"}) == ()
    assert rule.keys == {"limits"}


def test_an_invariant_lies_in_one_scope() -> None:
    """Keys of a run and of a tenant cannot be compared in one transaction."""

    class Mixed(StateSchema):
        a: Annotated[int, Owner("x")]
        b: Annotated[int, Owner("x"), scope("tenant")]

    with pytest.raises(ConfigError, match="scopes run, tenant"):
        compile_schema(Mixed, invariants={"r": "a < b"})


def test_the_open_schema() -> None:
    """Anybody may write any key; it comes back from its declaration."""
    schema = Schema.open()
    assert "whoever" in schema.key("").actors
    assert write(schema.key("any/thing"), {"a": 1}) == {"a": 1}
    assert Schema.from_declaration(schema.declaration()) == schema


# -- the stored declaration ------------------------------------------------------------------------------------------


class Everything(Shop):
    """Each kind of reducer and type."""

    reports: Annotated[list[Report], Owner("desk"), append]
    spent: Annotated[Decimal, Owner("x"), add]
    tags: Annotated[set[str], Owner("x"), union]
    parts: Annotated[dict, Owner("x"), by_key({"i": append, "n": by_key({"e": last})})]
    ledger: Annotated[Ledger, Owner("x"), merge]
    best: Annotated[int, Owner("x"), max]
    seen: Annotated[datetime, Owner("x"), scope("global")]


def test_a_schema_comes_back_from_its_declaration() -> None:
    """Same fingerprint, same owners, same form of storing; values are checked as JSON."""
    schema = compile_schema(Everything)
    again = Schema.from_declaration(json.loads(schema.declaration_text))
    assert again.fingerprint == schema.fingerprint
    assert again == schema
    assert compare(schema, again) == []
    assert set(schema) == set(again)
    for one in schema.keys:
        other = again.key(one.name.replace("{order_id}", "1"))
        assert (one.name, one.owner, one.actors, one.stores) == (other.name, other.owner, other.actors, other.stores)
        assert one.needs_previous == other.needs_previous
    assert write(again.key("best"), 3, 7, 5) == 7
    assert write(again.key("tags"), ["b"], ["a", "b"]) == ["a", "b"]
    assert write(again.key("reports"), {"id": "1", "cost": "0"}, [{"id": "2", "cost": "1"}])[1]["id"] == "2"
    with pytest.raises(InvalidValue) as caught:
        again.key("routing").prepare({"ruleset": 1})
    assert caught.value.path == "$.ruleset"


def test_a_naive_time_fits_the_recorded_schema() -> None:
    """`format` from a Python type is a remark: what the type accepted is not refused when it is checked again."""
    schema = compile_schema(Everything)
    text = schema.key("seen").prepare(datetime(2026, 1, 1)).text  # noqa: DTZ001
    Schema.from_declaration(schema.declaration()).key("seen").verify(text)


def test_an_unknown_form_is_refused() -> None:
    """A declaration by a later refold is not guessed at."""
    with pytest.raises(ConfigError, match="form 99"):
        Schema.from_declaration({"form": 99, "keys": {}, "groups": {}, "invariants": {}})


def test_differences_are_structured() -> None:
    """Each change names what, which, and from what to what."""

    class Other(StateSchema):
        routing: Annotated[Config, Owner("someone"), basis_required]
        limits: Annotated[tuple[int, int], Owner("desk"), max_bytes(99)]
        new: Annotated[int, Owner("x")]

        groups = {"desk": ["ann"]}
        invariants = {"limits": "limits[0] < limits[1]"}

    found = compare(compile_schema(Shop), compile_schema(Other))
    assert [(one.what, one.name, one.change, one.field) for one in found] == [
        ("key", "routing", "changed", "owner"),
        ("key", "routing", "changed", "readers"),
        ("key", "order/{order_id}", "removed", None),
        ("key", "new", "added", None),
        ("group", "desk", "changed", None),
        ("invariant", "limits", "changed", None),
    ]
    assert str(found[0]) == "key 'routing': owner changed from 'triage' to 'someone'"


def test_upcasters_read_old_values() -> None:
    """A value of an older type is lifted; one that fits neither way is reported with key and path."""

    class Now(StateSchema):
        routing: Annotated[Config, Owner("a")]
        upcasters = {"routing": lambda old: {"ruleset": old["rules"]}}

    key = compile_schema(Now).key("routing")
    assert key.typed(b'{"rules":"QC"}') == Config(ruleset="QC")
    assert key.typed(b'{"ruleset":"ON"}') == Config(ruleset="ON")
    for text in (b'{"rules":5}', b'{"nothing":1}'):
        with pytest.raises(InvalidValue) as caught:
            key.typed(text)
        assert caught.value.key == "routing"
        assert str(caught.value.path).startswith("$.ruleset")


def test_a_value_that_no_longer_fits_is_reported() -> None:
    """Without an upcaster the typed read refuses, and verify says the same."""
    key = key_of(Config)
    for read in (key.typed, key.verify):
        with pytest.raises(InvalidValue) as caught:
            read(b'{"ruleset":7}')
        assert (caught.value.key, caught.value.path) == ("k", "$.ruleset")


def test_json_schema_keys() -> None:
    """Plain JSON under a JSON Schema: the path of the fault, wide integers, and sensitive values kept out of it."""
    types = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    schema = compile_schema({"keys": {"j": {"owner": "x", "type": types}, "s": {"owner": "x", "type": "integer"}}})
    assert write(schema.key("j"), {"a": [1, 10**30]}) == {"a": [1, 10**30]}
    with pytest.raises(InvalidValue) as caught:
        schema.key("j").prepare({"a": [1, "x"]})
    assert caught.value.path == "$.a[1]"
    secret = compile_schema({"keys": {"s": {"owner": "x", "type": "integer", "sensitive": True}}})
    with pytest.raises(InvalidValue) as caught:
        secret.key("s").prepare("my secret")
    assert "my secret" not in str(caught.value)


@pytest.mark.parametrize(
    "types",
    [
        {"type": "nonsense"},
        {"type": "object", "properties": []},
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "file:///etc/passwd"},
    ],
)
def test_what_is_no_json_schema_is_a_configuration_error(types: dict[str, Any]) -> None:
    """Found when compiled; references to other documents are never fetched."""
    with pytest.raises(ConfigError, match="not a JSON Schema"):
        compile_schema({"keys": {"k": {"owner": "x", "type": types}}})


@pytest.mark.parametrize(
    ("types", "reducer", "stores", "updates", "expected"),
    [
        ("array", "append", "update", [1, [2, 3]], [1, 2, 3]),
        ({"type": "array", "items": {"type": "integer"}}, "append", "update", [1, [2]], [1, 2]),
        ({"type": "array", "maxItems": 3}, "append", "value", [1, [2]], [1, 2]),
        ("set", "union", "update", ["b", ["a", "b"]], ["a", "b"]),
        ("any", "union", "update", ["b", ["a"]], ["a", "b"]),
        ("number", "add", "value", [1, 2.5], 3.5),
        ("object", "merge", "update", [{"a": 1}, {"b": 2}], {"a": 1, "b": 2}),
        ({"type": "object", "required": ["a"]}, "merge", "value", [{"a": 1}, {"b": 2}], {"a": 1, "b": 2}),
        ("object", "deep_merge", "update", [{"a": {"x": 1}}, {"a": {"y": 2}}], {"a": {"x": 1, "y": 2}}),
        ("object", {"by_key": {"i": "append"}}, "update", [{"i": 1}, {"i": [2]}], {"i": [1, 2]}),
        ("integer", "builtins:max", "value", [3, 7, 5], 7),
    ],
)
def test_reducers_on_json_schema_keys(types: Any, reducer: Any, stores: str, updates: list[Any], expected: Any) -> None:
    """The same reducers on documents."""
    key = compile_schema({"keys": {"k": {"owner": "x", "type": types, "reducer": reducer}}}).key("k")
    assert key.stores == stores
    assert write(key, *updates) == expected


def test_reading_needs_neither_pydantic_nor_a_validator() -> None:
    """A stored declaration opens without the libraries that only writing needs."""
    program = """
import sys
from refold_store.schema import Schema
schema = Schema.from_declaration({"form": 1, "groups": {}, "invariants": {}, "keys": {
    "k": {"owner": "a", "type": {"type": "integer"}, "reducer": "last", "stores": "value"}}})
assert schema.key("k").typed(b"1") == 1
print(sorted({"pydantic", "jsonschema_rs", "yaml"} & set(sys.modules)))
"""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_many_families_cost_no_more_than_they_are() -> None:
    """Families are compared, and looked for, by their literal start only: thousands take no square of the time."""
    keys = {f"family{number}/{{id}}": {"owner": "a"} for number in range(3000)}
    with pytest.MonkeyPatch.context() as patch:
        compared: list[object] = []
        patch.setattr(Family, "overlaps", lambda _self, other: compared.append(other))
        matched: list[object] = []
        match = Family.match
        patch.setattr(Family, "match", lambda self, key: (matched.append(key), match(self, key))[1])
        schema = compile_schema({"keys": keys})
        assert schema.key("family2999/x").name == "family2999/{id}"
    assert (compared, matched) == ([], ["family2999/x"])


def test_a_stored_declaration_is_not_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stored was checked before."""
    schema = compile_schema({"keys": {"a/{x}/b": {"owner": "a"}, "a/{x}/c": {"owner": "a"}, "k": {"owner": "a"}}})
    monkeypatch.setattr(Family, "overlaps", None)
    again = Schema.from_declaration(decode(schema.declaration_text))
    assert again == schema
    assert again.key("a/1/c").name == "a/{x}/c"


@pytest.mark.parametrize(
    "names",
    [("a/{x}", "a/b{y}"), ("{x}", "a{y}"), ("{x*}", "a/b/{y}"), ("a{x}c", "ab{y}"), ("a/{x}", "a/{y}")],
)
def test_families_that_overlap_are_found_in_either_order(names: tuple[str, str]) -> None:
    """One that begins another is compared with it, whichever is declared first, and with others between."""
    for order in (names, names[::-1]):
        keys = {name: {"owner": "a"} for name in (order[0], "a0/{z}/z/z", "b/{z}/z/z", order[1])}
        with pytest.raises(ConfigError, match="overlap"):
            compile_schema({"keys": keys})


@pytest.mark.parametrize(
    "scalar",
    [
        "2026-99-99",
        "!!int foo",
        "!!bool x",
        "2026-02-30T10:00:00Z",
        '!!float ""',
        "0x_",
        pytest.param("9" * 5000, id="long"),
    ],
)
def test_scalars_that_yaml_cannot_make(tmp_path: Path, scalar: str) -> None:
    """A scalar that only looks like its type is an error with file and line."""
    path = tmp_path / "s.yaml"
    path.write_text(f"keys:\n  k: {{owner: a, max_bytes: {scalar}}}\n")
    with pytest.raises(ConfigError, match=r"s\.yaml:2: keys\.k\.max_bytes: .*quote it"):
        compile_schema(path)


@pytest.mark.parametrize("text", ["raise KeyError(1)", "import sys; sys.exit(3)", "def", "raise OSError"])
@pytest.mark.parametrize("form", ["state_schema: {0}.x", "keys: {{k: {{owner: a, reducer: '{0}:x'}}}}"])
def test_modules_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, form: str) -> None:
    """A module that fails, ends the process or does not parse, and a relative one, are errors of the schema."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_module_h15.py").write_text(text + "\n")
    for name in ("broken_module_h15", "..", ".x"):
        path = tmp_path / "s.yaml"
        path.write_text(form.format(name) + "\n")
        with pytest.raises(ConfigError, match="cannot be loaded"):
            compile_schema(path)

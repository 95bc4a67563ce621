"""Declaring a state schema: classes, models, typed dicts, YAML; and the mistakes each finds, with their place."""

# ruff: noqa: RUF012  # a schema class declares groups and invariants as plain attributes, as users write them

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, NotRequired, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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
from refold_store.errors import ConfigError, InvalidValue
from refold_store.reducers import add, append, by_key, last, overwrite, union
from refold_store.schema import Schema


class Routing(BaseModel):
    """A value."""

    ruleset: str


class ClaimState(StateSchema):
    """The usual form."""

    routing: Annotated[Routing, Owner("triage_agent"), basis_required]
    reports: Annotated[list[str], Owner("research"), append]
    spent: Annotated[float, Owner("billing"), add] = 0.0
    order: Annotated[Routing, Owner("sales"), family("order/{order_id}")]
    shared: Annotated[dict, Owner("billing"), scope("tenant"), sensitive, readers("a", "b"), max_bytes(100)]
    plain: Annotated[int, Owner("billing"), overwrite]
    LIMIT: ClassVar[int] = 3

    groups = {"research": ["evidence_agent", "liability_agent"]}


def test_a_class_declares_keys() -> None:
    """Owner, reducer, options and family are read from the annotations."""
    schema = compile_schema(ClaimState)
    assert list(schema) == ["routing", "reports", "spent", "order/{order_id}", "shared", "plain"]
    assert [key.reducer.name for key in schema.keys] == ["last", "append", "add", "last", "last", "last"]
    assert schema.key("routing").basis_required
    shared = schema.key("shared")
    assert (shared.scope, shared.sensitive, shared.readers, shared.max_bytes) == ("tenant", True, ("a", "b"), 100)
    assert schema.key("reports").actors == {"evidence_agent", "liability_agent"}


def test_compiling_twice_gives_the_same_schema() -> None:
    """A class is compiled once; a compiled schema passes through."""
    schema = compile_schema(ClaimState)
    assert compile_schema(ClaimState) is schema
    assert compile_schema(schema) is schema
    with pytest.raises(ConfigError, match="takes no owners"):
        compile_schema(schema, owners={"routing": "x"})


def test_keys_are_inherited_and_may_be_declared_anew() -> None:
    """A derived class adds keys."""

    class More(ClaimState):
        note: Annotated[str, Owner("triage_agent")]

    schema = compile_schema(More)
    assert "note" in schema
    assert "routing" in schema


class StateModel(BaseModel):
    """A plain model, with nothing of refold in it."""

    model_config = ConfigDict(str_strip_whitespace=True)
    name: str = Field(min_length=2)
    count: int
    tags: Annotated[set[str], union] = set()
    party: Routing

    @field_validator("count", mode="after")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 0:
            raise ValueError("count is negative")
        return value


OWNERS = {"name": "a", "count": "a", "tags": "a", "party": "b"}


def test_a_plain_model_with_owners() -> None:
    """Constraints, field validators and the model's settings hold for each key, one by one."""
    schema = compile_schema(StateModel, owners=OWNERS)
    assert schema.key("count").prepare("3").text == b"3"
    assert schema.key("name").prepare("  xy ").text == b'"xy"'
    assert schema.key("tags").reducer is union
    for key, value in (("name", "x"), ("count", -1), ("party", {})):
        with pytest.raises(InvalidValue):
            schema.key(key).prepare(value)


def test_a_validator_across_fields_is_refused() -> None:
    """Keys are written one by one, so it could never run: better said than skipped."""

    class Crossed(BaseModel):
        a: int

        @model_validator(mode="after")
        def _check(self) -> Crossed:
            return self

    with pytest.raises(ConfigError, match="declare an invariant"):
        compile_schema(Crossed, owners={"a": "x"})


class GraphState(TypedDict):
    """As LangGraph has it."""

    messages: Annotated[list, operator.add]
    total: Annotated[int, operator.add]
    merged: NotRequired[Annotated[dict, operator.or_]]
    note: NotRequired[str]


def test_a_typed_dict_with_annotated_reducers() -> None:
    """operator.add is append on lists and add on numbers; other functions stay what they are."""
    schema = compile_schema(GraphState, owners=dict.fromkeys(("messages", "total", "merged", "note"), "a"))
    assert [key.reducer.name for key in schema.keys] == ["append", "add", "operator:or_", "last"]
    merged = schema.key("merged")
    first = merged.reduce(merged.prepare({"a": 1}), None)
    assert merged.reduce(merged.prepare({"b": 2}), first) == b'{"a":1,"b":2}'


@dataclass
class Simple:
    """A dataclass."""

    a: Annotated[int, Owner("x")]


def test_a_dataclass() -> None:
    """Its fields are keys."""
    assert compile_schema(Simple).key("a").owner == "x"


def longest(previous: list[str] | None, update: str) -> list[str]:
    """A reducer whose update has a type of its own."""
    return sorted([*(previous or []), update], key=len)[-1:]


def test_a_function_is_a_reducer_and_its_update_is_what_it_says() -> None:
    """The annotation of the second parameter is the type of updates."""

    class Custom(StateSchema):
        words: Annotated[list[str], Owner("a"), longest]
        local: Annotated[int, Owner("a"), lambda old, new: (old or 0) * 2 + new]

    schema = compile_schema(Custom)
    words = schema.key("words")
    assert words.reduce(words.prepare("abc"), b'["x"]') == b'["abc"]'
    with pytest.raises(InvalidValue):
        words.prepare(["abc"])
    assert words.reducer.spec == f"{__name__}:longest"
    assert str(schema.key("local").reducer.spec).startswith("local:")


def _two_reducers() -> type:
    class Bad(StateSchema):
        a: Annotated[list, Owner("x"), append, union]

    return Bad


def _two_owners() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("x"), Owner("y")]

    return Bad


def _two_families() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("x"), family("a/{b}"), family("c/{d}")]

    return Bad


def _overlap() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("x"), family("a/{b}")]
        b: Annotated[int, Owner("x"), family("{a}/b")]

    return Bad


def _bad_option() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("x"), scope("galaxy")]

    return Bad


def _option_twice() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("x"), max_bytes(1), max_bytes(2)]

    return Bad


def _no_type() -> type:
    class Thing:
        pass

    class Bad(StateSchema):
        a: Annotated[Thing, Owner("x")]

    return Bad


def _impure() -> type:
    def grow(old: Any, new: Any) -> Any:
        old = [] if old is None else old
        old.append(new)
        return old

    class Bad(StateSchema):
        a: Annotated[list, Owner("x"), grow]

    return Bad


def _unknown_in_invariant() -> type:
    class Bad(StateSchema):
        a: Annotated[bool, Owner("x")]
        invariants = {"i": "a == true"}

    return Bad


def _group_is_agent() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("x")]
        groups = {"x": ["p"], "y": ["x"]}

    return Bad


def _empty_group() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("x")]
        groups = {"x": []}

    return Bad


def _group_of_text() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("x")]
        groups = {"x": "abc"}

    return Bad


def _unknown_agent() -> type:
    class Bad(StateSchema):
        a: Annotated[int, Owner("triag")]
        agents = ["triage", "billing"]

    return Bad


@pytest.mark.parametrize(
    ("make", "says", "where"),
    [
        (_two_reducers, "second reducer", "Bad.a"),
        (_two_owners, "two owners, 'x' and 'y'", "Bad.a"),
        (_two_families, "two families", "Bad.a"),
        (_overlap, "overlap", "Bad.keys.a/{b}"),
        (_bad_option, "one of run, tenant, global", "Bad.a"),
        (_option_twice, "max_bytes twice", "Bad.a"),
        (_no_type, "no validator can be made", "Bad.a"),
        (_impure, "changes its inputs", "Bad.a"),
        (_unknown_in_invariant, "True", "Bad.invariants.i"),
        (_group_is_agent, "is a group and also", "Bad.groups.x"),
        (_empty_group, "no members", "Bad.groups.x"),
        (_group_of_text, "list of agent names", "Bad.groups.x"),
        (_unknown_agent, "did you mean 'triage'", "Bad.a"),
    ],
)
def test_mistakes_in_a_class_name_the_place(make: Callable[[], type], says: str, where: str) -> None:
    """One typed error that names class and key."""
    with pytest.raises(ConfigError) as caught:
        compile_schema(make())
    assert says in str(caught.value)
    assert caught.value.where == where


def test_every_key_without_an_owner_is_named() -> None:
    """All in one error."""
    with pytest.raises(ConfigError) as caught:
        compile_schema(StateModel, owners={"name": "a"})
    assert all(repr(name) in str(caught.value) for name in ("count", "tags", "party"))
    assert "'name'" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"owners": {"routing": "other"}}, "two owners"),
        ({"reducers": {"reports": "union"}}, "second reducer"),
        ({"owners": {"rooting": "x"}}, "did you mean 'routing'"),
        ({"groups": {"research": ["x"]}}, "twice"),
        ({"reducers": {"routing": "nope"}}, "unknown reducer"),
        ({"owners": {"routing": ["a", "b"]}}, "declare a group"),
    ],
)
def test_what_is_added_may_not_contradict(more: dict[str, Any], says: str) -> None:
    """owners=, reducers= and groups= add to a class, they never override it."""
    with pytest.raises(ConfigError, match=says):
        compile_schema(ClaimState, **more)


@pytest.mark.parametrize("source", [3, None, int, "no-such-file.yaml"])
def test_what_is_no_schema(source: Any) -> None:
    """A typed error for anything else."""
    with pytest.raises(ConfigError):
        compile_schema(source)


# -- YAML ------------------------------------------------------------------------------------------------------------

GOOD = """
description: a claim
keys:
  routing:
    owner: triage
    type: {type: object, required: [ruleset], properties: {ruleset: {type: string}}}
    basis_required: true
    description: which rules apply
  reports: {owner: research, type: array, reducer: append, max_bytes: 1000, readers: [triage]}
  parts: {owner: triage, type: object, reducer: {by_key: {i: append, e: last}}}
  "flight/{number}/{date}": {owner: triage, type: object, scope: tenant, sensitive: true}
  "literal/{x}": {owner: triage, type: integer?, family: false}
  band: {owner: triage, type: array}
groups:
  research: [ann, bob]
invariants:
  rises: band[0] <= band[1]
"""


@pytest.fixture
def yaml_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a text to claims.yaml and gives its path."""

    def make(text: str) -> str:
        path = tmp_path / "claims.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return make


def test_yaml_declares_keys(yaml_file: Callable[[str], str]) -> None:
    """Inline JSON Schema, short types, families, groups, invariants, options."""
    schema = compile_schema(yaml_file(GOOD))
    assert schema.key("flight/HAT004/2024-05-24").scope == "tenant"
    assert schema.key("literal/{x}").prepare(None).text == b"null"
    assert "literal/y" not in schema
    assert schema.key("reports").actors == {"ann", "bob"}
    assert schema.key("parts").reducer == by_key({"i": append, "e": last})
    assert schema.invariants[0].keys == {"band"}
    with pytest.raises(InvalidValue) as caught:
        schema.key("routing").prepare({})
    assert caught.value.key == "routing"


def test_a_mapping_means_the_same_as_the_file(yaml_file: Callable[[str], str]) -> None:
    """The same declaration has the same fingerprint, in any order and form."""
    one = compile_schema(yaml_file("keys: {a: {owner: x, type: integer}, b: {type: string}}\nowners: {b: y}"))
    keys = {"b": {"owner": "y", "type": {"type": "string"}}, "a": {"owner": "x", "type": "int"}}
    other = compile_schema({"keys": keys})
    assert one.fingerprint == other.fingerprint
    assert Schema.from_declaration(one.declaration()) == one


def test_the_engine_form_with_inline_types(yaml_file: Callable[[str], str]) -> None:
    """`state_schema` with owners, groups and reducers beside it; other sections are not its business."""
    text = """
agents: {triage: {model: x}, ann: {}, bob: {}}
tools: [a, b]
state_schema:
  invoice_id: string
  reports: {type: array}
owners: {invoice_id: triage, reports: research}
groups: {research: [ann, bob]}
reducers: {reports: append}
"""
    schema = compile_schema(yaml_file(text))
    assert schema.key("reports").reducer is append
    assert schema.key("invoice_id").owner == "triage"


def test_the_engine_form_with_a_class(yaml_file: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`state_schema: package.module.Class` names a class; a plain model gets its owners from the file."""
    import sys
    import types

    module = types.ModuleType("claims_for_test")
    module.StateModel = StateModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "claims_for_test", module)
    owners = "owners: {name: a, count: a, tags: a, party: b}"
    schema = compile_schema(yaml_file(f"state_schema: claims_for_test.StateModel\n{owners}"))
    assert schema == compile_schema(StateModel, owners=OWNERS)
    with pytest.raises(ConfigError, match=r"claims.yaml:1: state_schema: .*cannot be loaded"):
        compile_schema(yaml_file(f"state_schema: claims_for_test.Nope\n{owners}"))
    with pytest.raises(ConfigError, match=r"claims.yaml:2: owners.nope"):
        compile_schema(yaml_file("state_schema: claims_for_test.StateModel\nowners: {nope: a}"))


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("keys:\n  a: {owner: x}\n  a: {owner: y}\n", "3: keys.a", "given twice"),
        ("keys:\n  a:\n    owner: x\n    owner: y\n", "4: keys.a.owner", "given twice"),
        ("keys:\n  a: {owner: x, typ: string}\n", "2: keys.a.typ", "did you mean 'type'"),
        ("keys:\n  a:\n    owner: x\n    type: strin\n", "4: keys.a.type", "did you mean 'string'"),
        ("keys:\n  a:\n    owner: [x, y]\n", "3: keys.a.owner", "declare a group"),
        ("keys:\n  on: {owner: x}\n", "2: keys", "quote it"),
        ("keys:\n  a: {owner: x, type: {const: 2024-01-01}}\n", "2: keys.a.type", "quote it"),
        ("keys:\n  a:\n    owner: x\n    type: {type: nope}\n", "4: keys.a.type", "not a JSON Schema"),
        ("keys:\n  a: {owner: x}\nowners: {a: y}\n", "3: owners.a", "two owners"),
        ("keys:\n  a: {owner: x, reducer: append, type: array}\nreducers: {a: union}\n", "3: reducers.a", "second"),
        ("keys:\n  a: {owner: x, type: integer, reducer: append}\n", "2: keys.a.type", "works on"),
        ("keys:\n  a: {owner: x, scope: moon}\n", "2: keys.a.scope", "one of run"),
        ("keys:\n  a: {owner: x, max_bytes: true}\n", "2: keys.a.max_bytes", "number of bytes"),
        ("keys:\n  a/{x}: {owner: x}\n  a/{y}: {owner: x}\n", "3: keys.a/{y}", "overlap"),
        ("keys:\n  a: {owner: x}\ninvariants:\n  i: b > 1\n", "4: invariants.i", "b"),
        ("keys:\n  a: {owner: x}\ngroups: {x: [p], q: [x]}\n", "3: groups.x", "is a group and also"),
        ("keys:\n  a: {owner: x}\nagents: [x, g]\ngroups:\n  g: [x]\n", "5: groups.g", "is a group and also"),
        ("keys:\n  a: {type: string}\n  b: {}\n", "2: keys.a", "'a', 'b'"),
        ("keys: [a]\n", "1: keys", "mapping"),
        ("keyz: {}\n", "1", "nothing is declared"),
        ("keys: {}\nstate_schema: {}\n", "2: state_schema", "either"),
        ("keys:\n  a: [\n", "3", "not YAML"),
        ("a: !!python/object:os.system x\n", "1: a", "could not determine a constructor"),
        ("a: &a [*a]\n", "1", "too large or nested too deep"),
    ],
)
def test_yaml_mistakes_name_file_line_and_path(
    yaml_file: Callable[[str], str], text: str, where: str, says: str
) -> None:
    """Every mistake leads to its line."""
    path = yaml_file(text)
    with pytest.raises(ConfigError) as caught:
        compile_schema(path)
    assert says in str(caught.value)
    assert str(caught.value.where).startswith(f"{path}:{where}")


def test_an_alias_bomb_is_stopped(yaml_file: Callable[[str], str]) -> None:
    """Aliases that unfold to a billion nodes end in a typed error."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(ConfigError, match="too large"):
        compile_schema(yaml_file("\n".join(lines)))


def test_an_empty_file_is_a_mistake(yaml_file: Callable[[str], str]) -> None:
    """Nothing is no schema."""
    with pytest.raises(ConfigError, match="empty"):
        compile_schema(yaml_file(""))

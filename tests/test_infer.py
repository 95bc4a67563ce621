"""Drawing up a schema from recorded runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from refold_replay.infer import Inferred, infer_schema
from refold_replay.shapes import Shape
from refold_store.declare import compile_schema

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def inferred(
    tmp_path: Path, *writes: tuple[str, str, str | None, Any], seed: list[dict[str, Any]] | None = None
) -> Inferred:
    """The schema of writes given as (agent, key, on_behalf_of, value)."""
    path = tmp_path / "events.jsonl"
    with path.open("w") as file:
        for seq, (agent, key, actor, value) in enumerate(writes, 1):
            line = {"run": "r", "seq": seq, "kind": "write", "agent": agent, "key": key, "value": value}
            file.write(json.dumps(line | ({} if actor is None else {"on_behalf_of": actor})) + "\n")
    if seed is None:
        return infer_schema([path])
    planted = tmp_path / "seed.jsonl"
    planted.write_text("".join(json.dumps(line) + "\n" for line in seed))
    return infer_schema([path], seed=planted)


@given(st.lists(JSON, min_size=1, max_size=6))
def test_every_value_fits_the_type_drawn_from_it(values: list[Any]) -> None:
    """A shape's schema accepts each value that went into it."""
    shape = Shape()
    for value in values:
        shape.add(value)
    validator = jsonschema_rs.validator_for(shape.schema())
    assert all(validator.is_valid(value) for value in values)


def test_keys_of_one_prefix_become_a_family(tmp_path: Path) -> None:
    """Several keys before one slash are a family; a lone one, and one with braces, stay themselves."""
    found = inferred(
        tmp_path, ("a", "order/1", None, 1), ("a", "order/2", None, 2), ("a", "user/1", None, 3),
        ("a", "doc/x/1", None, 4), ("a", "doc/y", None, 5), ("a", "plain", None, 6), ("a", "odd{x}", None, 7),
    )  # fmt: skip
    assert list(found.document["keys"]) == ["doc/{id*}", "odd{x}", "order/{id}", "plain", "user/1"]
    assert found.document["keys"]["odd{x}"]["family"] is False
    assert found.schema.key("order/77").name == "order/{id}"


def test_owners_are_agents_or_groups_of_those_who_act(tmp_path: Path) -> None:
    """One agent owns what it alone writes; others that act for it, or several agents, make a group."""
    found = inferred(
        tmp_path, ("a", "own", None, 1), ("svc", "served", "a", 1), ("svc", "served", "b", 2),
        ("a", "shared", None, 1), ("b", "shared", None, 2),
    )  # fmt: skip
    owners = {name: entry["owner"] for name, entry in found.document["keys"].items()}
    assert owners == {"own": "a", "served": "svc", "shared": "shared_writers"}
    assert found.document["groups"] == {"svc": ["a", "b"], "shared_writers": ["a", "b"]}


def test_a_group_never_bears_an_agents_name(tmp_path: Path) -> None:
    """An agent that acts itself and lets others act for it gets a group beside its name."""
    found = inferred(tmp_path, ("svc", "x", "a", 1), ("svc", "y", None, 1))
    assert found.document["keys"]["x"]["owner"] == "svc_group"
    assert found.document["groups"] == {"svc_group": ["a", "svc"]}


def test_types_ask_for_what_all_values_have(tmp_path: Path) -> None:
    """A member is required if every value had it; null and other types widen the type; more members are allowed."""
    found = inferred(tmp_path, ("a", "k", None, {"x": 1, "y": None}), ("a", "k", None, {"x": 2.5, "y": "t", "z": []}))
    assert found.document["keys"]["k"]["type"] == {
        "type": "object",
        "properties": {"x": {"type": "number"}, "y": {"type": ["string", "null"]}, "z": {"type": "array"}},
        "required": ["x", "y"],
    }


def test_an_object_that_is_a_table_is_only_an_object(tmp_path: Path) -> None:
    """Many member names, none in every value, are entries and not fields."""
    writes = [("a", "k", None, {f"id{n}": {"n": n}}) for n in range(10)]
    assert inferred(tmp_path, *writes).document["keys"]["k"]["type"] == {"type": "object"}


def test_a_key_that_is_only_read_is_declared(tmp_path: Path) -> None:
    """A key nobody writes gets an owner that says so."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"run":"r","seq":1,"kind":"read","agent":"a","key":"k","version":0}\n')
    found = infer_schema([path])
    assert found.document == {"keys": {"k": {"owner": "unknown", "type": {}}}}


def test_a_seed_adds_owners_and_types(tmp_path: Path) -> None:
    """Keys of the seed are declared with its owner and value."""
    found = inferred(tmp_path, ("a", "k", None, 1), seed=[{"key": "s", "owner": "b", "version": 1, "value": "t"}])
    assert found.document["keys"]["s"] == {"owner": "b", "type": {"type": "string"}}


def test_the_text_reads_back_as_the_same_schema(tmp_path: Path) -> None:
    """The YAML, with its comments, compiles to the same fingerprint; each guess has a comment."""
    found = inferred(
        tmp_path,
        ("on", "yes", None, "2024-01-01"),
        ("a\nb", "x/1", "1e3", {"null": None}),
        ("no", "x/2", None, {"é": 1.0}),
    )
    path = tmp_path / "schema.yaml"
    path.write_text(found.text)
    assert compile_schema(str(path)).fingerprint == found.schema.fingerprint
    assert found.text.count("  # ") == found.guesses


def test_the_recorded_runs_give_the_same_text_each_time(shared_data: Callable[[str], Path]) -> None:
    """Inferring is deterministic, and finds the families and owners of the retail runs."""
    folder = shared_data("tau-retail/dev")
    one, two = (infer_schema([folder / "events.jsonl.gz"], seed=folder / "seed.jsonl.gz") for _ in range(2))
    assert one.text == two.text
    assert {name: entry["owner"] for name, entry in one.document["keys"].items()} == {
        "order/{id}": "orders_service",
        "product/{id}": "catalog_service",
        "user/{id}": "accounts_service",
    }

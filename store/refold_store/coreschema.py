"""A look at a Pydantic core schema: what a type promises, and two changed copies of its schema.

Rules
- A type is *closed* when every part is on the list below, with no function of the user's, no alias, no excluded or
  computed field: then its text reads back equal, and the text's order is known.
- `strict_and_sorted` makes floats refuse NaN and infinity, and validates model fields in the order of their names, so
  that the serializer writes them sorted. Closed types hold no function, so no one can tell the order.
- `sorted_sets` makes every set write its elements sorted by canonical text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import core_schema

from refold_store.jsontext import encode

Node = dict[str, Any]

_LEAVES = {"str", "int", "bool", "none", "float"}
_CONTAINERS = {"nullable", "list", "tuple", "dict", "typed-dict", "model", "model-fields", "definitions"}
_FIELD_WORDS = {"type", "schema", "metadata", "frozen", "required"}
_PYTHON_KINDS = {"int": "int", "float": "float", "bool": "bool", "str": "str", "list": "list", "dict": "dict"}
_PYTHON_KINDS |= {"set": "set", "frozenset": "set", "tuple": "tuple", "decimal": "Decimal", "typed-dict": "dict"}
_FRESH_FACTORIES = (list, dict, tuple, str, int, float)


class Look:
    """What one type promises."""

    __slots__ = ("closed", "kind", "maps", "models", "sets")

    def __init__(self, core: Node) -> None:
        nodes = list(_nodes(core))
        types = {str(node["type"]) for node in nodes}
        self.models = bool(types & {"model", "dataclass"})
        """Whether it holds models (whose instances pass validation unseen)."""
        self.maps = "dict" in types
        """Whether it holds dicts, whose keys come in any order."""
        self.sets = bool(types & {"set", "frozenset"})
        self.closed = all(_is_closed(node) for node in nodes)
        self.kind = _PYTHON_KINDS.get(_outermost(core))


def _outermost(core: Node) -> str:
    while core["type"] in {"definitions", "default"}:
        core = core["schema"]
    return str(core["type"])


def _nodes(core: Any) -> Iterator[Node]:
    """Every schema node: each dict with a `type`, outside of metadata, defaults and other data."""
    stack = [core]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if isinstance(part.get("type"), str):
                yield part
            stack.extend(inner for word, inner in part.items() if word not in _DATA_WORDS)
        elif isinstance(part, (list, tuple)):
            stack.extend(part)


_DATA_WORDS = {"metadata", "default", "expected", "config", "serialization", "cls", "ref"}


def _is_closed(node: Node) -> bool:
    kind = node["type"]
    if "serialization" in node:
        return False
    if kind in _LEAVES or kind == "definition-ref":
        return True
    if kind in {"model-field", "typed-dict-field"}:
        return set(node) <= _FIELD_WORDS
    if kind == "literal":
        return all(type(choice) is str for choice in node["expected"])
    if kind == "default":
        return _is_closed_default(node)
    return kind in _CONTAINERS and _CONTAINER_RULES.get(kind, _always)(node)


def _always(_node: Node) -> bool:
    return True


def _is_closed_dict(node: Node) -> bool:
    return bool(node.get("keys_schema", {}).get("type") == "str" and "values_schema" in node)


def _is_closed_fields(node: Node) -> bool:
    return (
        not node.get("computed_fields")
        and node.get("extra_behavior", "ignore") != "allow"
        and not node.get("extras_schema")
    )


def _is_closed_model(node: Node) -> bool:
    config = node.get("config", {})
    words = {"type", "cls", "schema", "config", "ref", "metadata", "custom_init", "root_model", "frozen"}
    return (
        set(node) <= words
        and not node.get("custom_init")
        and not node.get("root_model")
        and set(config) <= {"title", "extra_fields_behavior", "frozen"}
        and config.get("extra_fields_behavior") != "allow"
        and node["schema"]["type"] == "model-fields"
        and node["cls"].__eq__ is BaseModel.__eq__
    )


def _is_closed_list(node: Node) -> bool:
    return "items_schema" in node


_CONTAINER_RULES: dict[str, Callable[[Node], bool]] = {
    "dict": _is_closed_dict,
    "list": _is_closed_list,
    "model": _is_closed_model,
    "model-fields": _is_closed_fields,
    "tuple": _is_closed_list,
    "typed-dict": _is_closed_fields,
}


def _is_closed_default(node: Node) -> bool:
    """Defaults are not validated, so only those that plainly fit count."""
    if node.get("validate_default") or node.get("default_factory_takes_data"):
        return False
    if "default_factory" in node:
        return node["default_factory"] in _FRESH_FACTORIES and _outermost(node) in _PYTHON_KINDS
    default, inner = node.get("default"), node["schema"]
    if default is None:
        return inner["type"] in {"nullable", "none"}
    kind = inner["schema"]["type"] if inner["type"] == "nullable" else inner["type"]
    return type(default).__name__ == kind and kind in {"str", "int", "bool"}


def strict_and_sorted(core: Node) -> Node:
    """A copy that refuses NaN and infinity and validates fields in the order of their names."""

    def change(node: Node) -> None:
        if node["type"] == "float":
            node["allow_inf_nan"] = False
        elif node["type"] in {"model-fields", "typed-dict"}:
            node["fields"] = dict(sorted(node["fields"].items()))

    copy: Node = _changed(core, change)
    return copy


def sorted_sets(core: Node) -> Node:
    """A copy whose sets are written sorted."""

    def change(node: Node) -> None:
        if node["type"] in {"set", "frozenset"} and "serialization" not in node:
            node["serialization"] = core_schema.wrap_serializer_function_ser_schema(_write_set, when_used="json")

    copy: Node = _changed(core, change)
    return copy


def _write_set(value: Any, handler: Callable[[Any], list[Any]]) -> list[Any]:
    return sorted(handler(value), key=encode)


def _changed(core: Any, change: Callable[[Node], None]) -> Any:
    if isinstance(core, dict):
        copy = {word: inner if word in _DATA_WORDS else _changed(inner, change) for word, inner in core.items()}
        if isinstance(copy.get("type"), str):
            change(copy)
        return copy
    if isinstance(core, list):
        return [_changed(inner, change) for inner in core]
    return core

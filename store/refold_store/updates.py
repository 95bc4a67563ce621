"""Which form a key stores, and the type of its updates: the table that joins reducers and types. JSON Schema side.

| reducer | type | stores | an update is |
|---|---|---|---|
| last | any | value | the whole value |
| append, union, merge | open (members are checked one by one) | update | new members |
| append, union, merge | with rules on the whole | value | new members |
| deep_merge, by_key | untyped | update | a part of the object |
| deep_merge, by_key | typed | value | a part of the object |
| add | any number | value | a number |
| any other function | any | value | plain JSON |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold_store.codecs import JsonCodec, is_untyped, open_shape, relaxed
from refold_store.errors import ConfigError
from refold_store.keys import Check, Key, Options, Stores, Upcaster
from refold_store.reducers import Reducer

_OPEN_SHAPES = {
    "append": {"any", "list"},
    "union": {"any", "list", "set"},
    "merge": {"any", "dict"},
}
NEEDS_PREVIOUS = {"deep_merge", "by_key"}

KINDS = {
    "append": ("list", "tuple"),
    "union": ("set", "list"),
    "add": ("int", "float", "Decimal"),
    "merge": ("dict",),
    "deep_merge": ("dict",),
    "by_key": ("dict",),
}
"""Which kinds of type a built-in works on. A type whose kind is not known is let through."""


def json_key(
    name: str,
    *,
    schema: Mapping[str, Any],
    owner: str,
    actors: frozenset[str],
    reducer: Reducer,
    options: Options,
    family: bool = False,
    stores: Stores | None = None,
    upcaster: Upcaster | None = None,
    formats: bool = True,
) -> Key:
    """A key whose type is a JSON Schema. `stores` overrides what would be chosen (a stored declaration says it)."""
    codec = JsonCodec(schema, formats=formats, mask=options.sensitive)
    form = stores or _stores(reducer, schema)
    if stores is None:  # a declaration of a person's: find its mistakes now
        check_kind(reducer, codec.kind)
        codec.compile()
    return Key(
        name,
        owner=owner,
        actors=actors,
        codec=codec,
        reducer=reducer,
        stores=form,
        needs_previous=form == "update" and reducer.name in NEEDS_PREVIOUS,
        update_check=_update_check(codec, reducer),
        normal=reducer.normal,
        options=options,
        family=family,
        upcaster=upcaster,
    )


def check_kind(reducer: Reducer, kind: str | None) -> None:
    """Raises ConfigError for a built-in reducer on a type it cannot work on."""
    wanted = KINDS.get(reducer.name)
    if wanted is not None and kind is not None and kind not in wanted:
        raise ConfigError(f"reducer {reducer.name!r} works on {' or '.join(wanted)}, not on a type of kind {kind!r}")


def _stores(reducer: Reducer, schema: Mapping[str, Any]) -> Stores:
    if reducer.custom:
        return "value"
    if reducer.name in NEEDS_PREVIOUS:
        return "update" if is_untyped(schema) else "value"
    return "update" if open_shape(schema) in _OPEN_SHAPES.get(reducer.name, ()) else "value"


def _update_check(codec: JsonCodec, reducer: Reducer) -> Check | None:
    if reducer.name == "last":
        return None
    if reducer.name in KINDS and open_shape(codec.schema) in _OPEN_SHAPES.get(reducer.name, set()) - {"any"}:
        return codec.check
    return JsonCodec(_update_schema(codec.schema, reducer), formats=codec.formats, mask=codec.mask).check


def _update_schema(schema: Mapping[str, Any], reducer: Reducer) -> dict[str, Any]:
    if reducer.name in ("append", "union"):
        return {**relaxed(schema), "type": "array"}
    if reducer.name == "merge":
        return {**relaxed(schema), "type": "object"}
    if reducer.name == "add":
        return {"type": "integer" if schema.get("type") == "integer" else "number"}
    return {"type": "object"} if reducer.name in NEEDS_PREVIOUS else {}

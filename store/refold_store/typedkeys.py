"""Keys whose type is a Python type: what they store, and the type of their updates (see updates.py for the table).

Rules
- `Any`, `dict`, `dict[str, Any]`, `list`, `list[Any]` are plain JSON: no Pydantic on their path.
- An update of an accumulating key has the element type: a list for `append`, a set for `union`, a part of the object
  for `merge` and `by_key` (each field by its own type), the number without its bounds for `add`. The bounds hold for
  the result.
- A reducer of the user's takes what its second parameter is annotated with; without an annotation, or with `Any`, a
  value of the key's type where the update is one, else plain JSON. A tuple is the list that is stored of it.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict, is_typeddict

from refold_store.codecs import Codec, JsonCodec
from refold_store.errors import ConfigError, InvalidValue
from refold_store.jsontext import decode, encode
from refold_store.keys import Check, Key, Options, Stores, Upcaster
from refold_store.reducers import Reducer, union
from refold_store.typed import TypedCodec
from refold_store.updates import NEEDS_PREVIOUS, check_kind, json_key

_UNTYPED: Mapping[Any, dict[str, Any]] = {
    Any: {},
    object: {},
    dict: {"type": "object"},
    dict[str, Any]: {"type": "object"},
    list: {"type": "array"},
    list[Any]: {"type": "array"},
}

_OPEN = {"append": (list,), "union": (list, set, frozenset), "merge": (dict,)}
"""Outermost types whose members are checked one by one."""


def typed_key(
    name: str,
    annotation: Any,
    *,
    config: ConfigDict | None = None,
    owner: str,
    actors: frozenset[str],
    reducer: Reducer,
    options: Options,
    family: bool = False,
    upcaster: Upcaster | None = None,
) -> Key:
    """A key of a Python type."""
    if reducer.name == "union" and annotation in (Any, object):
        annotation = set[Any]
    schema = untyped_schema(annotation)
    if schema is not None and not (reducer.custom and not reducer.fields):
        return json_key(
            name,
            schema=schema,
            owner=owner,
            actors=actors,
            reducer=reducer,
            options=options,
            family=family,
            upcaster=upcaster,
        )
    codec: Codec = TypedCodec(annotation, config=config) if schema is None else JsonCodec(schema)
    check_kind(reducer, None if _is_object(_bare(annotation)) else codec.kind)
    stores: Stores = "update" if _is_open(annotation, reducer) else "value"
    return Key(
        name,
        owner=owner,
        actors=actors,
        codec=codec,
        reducer=reducer,
        stores=stores,
        update_check=_update_check(annotation, reducer, codec, config),
        normal=_normal(reducer),
        options=options,
        family=family,
        upcaster=upcaster,
    )


def untyped_schema(annotation: Any) -> dict[str, Any] | None:
    """The JSON Schema of an annotation that says no more than "JSON"; None for a type."""
    try:
        return _UNTYPED.get(annotation)
    except TypeError:  # an annotation that cannot be hashed
        return None


def kind_of(annotation: Any) -> str | None:
    """Which probe values suit a type."""
    bare = _bare(annotation)
    outermost = get_origin(bare) or bare
    if _is_object(bare):
        return "dict"
    name = getattr(outermost, "__name__", None)
    return {"frozenset": "set"}.get(name, name) if isinstance(name, str) else None


def _bare(annotation: Any) -> Any:
    """The type without `Annotated` and without `| None`."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            inner = [part for part in get_args(annotation) if part is not type(None)]
            if len(inner) != 1:
                return annotation
            annotation = inner[0]
        else:
            return annotation


def _is_object(bare: Any) -> bool:
    return isinstance(bare, type) and (
        issubclass(bare, BaseModel) or is_typeddict(bare) or dataclasses.is_dataclass(bare)
    )


def _is_open(annotation: Any, reducer: Reducer) -> bool:
    if get_origin(annotation) is Annotated:
        return False
    return (get_origin(annotation) or annotation) in _OPEN.get(reducer.name, ())


def _normal(reducer: Reducer) -> Callable[[Any], Any] | None:
    """Like `Reducer.normal`, for typed elements, which have no canonical text yet."""
    if reducer.fields:
        inner = {name: _normal(field) for name, field in reducer.fields.items()}

        def each(update: Any) -> Any:
            shell = {} if update is None else update
            if not isinstance(shell, Mapping):
                return reducer.normal(update)  # refuses it
            changed = {name: step(shell[name]) for name, step in inner.items() if step and name in shell}
            unknown = {name: None for name in shell if name not in inner}
            if unknown:
                reducer.normal(unknown)  # refuses it
            return {**shell, **changed}

        return each
    if reducer.name == "union":
        return lambda update: update if isinstance(update, (set, frozenset, list, tuple)) else [update]
    if reducer.name in ("merge", "deep_merge"):
        return lambda update: reducer.normal(_as_fields(update) if isinstance(update, BaseModel) else update)
    return reducer.normal if reducer.name in ("append", "add") else None


def _as_fields(update: BaseModel) -> dict[str, Any]:
    """A model given as a part of one: the fields that were set."""
    return {name: getattr(update, name) for name in update.model_fields_set}


def _update_check(annotation: Any, reducer: Reducer, codec: Codec, config: ConfigDict | None) -> Check | None:
    if reducer.name == "last":
        return None
    bare = _bare(annotation)
    if reducer.custom and not reducer.fields:
        return _custom_check(reducer, codec, config)
    if reducer.name == "union" and (get_origin(bare) or bare) is list:
        return _sorted_check(codec if bare is annotation else TypedCodec(bare, config=config))
    if reducer.name == "deep_merge":
        return JsonCodec({"type": "object"}).check
    if _is_open(annotation, reducer):
        return codec.check
    return TypedCodec(_update_type(annotation, reducer), config=config).check


def _update_type(annotation: Any, reducer: Reducer) -> Any:
    """The type of an update, where the key's type has rules on the whole."""
    bare = _bare(annotation)
    if reducer.name == "append" and get_origin(bare) is tuple and get_args(bare)[-1:] == (...,):
        return list[get_args(bare)[0]]  # type: ignore[misc]  # a type made at run time
    if reducer.name in ("merge", "by_key"):
        return _partial(bare, reducer)
    if reducer.custom or reducer.name == "last":
        return annotation
    return Any if reducer.name in NEEDS_PREVIOUS else bare


def _partial(bare: Any, reducer: Reducer) -> Any:
    """A TypedDict of the fields an update may hold, all of them optional."""
    fields = _fields(bare)
    if fields is None:
        arguments = get_args(bare)
        member = arguments[1] if len(arguments) == 2 else Any
        if not reducer.fields:
            return bare
        fields = dict.fromkeys(reducer.fields, member)
    chosen = {
        name: _update_type(annotation, reducer.fields[name]) if name in reducer.fields else annotation
        for name, annotation in fields.items()
        if not reducer.fields or name in reducer.fields
    }
    unknown = sorted(set(reducer.fields) - set(chosen))
    if unknown:
        raise ConfigError(f"by_key names {', '.join(map(repr, unknown))}, which the type does not have")
    partial = TypedDict("Update", chosen, total=False)  # type: ignore[misc]  # made at run time from the type's fields
    partial.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return partial


def _fields(bare: Any) -> dict[str, Any] | None:
    if not _is_object(bare):
        return None
    hints = get_type_hints(bare, include_extras=True)
    if issubclass(bare, BaseModel):
        return {name: _with_rules(field.annotation, field.metadata) for name, field in bare.model_fields.items()}
    return hints


def _with_rules(annotation: Any, rules: list[Any]) -> Any:
    return Annotated[annotation, *rules] if rules else annotation


def _sorted_check(codec: Codec) -> Check:
    """Elements of a list that is kept like a set: each once, sorted."""

    def check(update: object) -> tuple[Any, bytes]:
        typed, text = codec.check(update)
        return typed, encode(union.normal(decode(text)))

    return check


def _custom_check(reducer: Reducer, codec: Codec, config: ConfigDict | None) -> Check:
    wanted = _second_parameter(reducer.function)
    if wanted not in (inspect.Parameter.empty, Any, object):
        schema = untyped_schema(wanted)
        return TypedCodec(wanted, config=config).check if schema is None else JsonCodec(schema).check
    plain = JsonCodec({}).check

    def check(update: object) -> tuple[Any, bytes]:
        try:
            return codec.check(update)
        except InvalidValue:
            return plain(list(update) if isinstance(update, tuple) else update)

    return check


def _second_parameter(function: Callable[..., Any] | None) -> Any:
    """The annotation of the update parameter; `Parameter.empty` when there is none that can be resolved."""
    if function is None:
        return inspect.Parameter.empty
    try:
        names = list(inspect.signature(function).parameters)
        return get_type_hints(function, include_extras=True).get(names[1], inspect.Parameter.empty)
    except (TypeError, ValueError, NameError, IndexError, AttributeError):
        return inspect.Parameter.empty

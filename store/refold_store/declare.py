"""Declaring a state schema in Python, and `compile_schema`, which takes any form of declaration.

    class ClaimState(StateSchema):
        routing: Annotated[RoutingConfig, Owner("triage_agent"), basis_required]
        reports: Annotated[list[Report], Owner("research"), append]
        spent:   Annotated[float, Owner("billing"), add]
        order:   Annotated[Order, Owner("sales_agent"), family("order/{order_id}")]

        groups = {"research": ["evidence_agent", "liability_agent"]}
        invariants = {"band": "reserve_band[0] <= reserve_band[1]"}

Rules
- An annotation is a key; `groups`, `invariants`, `agents` and `upcasters` without an annotation are settings.
- Markers in `Annotated` say owner, reducer and options; what is not a marker belongs to the type. A function is a
  reducer; `operator.add` (as LangGraph writes it) is `append` on lists and `add` on numbers.
- A class, a Pydantic model, a TypedDict or a dataclass will do; defaults are not written by themselves. A model's field
  validators hold for their keys; a validator across fields has no place here: declare an invariant.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, NotRequired, Required, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WrapValidator
from typing_extensions import ReadOnly, is_typeddict

from refold_store.declared import Declared, Place, assemble
from refold_store.errors import ConfigError
from refold_store.reducers import Reducer, add, append
from refold_store.schema import Schema
from refold_store.schemafile import load_document, load_file
from refold_store.typedkeys import kind_of, typed_key


class Owner:
    """Marks who answers for a key: an agent or a group."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Owner({self.name!r})"


class Option:
    """Marks an option of a key."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"{self.name}={self.value!r}"


basis_required = Option("basis_required", True)
sensitive = Option("sensitive", True)


def family(template: str) -> Option:
    """Marks a key family, like `order/{order_id}`."""
    return Option("family", template)


def readers(*names: str) -> Option:
    """Marks whose prompt gets the key injected."""
    return Option("readers", names)


def max_bytes(limit: int) -> Option:
    """Marks the longest value in bytes of JSON text."""
    return Option("max_bytes", limit)


def scope(name: str) -> Option:
    """Marks who shares the key: "run", "tenant" or "global"."""
    return Option("scope", name)


class StateSchema:
    """Base class of a state schema: each annotation is a key."""

    groups: ClassVar[Mapping[str, Any]]
    invariants: ClassVar[Mapping[str, str]]
    upcasters: ClassVar[Mapping[str, Callable[[Any], Any]]]
    agents: ClassVar[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Resolve annotations while the names of the defining scope are at hand."""
        super().__init_subclass__(**kwargs)
        try:
            _hints[cls] = get_type_hints(cls, localns=dict(sys._getframe(1).f_locals), include_extras=True)
        except NameError:
            pass  # a later name: resolved when compiled


_hints: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()
_compiled: weakref.WeakKeyDictionary[type, Schema] = weakref.WeakKeyDictionary()

_SETTINGS = ("groups", "invariants", "upcasters", "agents")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, functools.partial)


def compile_schema(
    source: object,
    *,
    owners: Mapping[str, str] | None = None,
    groups: Mapping[str, Any] | None = None,
    reducers: Mapping[str, Any] | None = None,
    invariants: Mapping[str, str] | None = None,
) -> Schema:
    """The compiled schema of a class, a dict, a YAML file's path, or a Schema (returned as it is).

    The other arguments add to what the source declares. Raises ConfigError with the place of a mistake.
    """
    more = {"owners": owners, "groups": groups, "reducers": reducers, "invariants": invariants}
    added = {section: dict(given) for section, given in more.items() if given}
    if isinstance(source, Schema):
        if added:
            raise ConfigError(f"a compiled schema takes no {' or '.join(added)}: pass what it was made from")
        return source
    if isinstance(source, type):
        return _from_class(source, added)
    if isinstance(source, (str, os.PathLike)):
        return load_file(os.fspath(source), added, from_class=_from_class)
    if isinstance(source, Mapping):
        return load_document(source, added, from_class=_from_class)
    raise ConfigError(f"a state schema is a class, a mapping or the path of a YAML file, not {type(source).__name__}")


def _from_class(source: type, added: Mapping[str, Any], place: Place | None = None) -> Schema:
    if not added and source in _compiled:
        return _compiled[source]
    where = place or (lambda path: ".".join((source.__name__, *path)))
    fields, config = _fields_of(source)
    declared = [_declare(name, annotation, config, f"{source.__name__}.{name}") for name, annotation in fields.items()]
    settings = {name: getattr(source, name, None) for name in _SETTINGS if name not in fields}
    joined = {name: _joined(name, settings.get(name), added.get(name), where) for name in ("groups", "invariants")}
    schema = assemble(
        declared,
        place=where,
        owners=added.get("owners"),
        reducers=added.get("reducers"),
        upcasters=_by_key_name(settings.get("upcasters"), dict(zip(fields, declared, strict=True))),
        agents=added.get("agents", settings.get("agents")),
        **joined,
    )
    if not added:
        _compiled[source] = schema
    return schema


def _by_key_name(upcasters: Mapping[str, Any] | None, declared: Mapping[str, Declared]) -> dict[str, Any]:
    """Upcasters may be named by attribute, also where the key is a family."""
    return {declared[name].name if name in declared else name: fn for name, fn in (upcasters or {}).items()}


def _joined(section: str, declared: Any, added: Mapping[str, Any] | None, place: Place) -> dict[str, Any]:
    if declared is not None and not isinstance(declared, Mapping):
        raise ConfigError(f"{section} must be a mapping, not {type(declared).__name__}", where=place((section,)))
    twice = sorted(set(declared or ()) & set(added or ()))
    if twice:
        raise ConfigError(f"{section} declares {twice[0]!r} twice", where=place((section, twice[0])))
    return {**(declared or {}), **(added or {})}


# -- the fields of each kind of class --------------------------------------------------------------------------------


def _fields_of(source: type) -> tuple[dict[str, Any], ConfigDict | None]:
    if issubclass(source, BaseModel):
        return _model_fields(source), source.model_config or None
    if not (issubclass(source, StateSchema) or is_typeddict(source) or dataclasses.is_dataclass(source)):
        raise ConfigError(
            f"{source.__name__} is no state schema: derive it from StateSchema, or use a Pydantic model, "
            "a TypedDict or a dataclass"
        )
    try:
        hints = _hints.get(source) or get_type_hints(source, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"an annotation of {source.__name__} cannot be resolved: {error}", where=source.__name__
        ) from error
    return {name: hint for name, hint in hints.items() if not _is_class_variable(hint)}, None


def _is_class_variable(hint: Any) -> bool:
    return hint is ClassVar or get_origin(hint) is ClassVar


def _model_fields(model: type[BaseModel]) -> dict[str, Any]:
    decorators = model.__pydantic_decorators__
    if decorators.model_validators or decorators.root_validators:
        names = ", ".join([*decorators.model_validators, *decorators.root_validators])
        raise ConfigError(
            f"the model validator {names} spans keys, which are written one by one: declare an invariant instead",
            where=model.__name__,
        )
    fields = {}
    for name, field in model.model_fields.items():
        parts = list(field.metadata)
        if field.discriminator is not None:
            parts.append(Field(discriminator=field.discriminator))
        for validator in decorators.field_validators.values():
            if name in validator.info.fields or "*" in validator.info.fields:
                parts.append(_VALIDATORS[validator.info.mode](validator.func))
        fields[name] = Annotated[field.annotation, *parts] if parts else field.annotation
    return fields


_VALIDATORS: Mapping[str, Callable[[Any], Any]] = {
    "after": AfterValidator,
    "before": BeforeValidator,
    "plain": PlainValidator,
    "wrap": WrapValidator,
}


# -- one key ---------------------------------------------------------------------------------------------------------


def _declare(attribute: str, annotation: Any, config: ConfigDict | None, where: str) -> Declared:
    annotation = _without_requirement(annotation)
    markers, annotation = _split(annotation)
    name = attribute
    for marker in markers:
        if isinstance(marker, Option) and marker.name == "family":
            name = str(marker.value)
    declared = Declared(name, where=where, make=functools.partial(_make, annotation, config), kind=kind_of(annotation))
    families = 0
    for marker in markers:
        if isinstance(marker, Owner):
            declared.set_owner(marker.name, where)
        elif isinstance(marker, Option) and marker.name == "family":
            families += 1
        elif isinstance(marker, Option):
            declared.set_option(marker.name, marker.value, where)
        else:
            declared.set_reducer(_langgraph(marker, declared.kind), where)
    if families > 1:
        raise ConfigError(f"key {name!r} names two families", where=where)
    declared.family = families == 1
    return declared


def _make(annotation: Any, config: ConfigDict | None, name: str, **rest: Any) -> Any:
    return typed_key(name, annotation, config=config, **rest)


def _langgraph(source: object, kind: str | None) -> object:
    if source is operator.add:
        return {"list": append, "int": add, "float": add, "Decimal": add}.get(kind or "", source)
    return source


def _without_requirement(annotation: Any) -> Any:
    while get_origin(annotation) in (Required, NotRequired, ReadOnly):
        annotation = get_args(annotation)[0]
    return annotation


def _split(annotation: Any) -> tuple[list[Any], Any]:
    """The markers of an annotation, and the type without them."""
    if get_origin(annotation) is not Annotated:
        return [], annotation
    base, *parts = get_args(annotation)
    markers = [part for part in parts if _is_marker(part)]
    rest = [part for part in parts if not _is_marker(part)]
    base = _without_requirement(base)
    if any(part in (Owner, StateSchema) for part in rest):
        raise ConfigError("Owner wants a name: Owner('triage_agent')")
    return markers, Annotated[base, *rest] if rest else base


def _is_marker(part: object) -> bool:
    return isinstance(part, (Owner, Option, Reducer, *_FUNCTIONS))

"""The codec of Python types: Pydantic validates, and the text must give the validated value back.

Rules
- The stored value is the validated value; the schema decides ("12345" becomes 12345 for an int).
- Exactness: the text, read as the declared type, equals the validated value. Types whose every part is known to keep
  that promise ("closed": text, numbers, lists, plain models ...) are spared the proof at each write; a closed type
  that holds models still proves it for input that is not plain JSON, since an instance may have been changed behind
  its validators.
- NaN and infinity have no text. Sets are stored sorted by the canonical text of their elements, at any depth.
- Validators run again on reading, so they must accept what they made (a validator that keeps changing its own result
  is found at the first write).
- Field names follow aliases when written; both names and aliases are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaSerializer, SchemaValidator

from refold_store.codecs import JsonSchema
from refold_store.comparable import DECIMAL_PATTERN
from refold_store.coreschema import Look, sorted_sets, strict_and_sorted
from refold_store.errors import ConfigError, InvalidValue, NotExact
from refold_store.jsontext import MAX_DEPTH, canonical, encode, find_fault, is_plain, member_path, mixed_names

_INEXACT = {"finite_number", "string_unicode", "recursion_loop"}
"""Pydantic's error types that say "no exact text" rather than "wrong type"."""
_REPLACED = "\ufffd".encode()
"""What Pydantic writes in place of a lone surrogate in a member's name."""


class TypedCodec:
    """Values of one Python type. Compiled once; `check` is the hot path."""

    __slots__ = ("_adapter", "_look", "_read", "_to_json", "_validate", "check", "schema")

    documents = False
    formats = False
    schema: JsonSchema
    check: Callable[[object], tuple[Any, bytes]]

    def __init__(self, annotation: Any, *, config: ConfigDict | None = None) -> None:
        self._adapter = _adapter(annotation, config)
        core: Any = self._adapter.core_schema
        self._look = Look(core)
        self._read = self._adapter.validator.validate_json
        self._validate = self._adapter.validator.validate_python
        serializer: Any = self._adapter.serializer
        if self._look.sets:
            serializer = _build(SchemaSerializer, sorted_sets(core))
        self._to_json: Callable[..., bytes] = serializer.to_json
        self.schema = _json_schema(self._adapter)
        self.check = self._fast_check(core) if self._look.closed and config is None else self._check_fully

    @property
    def kind(self) -> str | None:
        return self._look.kind

    def typed(self, text: bytes) -> Any:
        try:
            return self._read(text, by_alias=True, by_name=True)
        except ValidationError as error:
            raise _invalid(error) from None

    def loose(self, text: bytes) -> Any:
        value = self.typed(text)
        if self._look.models:
            return self._adapter.serializer.to_python(value, by_alias=False, round_trip=True)
        return value

    def verify(self, text: bytes) -> None:
        self.typed(text)

    def _fast_check(self, core: Any) -> Callable[[object], tuple[Any, bytes]]:
        validate = _build(SchemaValidator, strict_and_sorted(core)).validate_python
        to_json, fully, sort, models = self._to_json, self._check_fully, self._look.maps, self._look.models
        model = core.get("cls") if core["type"] == "model" else None

        def check(value: object) -> tuple[Any, bytes]:
            if type(value) is model:
                value = value.__dict__  # a closed model is its fields and no more
            if models and not is_plain(value):
                return fully(value)
            try:
                typed = validate(value)
                text = to_json(typed)
            except ValidationError as error:
                raise _invalid(error) from None
            except (PydanticSerializationError, ValueError) as error:
                _refuse_text(error, typed)
            if sort and (_REPLACED in text or mixed_names(value)):
                return fully(value)  # a name may have been respelled on its way
            return typed, canonical(text) if sort else text

        return check

    def _check_fully(self, value: object) -> tuple[Any, bytes]:
        if self._look.maps and (path := mixed_names(value)):
            raise NotExact(f"{path} has names of several types, which JSON would make one", path=path)
        typed = self._validated(value)
        try:
            text = canonical(self._to_json(typed, by_alias=True, warnings=False))
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            _refuse_text(error, typed)
        try:
            back = self._read(text, by_alias=True, by_name=True)
        except ValidationError as error:
            raise _invalid(error, "the text it would be stored as does not fit its own type: ", NotExact) from None
        if back != typed:
            path = _difference(typed, back, "$")
            raise NotExact(
                f"{path} would not read back equal from its JSON: declare a type that keeps it "
                "(a validator must accept its own result unchanged; a class needs `==`)",
                path=path,
            )
        return back, text

    def _validated(self, value: object) -> Any:
        try:
            return self._validate(value, by_alias=True, by_name=True)
        except ValidationError as error:
            raise _invalid(error) from None
        except Exception as error:  # a validator of the user's that raises what Pydantic does not catch
            raise InvalidValue(f"$: a validator failed: {type(error).__name__}: {error}") from error


def _adapter(annotation: Any, config: ConfigDict | None) -> TypeAdapter[Any]:
    try:
        try:
            adapter = TypeAdapter(annotation, config=config)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            adapter = TypeAdapter(annotation)
        _complete = adapter.core_schema["type"]  # a class with an unresolved annotation says so here
        return adapter
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError) as error:
        text = str(error).splitlines()[0]
        raise ConfigError(f"no validator can be made for the type {annotation!r}: {text}") from error


def _build(kind: Any, core: Any) -> Any:
    """A validator or serializer of a changed core schema, without the ones classes have in store."""
    try:
        return kind(core, None, _use_prebuilt=False)
    except TypeError:  # a pydantic-core without that option never uses them
        return kind(core, None)


class _Described(GenerateJsonSchema):
    """JSON Schema that says of a decimal what it is: Pydantic says only that it is text."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        return {"type": "string", "format": "decimal", "pattern": DECIMAL_PATTERN}


def _json_schema(adapter: TypeAdapter[Any]) -> JsonSchema:
    try:
        schema = adapter.json_schema(mode="serialization", schema_generator=_Described)
    except PydanticUserError:  # a type of the user's own without one: what it stores is not described
        return {}
    _sort_set_defaults(schema)
    return schema


def _sort_set_defaults(schema: Any) -> None:
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if node.get("uniqueItems") and isinstance(node.get("default"), list):
                node["default"].sort(key=encode)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _invalid(error: ValidationError, prefix: str = "", kind: type[InvalidValue] = InvalidValue) -> InvalidValue:
    first = error.errors(include_url=False, include_context=False)[0]
    path = "$"
    for member in first["loc"]:
        path = member_path(path, member)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    got = type(first["input"]).__name__
    found = "missing" if first["type"] == "missing" else f"got {got}"
    if first["type"] in _INEXACT:
        kind = NotExact
    return kind(f"{path}: {prefix}{first['msg']} ({found}){more}", path=path)


def _refuse_text(error: Exception, value: Any) -> NoReturn:
    """The serializer gave up: say where, if a leaf can be found that has no text."""
    level = [("$", value)]
    for _ in range(MAX_DEPTH):
        for path, leaf in level:
            fault = find_fault(leaf) if isinstance(leaf, (str, int, float)) else None
            if fault is not None:
                raise NotExact(f"{path} {fault[1]}", path=path) from None
        level = [(member_path(path, name), inner) for path, outer in level for name, inner, _ in _members(outer, outer)]
    text = str(error).removeprefix("Error serializing to JSON: ")
    raise NotExact(f"$ has no exact JSON text: {text}", path="$") from None


def _difference(one: Any, other: Any, path: str) -> str:
    """The path of the first part in which two unequal values differ."""
    for member, mine, yours in _members(one, other):
        if mine != yours:
            return _difference(mine, yours, member_path(path, member))
    return path


def _members(one: Any, other: Any) -> list[tuple[str | int, Any, Any]]:
    if type(one) is not type(other):
        return []
    if isinstance(one, BaseModel):
        return [(name, mine, other.__dict__.get(name)) for name, mine in one.__dict__.items()]
    if isinstance(one, dict):
        return [(str(name), mine, other[name]) for name, mine in one.items() if name in other]
    if isinstance(one, (list, tuple)) and len(one) == len(other):
        return list(zip(range(len(one)), one, other, strict=True))
    return []

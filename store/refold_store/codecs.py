"""Codecs: between a value as a caller has it and its exact canonical text. This module: plain JSON and JSON Schema.

Rules
- `check(value)` gives the validated value, detached from the caller's objects, and its canonical text; or refuses.
- `typed(text)` gives the declared type back; for plain JSON that is the document.
- A JSON Schema is compiled when first needed, so that reading a store needs no validator. References to other
  documents are never fetched. `format` is checked where a person wrote the schema, not where a Python type did: there
  it is a remark about what that type wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

from refold_store.errors import ConfigError, InvalidValue
from refold_store.jsontext import decode, member_path, snapshot
from refold_store.unfolding import UNFOLDED_MAX, unfolds_within

JsonSchema = Mapping[str, Any]

_ANNOTATIONS = {"$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description"}
_ANNOTATIONS |= {"examples", "title"}


class Codec(Protocol):
    """What a key needs of its declared type."""

    @property
    def schema(self) -> JsonSchema:
        """The JSON Schema of the stored texts."""
        ...

    @property
    def formats(self) -> bool:
        """Whether `format` in the schema is a rule (a person wrote it) or a remark (a Python type did)."""
        ...

    @property
    def documents(self) -> bool:
        """Whether values are JSON documents, so that reducers work on those."""
        ...

    @property
    def kind(self) -> str | None:
        """Which probe values suit it ("int", "list" ...), if that is known."""
        ...

    def check(self, value: object) -> tuple[Any, bytes]:
        """The validated value and its canonical text. Raises InvalidValue or NotExact with a path."""
        ...

    def typed(self, text: bytes) -> Any:
        """The value of a stored text in its declared type. Raises InvalidValue if it does not fit."""
        ...

    def loose(self, text: bytes) -> Any:
        """The same with models opened up into dicts, for the reducers that work on objects."""
        ...

    def verify(self, text: bytes) -> None:
        """Raises InvalidValue if a stored text does not fit."""
        ...


class JsonCodec:
    """Plain JSON, under a JSON Schema if one is given."""

    __slots__ = ("_is_valid", "_validator", "check", "formats", "mask", "schema")

    documents = True
    schema: JsonSchema
    check: Callable[[object], tuple[Any, bytes]]

    def __init__(self, schema: JsonSchema, *, formats: bool = True, mask: bool = False) -> None:
        self.schema = schema
        self.formats = formats
        self.mask = mask
        self._validator: Any = None
        self._is_valid: Callable[[Any], bool] | None = None
        container = _bare_container(schema)
        if container is not None:
            self.check = _container_check(container)
        else:
            self.check = self._check_first if _constrains(schema) else _plain_check

    @property
    def kind(self) -> str | None:
        declared = self.schema.get("type")
        names = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "array": "list"}
        return names.get(declared, "dict" if declared == "object" else None) if isinstance(declared, str) else None

    def compile(self) -> None:
        """Compile the schema now. Raises ConfigError if it is not a JSON Schema."""
        if self._validator is None and _constrains(self.schema) and _bare_container(self.schema) is None:
            self._validator = _compile(self.schema, self.formats, self.mask)
            self._is_valid = self._validator.is_valid
            self.check = self._check

    def typed(self, text: bytes) -> Any:
        return decode(text)

    loose = typed

    def verify(self, text: bytes) -> None:
        document = decode(text)
        container = _bare_container(self.schema)
        if container is not None:
            if type(document) is not container:
                self.check(document)
        elif _constrains(self.schema):
            self.compile()
            if not self._is_valid(document):  # type: ignore[misc]  # compile() has set it
                self._refuse(document)

    def _check_first(self, value: object) -> tuple[Any, bytes]:
        self.compile()
        return self._check(value)

    def _check(self, value: object) -> tuple[Any, bytes]:
        text, document = snapshot(value)
        if not self._is_valid(document):  # type: ignore[misc]  # compile() has set it
            self._refuse(document)
        return document, text

    def _refuse(self, document: Any) -> NoReturn:
        errors = list(self._validator.iter_errors(document))
        first = min(errors, key=lambda error: len(error.instance_path))
        path = "$"
        for member in first.instance_path:
            path = member_path(path, member)
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise InvalidValue(f"{path}: {_clip(first.message)}{more}", path=path)


def _plain_check(value: object) -> tuple[Any, bytes]:
    text, document = snapshot(value)
    return document, text


def _container_check(container: type) -> Callable[[object], tuple[Any, bytes]]:
    name = "an object" if container is dict else "a list"

    def check(value: object) -> tuple[Any, bytes]:
        text, document = snapshot(value)
        if type(document) is not container:
            raise InvalidValue(f"$: expected {name}, got {type(value).__name__}", path="$")
        return document, text

    return check


def _bare_container(schema: JsonSchema) -> type | None:
    """dict or list, if that is all the schema asks for: no validator is needed then."""
    return {"object": dict, "array": list}.get(str(schema.get("type"))) if is_untyped(schema) else None


def _clip(message: str) -> str:
    return message if len(message) <= 400 else message[:397] + "..."


def _constrains(schema: JsonSchema) -> bool:
    return any(word not in _ANNOTATIONS for word in schema)


def _compile(schema: JsonSchema, formats: bool, mask: bool) -> Any:
    import jsonschema_rs  # here, so that reading a store never loads it

    if not unfolds_within(schema):
        raise ConfigError(f"not a JSON Schema to check by: it unfolds to over {UNFOLDED_MAX:,} parts")

    def retrieve(uri: str) -> NoReturn:
        raise ValueError(f"{uri} would have to be fetched; put it under $defs instead")

    try:
        return jsonschema_rs.validator_for(
            dict(schema), validate_formats=formats, retriever=retrieve, mask="the value" if mask else None
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        text = str(getattr(error, "message", error)).splitlines()[0]
        raise ConfigError(f"not a JSON Schema: {text}") from error


def open_shape(schema: JsonSchema) -> str | None:
    """ "any", "list", "dict" or "set" when the schema constrains members one by one only; None otherwise."""
    words = {word for word in schema if word not in _ANNOTATIONS}
    if not words:
        return "any"
    if schema.get("type") == "array" and words <= {"type", "items", "uniqueItems"}:
        return "set" if schema.get("uniqueItems") else "list"
    if schema.get("type") == "object" and words <= {"type", "properties", "additionalProperties"}:
        return "dict"
    return None


def is_untyped(schema: JsonSchema) -> bool:
    """Whether the schema says nothing about members."""
    rules = {word: rule for word, rule in schema.items() if word not in _ANNOTATIONS and word != "type"}
    return rules in ({}, {"additionalProperties": True}, {"items": {}})


def relaxed(schema: JsonSchema) -> dict[str, Any]:
    """The schema of an update: members are checked, but not that all are there or how many."""
    kept = {"type", "items", "properties", "additionalProperties", "patternProperties", "$defs", "definitions"}
    return {word: rule for word, rule in schema.items() if word in kept}

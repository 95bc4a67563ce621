"""From a Python function to what a model is told of it: its parameters as JSON Schema, and arguments checked by it.

Rules of this module
- Annotations say the types, `Annotated[int, "text"]`, `Field(description=...)` or the docstring what they mean.
- A parameter annotated ToolContext is given by the engine: the model neither sees nor sets it.
- Arguments come as JSON and are read as JSON: the function gets fresh objects of its declared types.
- Definitions stand where they are used; only a type that contains itself keeps a `$ref`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from refold_engine.errors import ToolFailed
from refold_engine.ports import Json
from refold_engine.toolcontext import ToolContext
from refold_store import jsontext
from refold_store.errors import ConfigError, NotExact

MAX_SCHEMA_NODES = 2_000
"""Largest JSON Schema with its definitions put in place, in nodes: beyond it they stay apart, under `$defs`."""

_MOST_FAULTS = 10
_SECTION = re.compile(r"(args|arguments|parameters|returns?|raises|yields?|examples?|notes?):\s*$", re.IGNORECASE)
_FIELD = re.compile(r":(param|type|returns?|rtype|raises)\b")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_REST = re.compile(r":param\s+(?:[^:]*\s)?(\w+):\s*(.*)")


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    required: bool
    adapter: TypeAdapter[Any]


class Parameters:
    """What a function takes. `schema` is the JSON Schema of its arguments, without what the engine gives."""

    __slots__ = ("_context", "_parameters", "_signature", "schema")

    def __init__(self, function: Callable[..., object], where: str) -> None:
        self._signature = inspect.signature(function)
        hints = _hints(function, where)
        meanings = described(function)[1]
        self._context: list[str] = []
        self._parameters: dict[str, _Parameter] = {}
        written: dict[str, tuple[str | None, Json]] = {}
        for name, parameter in self._signature.parameters.items():
            _check_kind(parameter, where)
            annotation = hints.get(name, Any)
            if _is_context(annotation):
                self._context.append(name)
                continue
            required = parameter.default is parameter.empty
            self._parameters[name] = _Parameter(name, required, _adapter(annotation, f"{where}: parameter {name!r}"))
            written[name] = _text_in(annotation) or meanings.get(name), _default(parameter.default)
        self.schema = self._schema(written, where)

    def _schema(self, written: Mapping[str, tuple[str | None, Json]], where: str) -> dict[str, Json]:
        inputs: list[tuple[str, Literal["validation"], TypeAdapter[Any]]]
        inputs = [(name, "validation", one.adapter) for name, one in self._parameters.items()]
        try:
            found, shared = TypeAdapter.json_schemas(inputs, schema_generator=_Untitled)
        except PydanticUserError as error:
            raise ConfigError(f"{where}: no JSON Schema: {str(error).splitlines()[0]}") from error
        properties: dict[str, Json] = {}
        for name, (meaning, default) in written.items():
            schema = dict(found[name, "validation"])
            if meaning is not None:
                schema["description"] = meaning
            if default is not None:
                schema["default"] = default
            properties[name] = schema
        whole: dict[str, Json] = {"type": "object", "properties": properties, "additionalProperties": False}
        if required := [one.name for one in self._parameters.values() if one.required]:
            whole["required"] = required
        return in_place(whole, shared.get("$defs", {}))

    def bind(self, tool: str, arguments: Mapping[str, Json], context: object) -> inspect.BoundArguments:
        """The arguments in their declared types. Raises ToolFailed naming each that is unknown, missing or wrong."""
        if not isinstance(arguments, Mapping):
            raise ToolFailed(f"tool {tool!r}: arguments are an object, not {type(arguments).__name__}", tool=tool)
        faults = [self._unknown(name) for name in arguments if name not in self._parameters]
        values: dict[str, Any] = {name: _context(context, tool) for name in self._context}
        for name, parameter in self._parameters.items():
            if name in arguments:
                try:
                    values[name] = parameter.adapter.validate_json(jsontext.encode(arguments[name]))
                except (ValidationError, NotExact) as error:
                    faults += _faults(name, error)
            elif parameter.required:
                faults.append(f"argument {name!r} is missing")
        if faults:
            more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
            raise ToolFailed(f"tool {tool!r} was not called: {'; '.join(faults[:_MOST_FAULTS])}{more}", tool=tool)
        ordered = {name: values[name] for name in self._signature.parameters if name in values}
        return inspect.BoundArguments(self._signature, OrderedDict(ordered))

    def _unknown(self, name: object) -> str:
        near = difflib.get_close_matches(str(name), self._parameters, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(map(repr, self._parameters)) or 'none'}"
        return f"unknown argument {str(name)[:80]!r} ({hint})"


def described(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """The docstring's text before its sections, and what it says of each parameter (Google's or Sphinx's way)."""
    lines = (inspect.getdoc(_underlying(function)) or "").splitlines()
    start = next((n for n, line in enumerate(lines) if _SECTION.match(line) or _FIELD.match(line)), len(lines))
    meanings: dict[str, list[str]] = {}
    depth, current = 0, None
    section = ""
    for line in lines[start:]:
        indent, text = len(line) - len(line.lstrip()), line.strip()
        if indent == 0 and (head := _SECTION.match(line)):
            section, current, depth = head[1].lower(), None, 0
        elif match := _REST.match(text):
            current, depth = meanings.setdefault(match[1], [match[2]]), indent
        elif section in ("args", "arguments", "parameters") and indent and (not depth or indent <= depth):
            match = _GOOGLE.match(text)
            current, depth = (meanings.setdefault(match[1], [match[2]]) if match else None), indent
        elif current is not None and indent > depth and text:
            current.append(text)
        else:
            current = None
    text = "\n".join(lines[:start]).strip()
    return text, {name: " ".join(part for part in parts if part) for name, parts in meanings.items() if any(parts)}


# -- the function's annotations --------------------------------------------------------------------------------------


class _Untitled(GenerateJsonSchema):
    """JSON Schema without the titles that only repeat a field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _underlying(function: Any) -> Any:
    """The function that carries the annotations and the docstring."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _hints(function: Callable[..., object], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(_underlying(function), include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{where}: an annotation cannot be resolved: {error}") from error


def _check_kind(parameter: inspect.Parameter, where: str) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ConfigError(f"{where}: {parameter} cannot be told to a model: name each parameter")
    if isinstance(parameter.default, FieldInfo):
        raise ConfigError(f"{where}: parameter {parameter.name!r}: write Annotated[type, Field(...)] = default")


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return ToolContext in get_args(annotation)
    return annotation is ToolContext


def _context(context: object, tool: str) -> ToolContext:
    if not isinstance(context, ToolContext):
        raise TypeError(f"tool {tool!r} wants a ToolContext, not {type(context).__name__}")
    return context


def _text_in(annotation: Any) -> str | None:
    """The text of `Annotated[int, "text"]`."""
    parts = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((part for part in parts if isinstance(part, str)), None)


def _adapter(annotation: Any, where: str) -> TypeAdapter[Any]:
    try:
        adapter = TypeAdapter(annotation)
        _complete = adapter.core_schema["type"]  # a class with an unresolved annotation says so here
        return adapter
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError) as error:
        raise ConfigError(
            f"{where}: no argument can be checked as {annotation!r}: {str(error).splitlines()[0]}"
        ) from error


def _default(value: object) -> Json:
    """A default as JSON, if it is plain; None says nothing."""
    try:
        return jsontext.snapshot(value)[1]
    except NotExact:
        return None


def _faults(name: str, error: ValidationError | NotExact) -> Iterable[str]:
    if isinstance(error, NotExact):
        return [f"argument {name!r} is no JSON: {error}"]
    found = []
    for one in error.errors(include_url=False, include_context=False):
        path = functools.reduce(jsontext.member_path, one["loc"], "$").removeprefix("$")
        got = "" if one["type"] == "missing" else f", got {repr(one['input'])[:80]}"
        found.append(f"argument {name!r}{f' at {path}' if path else ''}: {one['msg']}{got}")
    return found


# -- definitions in place --------------------------------------------------------------------------------------------


class _TooMany(Exception):
    """Definitions in place would make the schema too large."""


def in_place(schema: dict[str, Json], definitions: Mapping[str, Json]) -> dict[str, Json]:
    """The schema with each definition where it is used. Types that contain themselves stay under `$defs`."""
    if not definitions:
        return schema
    left = [MAX_SCHEMA_NODES]
    kept: dict[str, Json] = {}

    def put(node: Json, within: tuple[str, ...]) -> Json:
        left[0] -= 1
        if left[0] < 0:
            raise _TooMany
        if isinstance(node, list):
            return [put(one, within) for one in node]
        if not isinstance(node, dict):
            return node
        if isinstance(ref := node.get("$ref"), str):
            name = ref.removeprefix("#/$defs/")
            if name not in recursive:
                beside = {word: put(one, within) for word, one in node.items() if word != "$ref"}
                return {**put(definitions[name], (*within, name)), **beside}
            if name not in kept:
                kept[name] = {}
                kept[name] = put(definitions[name], (*within, name))
        return {word: put(one, within) for word, one in node.items()}

    recursive = {name for name in definitions if name in _reached(name, definitions)}
    try:
        whole = put(schema, ())
    except _TooMany:
        return {**schema, "$defs": dict(definitions)}
    return {**whole, "$defs": kept} if kept else dict(whole)


def _reached(name: str, definitions: Mapping[str, Json]) -> set[str]:
    """The definitions that one refers to, at any distance."""
    seen: set[str] = set()
    stack: list[Json] = [definitions[name]]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack.extend(node)
        elif isinstance(node, dict):
            ref = node.get("$ref")
            inner = ref.removeprefix("#/$defs/") if isinstance(ref, str) else ""
            if inner in definitions and inner not in seen:
                seen.add(inner)
                stack.append(definitions[inner])
            stack.extend(node.values())
    return seen

"""What a tool returned, as exact JSON of a bounded size.

Rules of this module
- Plain JSON stays as it is. Models, dataclasses, enums, tuples, dates, decimals and the like are written as Pydantic
  writes them; sets sorted, so that the same result has the same bytes.
- What has no exact text (NaN, bytes, an object of a class of its own, two names that become one) is refused with its
  path: nothing is dropped or guessed.
- A result over its limit is cut to text with a note at its end, or refused: never shortened in silence.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from pathlib import PurePath
from types import GeneratorType
from typing import Any, Literal, NoReturn
from uuid import UUID

from pydantic import AnyUrl, BaseModel
from pydantic_core import PydanticSerializationError, SchemaSerializer, to_jsonable_python

from refold_engine.ports import Json
from refold_store import jsontext
from refold_store.coreschema import sorted_sets
from refold_store.errors import NotExact
from refold_store.jsontext import MAX_DEPTH, member_path

Over = Literal["cut", "refuse"]

_SCALARS = (datetime, date, time, timedelta, Decimal, UUID, PurePath, IPv4Address, IPv6Address, AnyUrl)


def as_json(value: object) -> tuple[bytes, Json]:
    """Canonical text of a result, and the result as JSON. Raises NotExact with the path of what has none."""
    try:
        return jsontext.snapshot(value)
    except NotExact:
        return jsontext.snapshot(_converted(value, "$", 0))


def limited(text: bytes, value: Json, *, max_bytes: int, over: Over) -> tuple[Json, str | None]:
    """The result within its limit, and what was the matter: (value, None), (cut text, note) or (None, refusal)."""
    if len(text) <= max_bytes:
        return value, None
    whole = value.encode() if isinstance(value, str) else text
    size = f"{len(whole):,} bytes, the limit is {max_bytes:,}"
    if over == "refuse":
        return None, f"its result has {size}: ask for less, or for a part"
    beginning = whole[:max_bytes].decode(errors="ignore")
    note = f"[cut: the result has {size}; this is its beginning. Ask for less, or for a part]"
    return f"{beginning}\n{note}", note


def _converted(value: object, path: str, depth: int) -> Json:
    if depth > MAX_DEPTH:
        _refuse(path, f"is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if isinstance(value, Enum):
        return _converted(value.value, path, depth + 1)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, _SCALARS):
        return _scalar(value, path)
    if isinstance(value, Mapping):
        return _members(value, path, depth)
    if isinstance(value, (list, tuple)):
        return [_converted(one, member_path(path, place), depth + 1) for place, one in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        found = [_converted(one, f"{path}{{}}", depth + 1) for one in value]
        return sorted(found, key=lambda one: jsontext.encode(one))
    if isinstance(value, BaseModel) or hasattr(type(value), "__pydantic_serializer__"):
        return _converted(_dumped(value, path), path, depth + 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _members(fields, path, depth)
    _refuse(path, f"is of type {type(value).__name__}, which has no JSON: {_ADVICE.get(type(value), _RETURN)}")


_RETURN = "return plain JSON, a dataclass or a Pydantic model"
_ADVICE: Mapping[type, str] = {
    bytes: "decode it to text, or return base64",
    GeneratorType: "return a list of what it yields",
}


def _scalar(value: object, path: str) -> Json:
    if isinstance(value, Decimal) and not value.is_finite():
        _refuse(path, f"is {value}: JSON has finite numbers only")
    return str(value) if isinstance(value, PurePath) else to_jsonable_python(value)


def _members(value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, inner in value.items():
        text = _name(name, path)
        if text in found:
            _refuse(path, f"has two members that become {text!r}: name them apart")
        found[text] = _converted(inner, member_path(path, text), depth + 1)
    return found


def _name(name: object, path: str) -> str:
    """A member's name: text, or what has one text (a whole number, a date, an id)."""
    plain = name.value if isinstance(name, Enum) else name
    if isinstance(plain, str):
        return plain
    if isinstance(plain, int) and not isinstance(plain, bool):
        return str(plain)
    if isinstance(plain, (date, UUID)):
        return str(_scalar(plain, path))
    _refuse(path, f"has the name {name!r} of type {type(name).__name__}: JSON has text names only")


def _dumped(value: Any, path: str) -> Json:
    kind: Any = type(value)
    try:
        return _serializer(kind).to_python(value, mode="json", by_alias=True, warnings=False)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        _refuse(path, f"is of type {kind.__name__} and cannot be written: {str(error).splitlines()[0]}")


@functools.lru_cache(maxsize=256)
def _serializer(kind: Hashable) -> SchemaSerializer:
    """The serializer of a Pydantic class, with its sets sorted."""
    core: Any = sorted_sets(vars(kind)["__pydantic_core_schema__"])
    try:
        return SchemaSerializer(core, None, _use_prebuilt=False)
    except TypeError:  # a pydantic-core without that option never uses prebuilt ones
        return SchemaSerializer(core, None)


def _refuse(path: str, reason: str) -> NoReturn:
    raise NotExact(f"{path} {reason}", path=path)

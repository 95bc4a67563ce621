"""Values as rules across keys compare them: a date as a date, a decimal as a number, though both are stored as text.

A converter is compiled from a key's JSON Schema (`format`: date-time, date, time, duration, decimal), so that a program
with Python types, the command line and `verify`, which have only the declaration, judge alike. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

Convert = Callable[[Any], Any]

DECIMAL_PATTERN = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
"""What a stored decimal looks like: a number in decimal or scientific notation."""

_DURATION = re.compile(r"(-)?P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6}))?S)?)?")


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:5])
    micros = int((found[6] or "").ljust(6, "0"))
    span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
    return -span if found[1] else span


_FORMATS: dict[str, Callable[[str], Any]] = {
    "date-time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "duration": _duration,
    "decimal": Decimal,
}


def converter(schema: Mapping[str, Any]) -> Convert | None:
    """What turns a stored document of this JSON Schema into comparable values; None if it is comparable as it is."""
    return _Compiler(schema.get("$defs", {})).compile(schema)


class _Compiler:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._made: dict[str, Convert | None] = {}

    def compile(self, schema: Any) -> Convert | None:
        if not isinstance(schema, Mapping):
            return None
        parts = [self._reference(schema), self._text(schema), self._object(schema), self._array(schema)]
        for word in ("anyOf", "oneOf", "allOf"):
            parts += [self.compile(branch) for branch in schema.get(word, ())]
        return _first_that_changes([part for part in parts if part is not None])

    def _reference(self, schema: Mapping[str, Any]) -> Convert | None:
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        if name not in self._definitions:
            return None
        if name not in self._made:
            self._made[name] = lambda document: document if (found := self._made[name]) is None else found(document)
            self._made[name] = self.compile(self._definitions[name])
        return self._made[name]

    def _text(self, schema: Mapping[str, Any]) -> Convert | None:
        read = _FORMATS.get(str(schema.get("format")))
        if read is None:
            return None

        def convert(document: Any) -> Any:
            if not isinstance(document, str):
                return document
            try:
                return read(document)
            except (ValueError, InvalidOperation, OverflowError):
                return document

        return convert

    def _object(self, schema: Mapping[str, Any]) -> Convert | None:
        members = {name: self.compile(sub) for name, sub in schema.get("properties", {}).items()}
        named = {name: made for name, made in members.items() if made is not None}
        rest = self.compile(schema.get("additionalProperties"))
        if not named and rest is None:
            return None

        def convert(document: Any) -> Any:
            if not isinstance(document, dict):
                return document
            return {
                name: value if (made := named.get(name, None if name in members else rest)) is None else made(value)
                for name, value in document.items()
            }

        return convert

    def _array(self, schema: Mapping[str, Any]) -> Convert | None:
        places = [self.compile(sub) for sub in schema.get("prefixItems", ())]
        rest = self.compile(schema.get("items"))
        if rest is None and not any(places):
            return None

        def convert(document: Any) -> Any:
            if not isinstance(document, list):
                return document
            made = [*places, *[rest] * (len(document) - len(places))]
            return [value if one is None else one(value) for value, one in zip(document, made, strict=False)]

        return convert


def _first_that_changes(parts: list[Convert]) -> Convert | None:
    if len(parts) < 2:
        return parts[0] if parts else None

    def convert(document: Any) -> Any:
        for part in parts:
            changed = part(document)
            if changed is not document and changed != document:
                return changed
        return document

    return convert

"""Shapes: what many JSON values have in common, and the JSON Schema that fits them all.

Rules of this module
- Pure. A shape grows with each value and never shrinks; every value it saw fits its schema.
- It asks for little: a member is required only if every object had it, further members are always allowed, and an
  object whose members look like entries of a table (no name in common, many names) is only an object.
- It is bounded: members beyond MEMBERS_MAX and levels beyond DEPTH_MAX are not described.
"""

from __future__ import annotations

from typing import Any

MEMBERS_MAX = 64
"""Named members described of one object; a type with more is a table."""
TABLE_MIN = 8
"""From this many names on, none of them in every object, an object counts as a table."""
DEPTH_MAX = 8
"""Levels described below a value."""

_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_ORDER = ("object", "array", "string", "integer", "number", "boolean", "null")


class Shape:
    """The types of the values seen at one place, and the shapes inside them."""

    __slots__ = ("count", "depth", "items", "members", "objects", "table", "types")

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.count = 0
        self.types: set[type] = set()
        self.items: Shape | None = None
        self.members: dict[str, Shape] = {}
        self.objects = 0
        self.table = False

    def add(self, value: Any) -> None:
        """Widen the shape so that it fits `value`."""
        kind = type(value)
        self.count += 1
        self.types.add(kind)
        if self.depth >= DEPTH_MAX:
            return
        if kind is dict:
            self._add_object(value)
        elif kind is list and value:
            if self.items is None:
                self.items = Shape(self.depth + 1)
            for item in value:
                self.items.add(item)

    def _add_object(self, value: dict[str, Any]) -> None:
        self.objects += 1
        if self.table:
            return
        members = self.members
        for name, inner in value.items():
            found = members.get(name)
            if found is None:
                found = members[name] = Shape(self.depth + 1)
            found.add(inner)
        if len(members) > MEMBERS_MAX:
            self.table = True
            members.clear()

    @property
    def required(self) -> list[str]:
        """The members every object had."""
        return sorted(name for name, inner in self.members.items() if inner.count == self.objects)

    def schema(self) -> dict[str, Any]:
        """A JSON Schema that every value seen fits."""
        names = {_NAMES[kind] for kind in self.types}
        if "number" in names:
            names.discard("integer")
        listed = [name for name in _ORDER if name in names]
        if not listed:
            return {}
        found: dict[str, Any] = {"type": listed[0] if len(listed) == 1 else listed}
        if self.items is not None and (items := self.items.schema()):
            found["items"] = items
        required = self.required
        if self.members and not self.table and (required or len(self.members) < TABLE_MIN):
            found["properties"] = {name: self.members[name].schema() for name in sorted(self.members)}
            if required:
                found["required"] = required
        return found

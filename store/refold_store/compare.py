"""What changed between two state schemas, as structured differences.

Rules
- Order: keys in the older schema's order, then new ones; then groups, then invariants. Nothing else is compared: two
  schemas without a difference have equal fingerprints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from refold_store.schema import Schema


class Difference(NamedTuple):
    """One change: `what` is "key", "group" or "invariant"; `field` is None when the whole was added or removed."""

    what: str
    name: str
    change: str
    """ "added", "removed" or "changed"."""
    field: str | None
    old: Any
    new: Any

    def __str__(self) -> str:
        if self.field is None and self.change != "changed":
            return f"{self.what} {self.name!r} {self.change}"
        place = f"{self.what} {self.name!r}" + (f": {self.field}" if self.field else "")
        return f"{place} {self.change} from {self.old!r} to {self.new!r}"


def compare(old: Schema, new: Schema) -> list[Difference]:
    """All differences; an empty list means the same schema."""
    before, after = old.declaration(), new.declaration()
    return [
        *_sections("key", before["keys"], after["keys"]),
        *_sections("group", before["groups"], after["groups"]),
        *_sections("invariant", before["invariants"], after["invariants"]),
    ]


def _sections(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    for name, old in before.items():
        if name not in after:
            yield Difference(what, name, "removed", None, old, None)
        elif old != after[name]:
            yield from _changes(what, name, old, after[name])
    for name, new in after.items():
        if name not in before:
            yield Difference(what, name, "added", None, None, new)


def _changes(what: str, name: str, old: Any, new: Any) -> Iterator[Difference]:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        yield Difference(what, name, "changed", None, old, new)
        return
    for field in sorted({*old, *new}):
        if old.get(field) != new.get(field):
            yield Difference(what, name, "changed", field, old.get(field), new.get(field))

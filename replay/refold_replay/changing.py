"""What a what-if changes: events skipped or edited, and the schema as it would be.

Rules of this module
- Nothing recorded is touched: a changed schema is a new one beside the recorded one.
- A key that keeps its rules keeps its very object, so that only what really changes is judged anew.
- A swapped reducer works on JSON documents, also where the key was declared by a Python type.
- A change that names what no schema of the run knows is a mistake, told with near names.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from refold_store.errors import ConfigError
from refold_store.keys import Key
from refold_store.names import check_name
from refold_store.reducers import BUILT_IN, Reducer, by_key, from_function, reducer
from refold_store.schema import Schema, actors_of
from refold_store.updates import json_key

if TYPE_CHECKING:
    from refold_store.events import Event

ANY_NAME = "{name*}"
"""The one key of the open schema."""


class Mark:
    """An answer that is no value."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


KEEP = Mark("KEEP")
"""A change function's answer: the event stays as it was recorded."""
SKIP = Mark("SKIP")
"""A change function's answer: the event did not happen."""

ChangeOf = Callable[["Event"], Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything a what-if changes."""

    skip: Collection[int] = ()
    edit: Mapping[int, Any] = field(default_factory=dict)
    change: ChangeOf | None = None
    rules: Rules = field(default_factory=lambda: Rules())

    def of(self, event: Event) -> Any:
        """KEEP, SKIP, or the new value of a write, a delete or a refused write."""
        if event.seq in self.skip:
            return SKIP
        if event.seq in self.edit:
            return self.edit[event.seq]
        return KEEP if self.change is None else self.change(event)


class Rules:
    """How schemas change: another schema in place of all, then reducers, owners and conditions."""

    def __init__(
        self,
        *,
        schema: Schema | None = None,
        reducers: Mapping[str, Any] | None = None,
        owners: Mapping[str, str] | None = None,
        conditions: Mapping[str, str | None] | None = None,
    ) -> None:
        self.schema = schema
        self._reducers = {name: _reducer(name, source) for name, source in (reducers or {}).items()}
        self._owners = {name: check_name("owner", owner) for name, owner in (owners or {}).items()}
        self._conditions = dict(conditions or {})
        self._made: dict[str, Schema] = {}

    def __bool__(self) -> bool:
        return bool(self.schema is not None or self._reducers or self._owners or self._conditions)

    def check(self, newest: Schema) -> None:
        """Raises UnknownKey or ConfigError for a change that fits no key or condition of the run's newest schema."""
        base = self.schema if self.schema is not None else newest
        for name in (*self._reducers, *self._owners):
            _declared(base, name)
        known = [invariant.name for invariant in base.invariants]
        for name, expression in self._conditions.items():
            if expression is None and name not in known:
                near = difflib.get_close_matches(name, known, 3)
                hint = (
                    f"did you mean {', '.join(map(repr, near))}?" if near else f"there are: {', '.join(known) or '-'}"
                )
                raise ConfigError(f"no condition {name!r} to take away: {hint}")
        self._changed(base, lenient=False)

    def applied(self, recorded: Schema) -> Schema:
        """The schema that would be in force where this one was; the same object if nothing changes."""
        if not self:
            return recorded
        made = self._made.get(recorded.fingerprint)
        if made is None:
            base = recorded if self.schema is None else self.schema
            made = self._made[recorded.fingerprint] = self._changed(base, lenient=True)
        return made

    def _changed(self, base: Schema, *, lenient: bool) -> Schema:
        """`lenient`: a change that this (older) schema does not know passes it by."""
        if not (self._reducers or self._owners or self._conditions):
            return base
        keys = {key.name: key for key in base.keys}
        for name in dict.fromkeys((*self._reducers, *self._owners)):
            if lenient and name not in keys and name not in base:
                continue
            keys[name] = self._key(_declared(base, name), name, base)
        rules: dict[str, str | None] = {one.name: one.expression for one in base.invariants}
        rules |= self._conditions
        kept = {name: text for name, text in rules.items() if text is not None}
        ordered = sorted(keys.values(), key=lambda key: key.name == ANY_NAME)
        try:
            return Schema(ordered, groups=base.groups, invariants=kept, checked=True)
        except ConfigError:
            if not lenient:
                raise
            older = {name: text for name, text in kept.items() if name not in self._conditions}
            return Schema(ordered, groups=base.groups, invariants=older, checked=True)

    def _key(self, key: Key, name: str, base: Schema) -> Key:
        owner = self._owners.get(name, key.owner)
        actors = actors_of(owner, base.groups) if name in self._owners else key.actors
        swapped = self._reducers.get(name)
        if swapped is None and key.name == name:
            changed = copy.copy(key)
            changed.owner, changed.actors = owner, actors
            return changed
        chosen = key.reducer if swapped is None else _probed(swapped, key._codec.kind)
        try:
            return json_key(
                name,
                schema=key.schema,
                owner=owner,
                actors=actors,
                reducer=chosen,
                options=key.options,
                family=key.family is not None and key.name == name,
                upcaster=key._upcaster,
                formats=key._codec.formats,
            )
        except ConfigError as error:
            raise ConfigError(f"key {name!r}: {error}") from error


def _reducer(name: str, source: Any) -> Reducer:
    try:
        return reducer(source)
    except ConfigError as error:
        near = difflib.get_close_matches(source, BUILT_IN, 2) if isinstance(source, str) else []
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ConfigError(f"key {name!r}: {error}{hint}") from error


def _probed(chosen: Reducer, kind: str | None) -> Reducer:
    if chosen.fields:
        return by_key({name: _probed(field, None) for name, field in chosen.fields.items()})
    return chosen if chosen.function is None else from_function(chosen.name, chosen.function, kind)


def _declared(schema: Schema, name: str) -> Key:
    """The key or family of exactly this name; in the open schema any. Raises UnknownKey or ConfigError."""
    for key in schema.keys:
        if key.name == name:
            return key
    found = schema.key(name)
    if found.name == ANY_NAME:
        return found
    raise ConfigError(f"key {name!r} is one of the family {found.name!r}; a change of rules names the family")

"""The recorded schema beside the changed one: for which keys do other rules hold? Pure."""

from __future__ import annotations

from collections.abc import Collection

from refold_store.errors import UnknownKey
from refold_store.keys import Key
from refold_store.schema import Schema


class Laws:
    """The recorded schema and the changed one, compared key by key."""

    def __init__(self, recorded: Schema, changed: Schema) -> None:
        self.recorded = recorded
        self.changed = changed
        self.same = recorded is changed
        self._differs: dict[str, bool] = {}

    def key(self, name: str) -> Key | None:
        """How the record declares a key."""
        return _declared(self.recorded, name)

    def folds(self, name: str) -> bool:
        """Whether a value of the key is made from the one before it."""
        key = _declared(self.changed, name)
        return key is not None and key.depends_on_previous

    def differs(self, name: str) -> bool:
        """Whether other rules hold for a key: its own, or its invariants'."""
        if self.same:
            return False
        found = self._differs.get(name)
        if found is None:
            old, new = _declared(self.recorded, name), _declared(self.changed, name)
            found = not _alike(old, new) or _rules(self.recorded, name) != _rules(self.changed, name)
            if not found:
                others = {one for rule in self.changed.invariants_for((name,)) for one in rule.keys}
                found = any(not _alike(self.key(one), _declared(self.changed, one)) for one in others)
            self._differs[name] = found
        return found

    def invariants_touch(self, name: str, differing: Collection[str]) -> bool:
        """Whether an invariant of a key speaks of one that differs."""
        return any(not rule.keys.isdisjoint(differing) for rule in self.changed.invariants_for((name,)))


def _declared(schema: Schema, name: str) -> Key | None:
    try:
        return schema.key(name)
    except UnknownKey:
        return None


def _alike(old: Key | None, new: Key | None) -> bool:
    if old is new:
        return True
    if old is None or new is None:
        return False
    if old.reducer is not new.reducer and (old.reducer.custom or new.reducer.custom):
        return False
    return old.actors == new.actors and old.declaration() == new.declaration()


def _rules(schema: Schema, name: str) -> list[tuple[str, str]]:
    return sorted((rule.name, rule.expression) for rule in schema.invariants_for((name,)))

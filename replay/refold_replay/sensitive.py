"""What of an event could hold the value of a sensitive key: the rule that masks output and redacts bundles."""

from __future__ import annotations

from typing import Any

from refold_store.events import Event
from refold_store.looking import sensitive_since
from refold_store.run import Run

HIDDEN_REFS = ("source", "shown")
"""Members of an event's refs that hold a value, or its plain digest, which gives a short value away."""


class Sensitive:
    """The sensitive keys of a run. Remembers from which seq on each counts as one."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since: dict[str, int] = {}

    def named(self, event: Event) -> bool:
        """Whether an event names a sensitive key, by its column or inside."""
        return any(self._is(key, event.seq) for key in keys_of(event.key, event.body, event.refs))

    def left_in_refs(self, event: Event) -> str | None:
        """The member of an event's refs that may hold a value; None if there is none."""
        return next((name for name in HIDDEN_REFS if name in event.refs), None)

    def _is(self, key: str, seq: int) -> bool:
        since = self._since.get(key)
        if since is None:
            since = self._since[key] = sensitive_since(self._run, key)
        return since <= seq


def keys_of(key: str | None, body: dict[str, Any], refs: dict[str, Any]) -> set[str]:
    """Every key an event names, by its column or inside: bodies of imported events may have any form."""
    found = [key, body.get("key")]
    for listed in (body.get("keys"), refs.get("keys")):
        found += (one[0] if isinstance(one, list) and one else one for one in _members(listed))
    return {one for one in found if isinstance(one, str)}


def _members(listed: Any) -> list[Any]:
    return list(listed) if isinstance(listed, (list, dict)) else [listed]

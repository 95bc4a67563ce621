"""The fold: from the events of one key to its value. Pure; "now" and "then" use the same code.

A key stores either whole values (then its newest event is its value) or updates (then its value is a keyframe, or
nothing, followed by the updates since). The body of a state event is canonical JSON with at most these members, in
this order: `basis`, `update`, `value`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from refold_store import jsontext
from refold_store.errors import Damaged
from refold_store.events import DELETED, document
from refold_store.keys import Key


class Absent:
    """What a key holds before its first write and after a delete. Not `None`, which is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = Absent()

WHOLE: Final = b'{"value":'
"""How a body begins that holds a whole value and nothing else; its text is the rest but the last byte."""


def body_text(*, basis: str | None, update: bytes | None, value: bytes | None) -> bytes:
    """The body of `state.written` (or, with neither update nor value, of `state.deleted`)."""
    if value is not None and update is None and basis is None:
        return b'{"value":' + value + b"}"
    parts = []
    if basis is not None:
        parts.append(b'"basis":' + jsontext.encode(basis))
    if update is not None:
        parts.append(b'"update":' + update)
    if value is not None:
        parts.append(b'"value":' + value)
    return b"{" + b",".join(parts) + b"}"


def value_text(body: bytes) -> bytes:
    """The exact text of the value in a body that holds one."""
    if type(body) is bytes and body.startswith(WHOLE):
        return body[len(WHOLE) : -1]
    return jsontext.encode(member(document(body), "value"))


def member(found: dict[str, Any], name: str) -> Any:
    """A member that every body of its kind has."""
    if name not in found:
        raise Damaged(f"the body of a write has no {name}; run `refold verify`")
    return found[name]


def basis_of(body: bytes | None) -> str | None:
    """The writer's stated reason, if the body has one."""
    if type(body) is not bytes or not body.startswith(b'{"basis":'):
        return None
    found: str = document(body)["basis"]
    return found


def fold_updates(key: Key, start: Any, rows: Iterable[tuple[int, int, int, bytes | None]]) -> Any:
    """Fold (seq, version, kind, body) rows, oldest first, onto `start` (a JSON value or ABSENT).

    An erased update (no body) leaves the value as it was. A body with a whole value starts anew: the first write
    under another schema carries one, so that no fold crosses a change of reducer.
    """
    value = start
    updates: list[Any] = []
    for _seq, _version, kind, body in rows:
        if kind == DELETED:
            value, updates = ABSENT, []
        elif body is not None:
            found = document(body)
            if "value" in found:
                value, updates = found["value"], []
            else:
                updates.append(member(found, "update"))
    return key.fold_many(None if value is ABSENT else value, updates) if updates else value

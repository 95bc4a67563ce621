"""The form of what refold itself puts into refs and body: the members others rely on, and their types.

Rules of this module
- Pure. It speaks only of members that refold records and reads back; what a program adds beside them is its own.
- A log that refold wrote always has these forms; one of unknown origin is held to them before it enters a store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from refold_replay.bundle import Line
from refold_store.events import DELETED, ERASED, PRUNED, READ, REFUSED, RUN_ARCHIVED, RUN_FORKED, RUN_IMPORTED, WRITTEN
from refold_store.jsontext import decode
from refold_store.sealer import CLOCK_END_US

Form = Callable[[Any], bool]
_INT_MAX: Final = (1 << 63) - 1


def _text(found: Any) -> bool:
    return isinstance(found, str)


def _number(found: Any) -> bool:
    return type(found) is int and -_INT_MAX <= found <= _INT_MAX


def _count(found: Any) -> bool:
    return type(found) is int and 0 <= found <= _INT_MAX


def _time(found: Any) -> bool:
    return _count(found) and found < CLOCK_END_US


def _holds(form: Form, found: Any) -> bool:
    return form(found)


def _rows(*forms: Form) -> Form:
    def check(found: Any) -> bool:
        return isinstance(found, list) and all(
            isinstance(row, list) and len(row) == len(forms) and all(map(_holds, forms, row)) for row in found
        )

    return check


_PAIRS: Final = _rows(_text, _count)
_WRITE: Final = {"based_on": _PAIRS, "expected": _number, "request": _text}
MAY: Final[dict[int, dict[str, Form]]] = {
    WRITTEN: _WRITE,
    DELETED: _WRITE,
    REFUSED: _WRITE,
    READ: {"keys": _PAIRS, "scope": _text},
    RUN_IMPORTED: {"redacted": _count},
}
"""Members of refs that may be absent, by kind."""
MUST: Final[dict[int, dict[str, Form]]] = {
    ERASED: {"until": _count},
    PRUNED: {"until": _count},
    RUN_FORKED: {"at": _count, "parent": _text, "run": _text},
    RUN_ARCHIVED: {"until": _count, "bundle": _text, "sha256": _text, "digest": _text},
}
"""Members of refs that are always there, by kind."""
ROLL_UP: Final[dict[str, Form]] = {
    "ranges": _rows(_count, _count, _text, _text),
    "reads": _rows(_text, _count, _text, _count, _count, _count, _count, _time),
}
"""What the body of reads.pruned always has."""


def fault(line: Line) -> str | None:
    """What has not the form that its kind of event has; None if all has."""
    kind = line.kind
    if kind not in MAY and kind not in MUST:
        return None
    refs = {} if line.refs is None else decode(line.refs.encode())
    for name, form in MAY.get(kind, {}).items():
        if name in refs and not form(refs[name]):
            return f"refs.{name} has another form"
    for name, form in MUST.get(kind, {}).items():
        if name not in refs or not form(refs[name]):
            return f"refs.{name} is missing, or has another form"
    if kind == READ and (line.seen_seq is None or (line.key is None) is (line.version is not None)):
        return "a read has seen_seq, and a key with its version, or neither"
    body = line.body or b"{}"
    if kind in (WRITTEN, DELETED) and b'"basis":' in body and not _text(decode(body).get("basis", "")):
        return "basis of the body is no text"
    return _roll_up(decode(body)) if kind == PRUNED else None


def _roll_up(body: dict[str, Any]) -> str | None:
    for name, form in ROLL_UP.items():
        if name not in body or not form(body[name]):
            return f"{name} of the body is missing, or has another form"
    return None

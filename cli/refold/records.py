"""The log's facts as plain JSON records, and short texts of them for tables.

Rules of this module
- A record has the same members whatever it holds: `value` is null where there is none, and `absent`, `deleted`,
  `masked` and `erased` say why.
- Sensitive values are masked unless asked for, in events, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refold.output import MASK, at_time, compact, safe
from refold_replay.sensitive import HIDDEN_REFS, Sensitive
from refold_store import jsontext
from refold_store.erased import Erasure, own_erasure
from refold_store.reads import as_time

if TYPE_CHECKING:
    from datetime import datetime

    from refold_store.events import Event
    from refold_store.reads import Read, ReadRecord, RunInfo
    from refold_store.run import Run

CELL = 200
"""Most characters of a value in one cell of a table."""
OPEN_MEMBERS = frozenset({"keys", "key", "version", "what", "to"})
"""Members of an event's body that hold no part of a value. An imported event may have any others."""


def time_of(when: datetime | None) -> str | None:
    """A time in full, or None."""
    return None if when is None else at_time(when)


OPEN_VALUES = {"path": frozenset({"$", "basis", "based_on", "expected_version"}), "op": frozenset({"delete"})}
"""Of other members what shows for all that: a path into a sensitive value holds the names inside it."""


def content(read: Read, show_sensitive: bool) -> dict[str, Any]:
    """The members that say what a read holds."""
    said = masked_erasure(own_erasure(read), read.sensitive and not show_sensitive)
    found: dict[str, Any] = {
        "value": None, "absent": read.absent, "deleted": read.deleted, "masked": False, "erased": False,
        "erased_by": None if said is None else said.by, "erased_at": None if said is None else at_time(said.at),
        "erased_reason": None if said is None else said.reason, "left_out": said is not None and said.redacted,
    }  # fmt: skip
    if read.absent:
        return found
    if read.erased:
        return found | {"erased": True}
    if read.sensitive and not show_sensitive:
        return found | {"masked": True}
    return found | {"value": jsontext.decode(read.text)}


def masked_erasure(said: Erasure | None, hidden: bool) -> Erasure | None:
    """What erased something; the reason may quote the value, so that of a sensitive one is masked."""
    return said if said is None or said.reason is None or not hidden else replace(said, reason=MASK)


def state_of(record: dict[str, Any]) -> str | None:
    """Why a record has no value to show, in a few words; None if it has one."""
    if record["deleted"]:
        return "(deleted)"
    if record["absent"]:
        return "(absent: never written)"
    if record["masked"]:
        return f"{MASK} (sensitive; --show-sensitive shows it)"
    return f"({_how_erased(record)})" if record["erased"] else None


def _how_erased(record: dict[str, Any]) -> str:
    if record["erased_by"] is None:
        return "erased"
    how = "left out of the bundle, imported by" if record["left_out"] else "erased by"
    why = "" if record["erased_reason"] is None else f": {record['erased_reason']}"
    return safe(f"{how} {record['erased_by']} at {record['erased_at']}{why}")


def cell(record: dict[str, Any]) -> str:
    """What a record holds, on one line of a table."""
    if record["masked"]:
        return MASK
    lost = "" if record["erased_at"] is None else f" (its own update was {_how_erased(record)})"
    return state_of(record) or short(record["value"]) + lost


def short(value: Any) -> str:
    """A value as one line of bounded length."""
    text = compact(value)
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def read_members(read: Read, show_sensitive: bool) -> dict[str, Any]:
    """One version of a key as a record."""
    return {
        "key": read.key,
        "version": read.version,
        **content(read, show_sensitive),
        "seq": read.seq,
        "written_by": read.written_by,
        "owner": read.owner,
        "recorded_at": time_of(read.recorded_at),
        "basis": read.basis,
        "based_on": [[key, version] for key, version in read.based_on],
        "trace_id": read.trace_id,
        "span_id": read.span_id,
    }


def reader_members(record: ReadRecord) -> dict[str, Any]:
    """One recorded read as a record."""
    return {
        "seq": record.seq,
        "reader": record.reader,
        "version": record.version,
        "seen_seq": record.seen_seq,
        "newest": record.newest,
        "stale": record.stale,
        "count": record.count,
        "last_seq": max(record.seq, record.last_seq),
        "recorded_at": at_time(record.recorded_at),
        "trace_id": record.trace_id,
    }


def run_members(info: RunInfo, *, archived: bool) -> dict[str, Any]:
    """One run as a record."""
    return {
        "tenant": info.tenant,
        "run": info.name,
        "head_seq": info.head_seq,
        "opened_at": at_time(info.opened_at),
        "last_at": at_time(info.last_at),
        "forked_from": info.forked_from,
        "forked_at": info.forked_at,
        "archived": archived,
    }


class Events:
    """A run's events as records and as lines of a table. Remembers which keys are sensitive."""

    def __init__(self, run: Run, show_sensitive: bool) -> None:
        self._show = show_sensitive
        self._sensitive = Sensitive(run)

    def members(self, event: Event) -> dict[str, Any]:
        """An event as a record."""
        body, refs, masked = self._content(event)
        return {
            "seq": event.seq,
            "kind": event.kind,
            "recorded_at": at_time(as_time(event.recorded_at)),
            "clock": None if event.clock is None else at_time(as_time(event.clock)),
            "actor": event.actor,
            "owner": event.owner,
            "key": event.key,
            "version": event.version,
            "seen_seq": event.seen_seq,
            "txn": event.txn,
            "turn": event.turn,
            "request_id": event.request_id,
            "refs": refs,
            "body": body,
            "masked": masked,
            "digest": event.digest.hex(),
            "trace_id": None if event.trace_id is None else event.trace_id.hex(),
            "span_id": None if event.span_id is None else event.span_id.hex(),
        }

    def line(self, event: Event) -> tuple[Any, ...]:
        """An event as a line of a table: seq, time, kind, actor, key, version, what."""
        at = at_time(as_time(event.recorded_at))
        return event.seq, at, event.kind, event.actor, event.key, event.version, self._what(event)

    def _what(self, event: Event) -> str:
        body, refs, masked = self._content(event)
        if event.kind == "state.read":
            seen = refs.get("keys")
            return "" if seen is None else ", ".join(f"{key}@{version}" for key, version in seen)
        if event.kind == "state.refused":
            return f"{body.get('reason')}: {body.get('message')}"
        if masked:
            return MASK
        if event.kind in ("state.written", "state.deleted"):
            return "" if not body else short(body.get("value", body.get("update", "")))
        return short(body) if body else short(refs) if refs else ""

    def _content(self, event: Event) -> tuple[dict[str, Any], dict[str, Any], bool]:
        """Body and refs, without what could hold a value if a sensitive key is named; whether any was masked."""
        body, refs = event.body, event.refs
        if self._show or not self._sensitive.named(event):
            return body, refs, False
        known = OPEN_MEMBERS | {"reason"} if event.kind == "state.refused" else OPEN_MEMBERS  # there it is a code
        masked = {name: value if name in known or _is_open(name, value) else MASK for name, value in body.items()}
        left = {name: value for name, value in refs.items() if name not in HIDDEN_REFS}
        return masked, left, masked != body or left != refs


def _is_open(name: str, value: Any) -> bool:
    return isinstance(value, str) and value in OPEN_VALUES.get(name, ())

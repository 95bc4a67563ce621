"""Events: their kinds, their columns, and the digest that chains them.

Rules of this module
- Pure: no clock, no randomness, no driver. The committer hands in time and salt.
- A digest covers every column of a row, with names as text and never as local ids:
  `digest = SHA-256(previous digest ‖ header ‖ commitment)`, `commitment = SHA-256(salt ‖ body)`.
- The header is eight signed 64-bit integers (-1 for none) followed by the text fields in the order of `header`,
  each with a four-byte length (0xFFFFFFFF for none). Nothing in it depends on a database's own numbering.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple

KINDS: tuple[str, ...] = (
    "",
    "state.written",
    "state.deleted",
    "state.read",
    "state.refused",
    "run.opened",
    "run.imported",
    "schema.declared",
    "turn.started",
    "turn.committed",
    "turn.rolled_back",
    "handoff.made",
    "route.decided",
    "model.answered",
    "tool.returned",
    "message.added",
    "failure.raised",
    "branch.opened",
    "branch.merged",
    "owner.changed",
    "value.erased",
    "reads.pruned",
    "note.added",
    "replay.started",
)
"""Kind names by their stored number. Numbers are never reused."""

KIND_ID: dict[str, int] = {name: number for number, name in enumerate(KINDS) if name}

WRITTEN, DELETED, READ, REFUSED = 1, 2, 3, 4
RUN_OPENED, RUN_IMPORTED, SCHEMA_DECLARED = 5, 6, 7

SEEN_NOW = -1
"""`seen_seq` of a draft read that saw whatever is the head when it is sealed (imports)."""

_NUMBERS = Struct(">8q")
_LENGTH = Struct(">I")
_NONE = b"\xff\xff\xff\xff"
_prefixed_cache: dict[str | None, bytes] = {None: _NONE}
_PREFIXED_MAX = 8192
"""Name texts kept in their length-prefixed form; bounded, since names may come from anywhere."""


class Row(NamedTuple):
    """One stored event, as both backends insert and return it. Actor, owner and key are ids into `names`."""

    run: int
    seq: int
    kind: int
    actor: int | None
    owner: int | None
    txn: int | None
    turn: int | None
    key: int | None
    version: int | None
    seen_seq: int | None
    recorded_at: int
    clock: int | None
    request_id: str | None
    refs: str | None
    salt: bytes | None
    body: bytes | None
    commitment: bytes | None
    digest: bytes
    trace_id: bytes | None
    span_id: bytes | None
    trace_flags: int | None


class Trace(NamedTuple):
    """The W3C trace context an event was recorded under."""

    trace_id: bytes | None
    span_id: bytes | None
    flags: int | None


NO_TRACE = Trace(None, None, None)


@dataclass(slots=True)
class Draft:
    """An event before it has its place in the log. Names are text."""

    kind: int
    actor: str | None = None
    owner: str | None = None
    key: str | None = None
    version: int | None = None
    seen_seq: int | None = None
    turn: int | None = None
    request_id: str | None = None
    refs: str | None = None
    body: bytes | None = None
    clock: int | None = None
    trace: Trace = NO_TRACE


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run's log, with names as text. `recorded_at` and `clock` are µs since the epoch, UTC."""

    tenant: str
    run: str
    seq: int
    kind: str
    actor: str | None
    owner: str | None
    txn: int | None
    turn: int | None
    key: str | None
    version: int | None
    seen_seq: int | None
    recorded_at: int
    clock: int | None
    request_id: str | None
    refs: dict[str, Any]
    text: bytes | None = field(repr=False)
    digest: bytes = field(repr=False)
    erased: bool = False
    trace_id: bytes | None = None
    span_id: bytes | None = None
    trace_flags: int | None = None
    body: dict[str, Any] = field(default_factory=dict)


def prefixed(text: str | None) -> bytes:
    """UTF-8 bytes behind their four-byte length; none is 0xFFFFFFFF."""
    found = _prefixed_cache.get(text)
    if found is None:
        raw = (text or "").encode()
        found = _LENGTH.pack(len(raw)) + raw
        if len(_prefixed_cache) < _PREFIXED_MAX and len(raw) < 256:
            _prefixed_cache[text] = found
    return found


def _prefixed_bytes(raw: bytes | None) -> bytes:
    return _NONE if raw is None else _LENGTH.pack(len(raw)) + raw


_KIND_PREFIXED = tuple(_LENGTH.pack(len(name)) + name.encode() for name in KINDS)


def genesis(tenant: str, run: str, scope: int) -> bytes:
    """The digest before seq 1: tenant, run name and scope enter the chain here, once."""
    return sha256(b"refold.log.1" + prefixed(tenant) + prefixed(run) + bytes((scope,))).digest()


def header(
    seq: int,
    kind: int,
    actor: str | None,
    owner: str | None,
    txn: int | None,
    turn: int | None,
    key: str | None,
    version: int | None,
    seen_seq: int | None,
    recorded_at: int,
    clock: int | None,
    request_id: str | None,
    refs: str | None,
    trace_id: bytes | None,
    span_id: bytes | None,
    trace_flags: int | None,
) -> bytes:
    """The bytes of all columns but salt, body and digest, in a fixed order."""
    known = _prefixed_cache.get
    return b"".join(
        (
            _NUMBERS.pack(
                seq,
                -1 if txn is None else txn,
                -1 if turn is None else turn,
                -1 if version is None else version,
                -1 if seen_seq is None else seen_seq,
                recorded_at,
                -1 if clock is None else clock,
                -1 if trace_flags is None else trace_flags,
            ),
            _KIND_PREFIXED[kind],
            known(actor) or prefixed(actor),
            known(owner) or prefixed(owner),
            known(key) or prefixed(key),
            _NONE if request_id is None else _prefixed_bytes(request_id.encode()),
            _NONE if refs is None else _prefixed_bytes(refs.encode()),
            _NONE if trace_id is None else _prefixed_bytes(trace_id),
            _NONE if span_id is None else _prefixed_bytes(span_id),
        )
    )


def commit(salt: bytes, body: bytes | None) -> bytes:
    """The commitment to a body: it stays when body and salt are erased."""
    return sha256(salt if body is None else salt + body).digest()


def chain(previous: bytes, head: bytes, commitment: bytes) -> bytes:
    """The digest of a row, from the digest before it, its header and its commitment."""
    return sha256(previous + head + commitment).digest()

"""Events: their kinds, their columns, and the digest that chains them.

Rules of this module
- Pure: no clock, no randomness, no driver. The committer hands in time and salt.
- A digest covers every column of a row, with names as text and never as local ids:
  `digest = SHA-256(previous digest ‖ header ‖ commitment)`, `commitment = SHA-256(salt ‖ body)`.
- The header is eight signed 64-bit integers (-1 for none) followed by the text fields in the order of `header`,
  each with a four-byte length (0xFFFFFFFF for none). Nothing in it depends on a database's own numbering.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple

from refold_store.errors import Damaged
from refold_store.jsontext import decode

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
    "run.forked",
    "run.archived",
    "turn.interrupted",
    "turn.resumed",
    "tool.called",
)
"""Kind names by their stored number. Numbers are never reused."""

KIND_ID: dict[str, int] = {name: number for number, name in enumerate(KINDS) if name}

WRITTEN, DELETED, READ, REFUSED = 1, 2, 3, 4
RUN_OPENED, RUN_IMPORTED, SCHEMA_DECLARED = 5, 6, 7
TURN_STARTED, TURN_COMMITTED, TURN_ROLLED_BACK = 8, 9, 10
ERASED, PRUNED, RUN_FORKED, RUN_ARCHIVED = 20, 21, 24, 25
TURN_INTERRUPTED, TURN_RESUMED = 26, 27

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


new_row = tuple.__new__
"""A Row from a tuple, without the cost of its constructor's twenty-one arguments."""


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


class Event:
    """One event of a run's log. Names are text; `recorded_at` and `clock` are µs since the epoch, UTC.

    `body` and `refs` are decoded when touched, afresh at each touch; `text` is the body as stored.
    """

    __slots__ = ("_name", "row", "run", "tenant")

    def __init__(self, tenant: str, run: str, row: Row, name: Callable[[int | None], str | None]) -> None:
        self.tenant = tenant
        self.run = run
        self.row = row
        """The stored row: actor, owner and key are ids of this store."""
        self._name = name

    @property
    def seq(self) -> int:
        """The place in the run, from 1, dense."""
        return self.row.seq

    @property
    def kind(self) -> str:
        """What happened, e.g. `state.written`."""
        number = self.row.kind
        if not 0 < number < len(KINDS):
            raise self._damaged(f"there is no kind of event number {number}")
        return KINDS[number]

    @property
    def actor(self) -> str | None:
        """Who did it."""
        return self._name(self.row.actor)

    @property
    def owner(self) -> str | None:
        """The owner the actor acted for."""
        return self._name(self.row.owner)

    @property
    def txn(self) -> int | None:
        """The seq of the first event of its transaction; None for a lone event."""
        return self.row.txn

    @property
    def turn(self) -> int | None:
        """The number of the turn."""
        return self.row.turn

    @property
    def key(self) -> str | None:
        """The key it is about."""
        return self._name(self.row.key)

    @property
    def version(self) -> int | None:
        """The version made, or seen by a read (0: never written)."""
        return self.row.version

    @property
    def seen_seq(self) -> int | None:
        """Of a read: the run's newest seq in the snapshot that served it."""
        return self.row.seen_seq

    @property
    def recorded_at(self) -> int:
        """When it was recorded, µs since the epoch; never goes back within a run."""
        return self.row.recorded_at

    @property
    def clock(self) -> int | None:
        """What the clock said, if that differs from `recorded_at`."""
        return self.row.clock

    @property
    def request_id(self) -> str | None:
        """The request id it bound."""
        return self.row.request_id

    @property
    def refs(self) -> dict[str, Any]:
        """What it refers to: `based_on`, `expected`, `keys` of a read of many, `source_seq` ..."""
        return {} if self.row.refs is None else self._decoded("refs", self.row.refs)

    @property
    def text(self) -> bytes | None:
        """The body as stored; None if there is none or it was erased."""
        return self.row.body

    @property
    def body(self) -> dict[str, Any]:
        """The body, decoded."""
        return {} if self.row.body is None else self._decoded("body", self.row.body)

    @property
    def erased(self) -> bool:
        """Whether the body was erased: its commitment is left."""
        return self.row.commitment is not None

    @property
    def digest(self) -> bytes:
        """The digest that chains it to all before it, 32 bytes."""
        return self.row.digest

    @property
    def trace_id(self) -> bytes | None:
        """The W3C trace id, 16 bytes."""
        return self.row.trace_id

    @property
    def span_id(self) -> bytes | None:
        """The W3C span id, 8 bytes."""
        return self.row.span_id

    @property
    def trace_flags(self) -> int | None:
        """The W3C trace flags; bit 0 is `sampled`."""
        return self.row.trace_flags

    def _decoded(self, name: str, text: str | bytes) -> dict[str, Any]:
        try:
            return document(text.encode() if isinstance(text, str) else text)
        except Damaged as error:
            raise self._damaged(f"{name}: {error}") from error

    def _damaged(self, message: str) -> Damaged:
        return Damaged(f"event {self.seq} of run {self.run!r}: {message}; run `refold verify`",
                       run=self.run, seq=self.seq)  # fmt: skip

    def __repr__(self) -> str:
        return f"<Event {self.seq} {self.kind} {self.actor!r} {self.key!r}>"


def document(text: bytes) -> dict[str, Any]:
    """A stored body or refs, decoded. Raises Damaged if it is no JSON object: then it was not written by refold."""
    try:
        found = decode(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"what is stored is no JSON ({error}); run `refold verify`") from error
    if not isinstance(found, dict):
        raise Damaged(f"what is stored is no JSON object, but {type(found).__name__}; run `refold verify`")
    return found


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


pack_numbers = _NUMBERS.pack
"""The first part of a header: seq, txn, turn, version, seen_seq, recorded_at, clock, trace_flags; -1 for none."""


def pack_names(kind: int, actor: str | None, owner: str | None, key: str | None) -> bytes:
    """The second part of a header: the same for many rows, so that a verification makes it once."""
    return b"".join((_KIND_PREFIXED[kind], prefixed(actor), prefixed(owner), prefixed(key)))


def pack_rest(request_id: str | None, refs: str | None, trace_id: bytes | None, span_id: bytes | None) -> bytes:
    """The last part of a header."""
    return (
        (_NONE if request_id is None else _prefixed_bytes(request_id.encode()))
        + (_NONE if refs is None else _prefixed_bytes(refs.encode()))
        + (_NONE if trace_id is None else _prefixed_bytes(trace_id))
        + (_NONE if span_id is None else _prefixed_bytes(span_id))
    )


NO_REST = pack_rest(None, None, None, None)
"""The last part where nothing is given."""

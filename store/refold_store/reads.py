"""What reading gives back: one key's value and where it came from, and a whole state.

Rules of this module
- Bodies are decoded when touched, and afresh at each touch: changing what was handed out changes nothing.
- Everything here is as of one seq; the log never changes below it, so a late touch sees the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from refold_store import jsontext
from refold_store.backend import Found, Held
from refold_store.errors import Damaged, ValueErased
from refold_store.events import DELETED, NO_TRACE, Trace, document
from refold_store.fold import ABSENT, WHOLE, basis_of

if TYPE_CHECKING:
    from refold_store.keys import Key
    from refold_store.run import Run


UNFETCHED = 0
"""In place of an actor: the row came with a whole state, and only its value was fetched."""


_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
"""What a datetime can say, in µs since the epoch."""


def as_time(micros: int) -> datetime:
    """A UTC datetime from µs since the epoch, exact; the nearest one that exists for what lies beyond the year 9999."""
    seconds, rest = divmod(min(max(micros, _FIRST), _LAST), 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


class Read:
    """One key as somebody saw it: its value, its version, and the write it came from.

    `absent` is true before the first write and after a delete; then `value` is ABSENT, which is not None.
    """

    __slots__ = ("_found", "_key", "_run", "key", "recorded", "seen_seq")

    def __init__(self, run: Run, key: str, declared: Key, found: Found | None, seen_seq: int, recorded: bool) -> None:
        self._run = run
        self._key = declared
        self._found = found
        self.key = key
        self.seen_seq = seen_seq
        """The run's newest seq in the snapshot that served this read."""
        self.recorded = recorded
        """Whether a `state.read` event was made for it."""

    @property
    def version(self) -> int:
        """1, 2, 3 ...; 0 if the key was never written."""
        return 0 if self._found is None else self._found.version

    @property
    def absent(self) -> bool:
        """Whether there is no value: never written, or deleted."""
        return self._found is None or self._found.kind == DELETED

    @property
    def deleted(self) -> bool:
        """Whether the newest version is a delete."""
        return self._found is not None and self._found.kind == DELETED

    @property
    def erased(self) -> bool:
        """Whether nothing of the value can be read any more: `text`, `json` and `value` raise ValueErased."""
        return self._erased() is not None

    @property
    def erased_by(self) -> str | None:
        """Who erased it."""
        return None if (error := self._erased()) is None else error.by

    @property
    def erased_at(self) -> datetime | None:
        """When it was erased, UTC."""
        error = self._erased()
        return None if error is None or error.at is None else datetime.fromisoformat(error.at)

    def _erased(self) -> ValueErased | None:
        found = self._found
        if found is None or found.kind == DELETED or found.body is not None:
            return None
        try:
            self._run._value_text(self.key, self._key, found)
        except ValueErased as error:
            return error
        return None

    @property
    def text(self) -> bytes:
        """The exact JSON text of the value, as stored. Empty if absent."""
        found = self._found
        if found is None or found.kind == DELETED:
            return b""
        body = found.body
        if type(body) is bytes and body.startswith(WHOLE):
            return body[len(WHOLE) : -1]
        return self._run._value_text(self.key, self._key, found)

    @property
    def json(self) -> Any:
        """The value as plain JSON; ABSENT if there is none."""
        found = self._found
        if found is None or found.kind == DELETED:
            return ABSENT
        body = found.body
        if body is not None:
            held = document(body)
            if "value" in held:
                return held["value"]
        return jsontext.decode(self.text)

    @property
    def value(self) -> Any:
        """The value in its declared type (plain JSON where the key is declared by JSON Schema); ABSENT if none."""
        found = self._found
        if found is None or found.kind == DELETED:
            return ABSENT
        body = found.body
        if type(body) is bytes and body.startswith(WHOLE):
            return self._key.typed(body[len(WHOLE) : -1])
        return self._key.typed(self.text)

    @property
    def seq(self) -> int:
        """The seq of the write; 0 if never written."""
        return 0 if self._found is None else self._found.seq

    @property
    def written_by(self) -> str | None:
        """Who wrote this version."""
        return None if (found := self._whole()) is None else self._run._backend.text_of(found.actor)

    @property
    def owner(self) -> str:
        """The owner the writer acted for; the declared owner if the key was never written."""
        found = self._whole()
        if found is None:
            return self._key.owner
        return self._run._backend.text_of(found.owner) or self._key.owner

    @property
    def recorded_at(self) -> datetime | None:
        """When the write was recorded, UTC."""
        return None if (found := self._whole()) is None else as_time(found.recorded_at)

    @property
    def basis(self) -> str | None:
        """The writer's stated reason."""
        return None if self._found is None else basis_of(self._found.body)

    @property
    def refs(self) -> dict[str, Any]:
        """What the write refers to: `based_on`, `expected`, `initial` ..."""
        found = self._whole()
        if found is None or found.refs is None:
            return {}
        return document(found.refs.encode())

    @property
    def based_on(self) -> list[tuple[str, int]]:
        """The (key, version) pairs the write states it rests on."""
        try:
            return [(key, version) for key, version in self.refs.get("based_on", ())]
        except (TypeError, ValueError) as error:
            raise Damaged(f"seq {self.seq} rests on what is no list of versions; run `refold verify`") from error

    @property
    def sensitive(self) -> bool:
        """Whether the key is declared sensitive, or was when it was written: show the value only when asked to."""
        return self._key.sensitive or (self.seq > 0 and self._run._sensitive_since(self.key) <= self.seq)

    @property
    def trace_id(self) -> str | None:
        """The trace the write happened in, 32 hex digits."""
        found = self._whole()
        return None if found is None or found.trace_id is None else found.trace_id.hex()

    @property
    def span_id(self) -> str | None:
        """The span of the write, 16 hex digits."""
        found = self._whole()
        return None if found is None or found.span_id is None else found.span_id.hex()

    @property
    def sampled(self) -> bool:
        """Whether the write's trace was sampled: only then can a trace backend hold it."""
        return bool((self.trace.flags or 0) & 1)

    @property
    def trace(self) -> Trace:
        """The trace context of the write, as stored."""
        found = self._found
        return NO_TRACE if found is None else Trace(found.trace_id, found.span_id, found.trace_flags)

    def _whole(self) -> Found | None:
        """The row with all its columns."""
        found = self._found
        if found is not None and found.actor == UNFETCHED:
            run_id = self._run._run_id()
            assert run_id is not None
            found = self._found = self._run._backend.newest(run_id, found.key, found.seq)
        return found

    def __repr__(self) -> str:
        what = "absent" if self.absent else f"version {self.version} by {self.written_by!r}"
        return f"<Read {self.key!r} {what}, seq {self.seq}>"


class State(Mapping[str, Read]):
    """All keys that hold a value at `seq`, by name. Values are decoded when touched."""

    def __init__(self, run: Run, seq: int, held: dict[str, Held], declared: Callable[[str], Key]) -> None:
        self.seq = seq
        self._run = run
        self._held = held
        self._declared = declared

    def __getitem__(self, key: str) -> Read:
        held = self._held[key]
        found = Found(held.seq, held.version, held.kind, UNFETCHED, 0, 0, held.body, None, None, None, None, held.key)
        return Read(self._run, key, self._declared(key), found, self.seq, False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def json(self) -> dict[str, Any]:
        """Every value as plain JSON, without those that were erased."""
        return {key: read.json for key, read in self.items() if not read.erased}

    def __repr__(self) -> str:
        return f"<State of {self._run.name!r} at seq {self.seq}: {', '.join(sorted(self._held))}>"


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One recorded read of a key. `newest` is the version that was newest in the snapshot the reader was served.

    Pruned reads stand in one record: `count` of them, from `seq` to `last_seq`; `recorded_at` is the first one's.
    """

    seq: int
    reader: str
    key: str
    version: int
    seen_seq: int
    newest: int
    recorded_at: datetime
    trace_id: str | None = None
    count: int = 1
    last_seq: int = 0

    @property
    def stale(self) -> bool:
        """Whether a newer version existed when it was read."""
        return self.newest > self.version


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run at a glance. A fork names the run it goes on from and the seq; a self-contained one does not."""

    tenant: str
    name: str
    head_seq: int
    opened_at: datetime
    last_at: datetime
    scope: str = "run"
    forked_from: str | None = None
    forked_at: int | None = None

"""What one process remembers of the newest end of each run, so that a write needs no read first.

Rules of this module
- A head is a guess until an insert at `seq + 1` succeeds: that insert proves every part of it.
- On any doubt it is dropped and read again. Nothing here is a source of truth.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from refold_store import jsontext
from refold_store.archived import archived
from refold_store.backend import MAX_SEQ, Backend
from refold_store.errors import Damaged
from refold_store.events import DELETED, SCHEMA_DECLARED, Row, genesis
from refold_store.fold import ABSENT, fold_updates, value_text
from refold_store.keys import Key
from refold_store.schema import Schema

if TYPE_CHECKING:
    from refold_store.turnheads import TurnHeads

RUNS_MAX = 1024
"""Run heads one process remembers."""
KEYS_MAX = 20_000
"""Key heads remembered of one run."""
VALUE_MAX = 65_536
"""Largest value text, in bytes, remembered for a reducer that needs the previous value."""
TURNS_MAX = 10_000
"""Turns remembered of one run."""
CONTENDED_COMMITS = 32
"""How many commits stay on the lock path after another process got in between."""


@dataclass(slots=True)
class KeyHead:
    """The newest version of one key."""

    version: int = 0
    seq: int = 0
    absent: bool = True
    writer: str | None = None
    text: bytes | None = None
    """The value text, if it is known and small."""
    frame_bytes: int = 0
    since_bytes: int = -1
    """Bytes of updates since the last keyframe; -1: not counted yet."""


@dataclass(slots=True, weakref_slot=True)
class RunHead:
    """The newest end of one run. `id` is None while the run is not in the store."""

    tenant: str
    name: str
    scope: int = 0
    id: int | None = None
    loaded: bool = False
    fresh: bool = False
    """Read from the database during this very commit."""
    contended: int = 0
    seq: int = 0
    digest: bytes = b""
    recorded_at: int = 0
    schemas: list[tuple[int, str]] = field(default_factory=list)
    """(seq, fingerprint) of each schema.declared, oldest first."""
    keys: dict[str, KeyHead] = field(default_factory=dict)
    turns: TurnHeads | None = None
    """What is known of its turns; None: nothing."""
    live: Any = None
    """The live state of the run in this process (`live.Live`), once somebody asked for it."""

    def forget(self) -> None:
        """Drop what may be outdated; the next use reads it again."""
        self.loaded = self.fresh = False
        self.turns = None
        self.keys.clear()

    def trim(self) -> None:
        """Keep memory bounded. Between commits only: until its rows are stored, a head is the one that knows them."""
        if len(self.keys) > KEYS_MAX:
            self.keys.clear()
        if self.turns is not None and len(self.turns.known) > TURNS_MAX:
            self.turns = None

    @property
    def fingerprint(self) -> str | None:
        """The schema in force, or None before the first."""
        return self.schemas[-1][1] if self.schemas else None

    @property
    def schema_seq(self) -> int:
        """Where the schema in force was declared."""
        return self.schemas[-1][0] if self.schemas else 0


class Heads:
    """The run heads of one store. Used under the committer's lock, except `get`."""

    def __init__(self, backend: Backend, schema_of: Callable[[str], Schema]) -> None:
        self.backend = backend
        self.schema_of = schema_of
        self._runs: OrderedDict[tuple[str, int, str], RunHead] = OrderedDict()
        self._alive: WeakValueDictionary[tuple[str, int, str], RunHead] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, tenant: str, scope: int, name: str) -> RunHead:
        """The head of a run, made (unloaded) if it is not remembered. A run has one as long as anybody holds it."""
        at = (tenant, scope, name)
        found = self._runs.get(at)
        if found is None:
            with self._lock:
                found = self._alive.get(at)
                if found is None:
                    found = self._alive[at] = RunHead(tenant, name, scope)
                self._runs[at] = found
                while len(self._runs) > RUNS_MAX:
                    self._runs.popitem(last=False)
        return found

    def forget_all(self) -> None:
        """Drop what may be outdated about every run."""
        with self._lock:
            for head in list(self._alive.values()):
                head.forget()

    def after_fork(self) -> None:
        """In a forked child: nothing is known for sure, and nobody holds the lock."""
        self._lock = threading.Lock()
        self.forget_all()
        for head in list(self._alive.values()):
            head.live = None

    def load(self, head: RunHead) -> None:
        """Read the newest end of a run on the writer connection."""
        backend = self.backend
        head.keys.clear()
        head.turns = None
        head.seq, head.digest, head.recorded_at = 0, genesis(head.tenant, head.name, head.scope), 0
        head.schemas = []
        if head.id is None:
            head.id = backend.find_run(head.tenant, head.scope, head.name, writer=True)
        if head.id is not None and (found := backend.head(head.id, writer=True)) is not None:
            head.seq, head.digest, head.recorded_at = found
            if type(head.digest) is not bytes:
                raise Damaged(f"the digest at seq {head.seq} is none; run `refold verify`", run=head.name, seq=head.seq)
            head.schemas = declared_schemas(backend, head.id, writer=True)
            if not head.schemas and (error := archived(backend, head.id, head.name, writer=True)) is not None:
                raise error
        head.loaded = head.fresh = True

    def key(self, head: RunHead, name: str) -> KeyHead:
        """The newest version of a key as of the run's head."""
        found = head.keys.get(name)
        if found is not None:
            return found
        found = KeyHead()
        if head.id is not None and head.seq:
            number = self.backend.look_up(name)
            row = None if number is None else self.backend.newest(head.id, number, head.seq, writer=True)
            if row is not None:
                found.version, found.seq, found.absent = row.version, row.seq, row.kind == DELETED
                found.writer = self.backend.text_of(row.actor, writer=True)
        head.keys[name] = found
        return found

    def written(self, head: RunHead) -> list[str]:
        """The names of all keys ever written in a run."""
        return [] if head.id is None else written_keys(self.backend, head.id, writer=True)

    def text(self, head: RunHead, name: str, key: Key) -> bytes | None:
        """The value text of a key at the run's head, or None if it is absent or erased."""
        at = self.key(head, name)
        if at.absent:
            return None
        if at.text is None:
            text = self._read_text(head, at, name, key)
            if text is None or len(text) > VALUE_MAX:
                return text
            at.text = text
        return at.text

    def _read_text(self, head: RunHead, at: KeyHead, name: str, key: Key) -> bytes | None:
        assert head.id is not None
        key_id = self.backend.ids[name]
        row = self.backend.newest(head.id, key_id, at.seq, writer=True)
        if row is None:
            raise Damaged(f"version {at.version} of {name!r} is gone", run=head.name, seq=at.seq)
        if row.body is not None and b'"value":' in row.body and "value" in jsontext.decode(row.body):
            return value_text(row.body)
        in_force = [print_ for seq, print_ in head.schemas if seq <= at.seq]
        if in_force and in_force[-1] != head.fingerprint:
            key = self.schema_of(in_force[-1]).key(name)
        if row.body is None and key.stores == "value":
            return None
        value = fold_from_frame(self.backend, head.id, key_id, key, at.seq, writer=True)
        return None if value is ABSENT else jsontext.encode(value)

    def count_updates(self, head: RunHead, name: str, at: KeyHead) -> None:
        """Fill in how many bytes of updates lie behind the last keyframe."""
        at.frame_bytes, at.since_bytes = 0, 0
        if head.id is not None and at.version:
            key_id = self.backend.ids[name]
            frame = self.backend.frame(head.id, key_id, at.seq, writer=True)
            at.frame_bytes = len(frame.body) if frame else 0
            after = frame.seq if frame else 0
            rows = self.backend.spanning(
                self.backend.sql.sizes, head.id, (key_id, after), MAX_SEQ, after=after, writer=True
            )
            at.since_bytes = sum(int(row[0]) for row in rows)


def written_keys(backend: Backend, run: int, *, writer: bool = False) -> list[str]:
    """The names of all keys ever written in a run, in byte order."""
    return sorted({row[0] for row in backend.spanning(backend.sql.keys, run, (), writer=writer)}, key=str.encode)


def declared_schemas(backend: Backend, run: int, *, writer: bool = False) -> list[tuple[int, str]]:
    """(seq, fingerprint) of each schema.declared of a run, oldest first. Raises Damaged if one cannot be read."""
    found = []
    for row in backend.spanning_rows(backend.sql.by_kind, run, (SCHEMA_DECLARED,), writer=writer):
        seq, body = row[1], Row(*row).body
        try:
            found.append((seq, str(jsontext.decode(body or b"null")["fingerprint"])))
        except (ValueError, TypeError, KeyError) as error:
            raise Damaged(f"the schema.declared at seq {seq} cannot be read; run `refold verify`", seq=seq) from error
    return found


def fold_from_frame(
    backend: Backend, run: int, key_id: int, key: Key, upto: int = MAX_SEQ, *, writer: bool = False
) -> object:
    """The JSON value of an update-storing key at a seq: the newest keyframe and the updates since."""
    frame = backend.frame(run, key_id, upto, writer=writer)
    start: object = ABSENT
    if frame is not None:
        try:
            start = jsontext.decode(frame.body)
        except (ValueError, TypeError, AttributeError) as error:
            raise Damaged(f"the keyframe at seq {frame.seq} is no JSON; run `refold verify`", seq=frame.seq) from error
    rows = backend.since(run, key_id, frame.seq if frame else 0, upto, writer=writer)
    return fold_updates(key, start, rows)

"""What both databases do for the log, and the statements in which they differ.

Rules of this module
- Hot SQL is constant text, run on the driver. `Statements` names each; a test checks them against `tables.py`.
- One writer connection belongs to the committer (under its lock); readers have connections of their own.
- Every read here is one statement, so it sees one snapshot.
- Driver errors leave as refold errors: `HeadMoved` (try again on the new head) or `StoreUnavailable`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from refold_store.errors import Damaged
from refold_store.events import Row
from refold_store.names import check_name

MAX_SEQ = (1 << 32) - 1
"""Largest seq of a run: it shares a 64-bit row number with the run on SQLite."""


class HeadMoved(Exception):
    """Another process appended to this run first; nothing was stored."""


class Found(NamedTuple):
    """A state event as a read needs it. `head` is the run's newest seq in the same snapshot (0 if not asked)."""

    seq: int
    version: int
    kind: int
    actor: int
    owner: int
    recorded_at: int
    body: bytes | None
    refs: str | None
    trace_id: bytes | None
    span_id: bytes | None
    trace_flags: int | None
    key: int
    head: int = 0


class Held(NamedTuple):
    """What a whole state needs of each key's newest event; the rest is looked up if it is asked for."""

    seq: int
    version: int
    kind: int
    key: int
    body: bytes | None
    head: int


_new_found = _new_held = tuple.__new__
"""A named tuple from a row, without the cost of its constructor's arguments."""


def is_write(row: Row) -> bool:
    """Whether a row is a write with no columns set but those of writes, transactions and traces."""
    return row[2] == 1 and row[6] is None and row[9] is None and row[11] is None and row[12] is None and row[13] is None


def is_lone(row: Row) -> bool:
    """Whether a write stands outside a transaction and a trace."""
    return row[5] is None and row[18] is None


class Frame(NamedTuple):
    """A keyframe: the whole value of a key as of `seq`."""

    seq: int
    version: int
    body: bytes


class RunRow(NamedTuple):
    """A line of `runs` with the place of its head."""

    id: int
    tenant: str
    name: str
    scope: int
    opened_at: int
    head: int
    last_at: int


@dataclass(frozen=True, slots=True)
class Statements:
    """The hot SQL of one backend. Parameters in this order: run, key, then what the name says."""

    insert: str
    find_run: str
    names_by_text: str
    names_by_ids: str
    head: str
    newest: str
    newest_seen: str
    many_seen: str
    absent_seen: str
    since: str
    sizes: str
    frame: str
    put_frame: str
    state: str
    fold: str
    version: str
    history: str
    versions: str
    events: str
    reads_of_key: str
    reads_of_many: str
    by_kind: str
    request: str
    runs: str
    runs_all: str
    at_seq: str
    txn_end: str
    schema_get: str
    keys: str


class Backend(ABC):
    """A database that holds logs. Subclasses own the connections, appending, and error translation."""

    name: str
    sql: Statements
    place: str
    """Where it is, fit to be shown: no user, password or parameter."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self.epoch = 0
        """Grows when a lost connection was replaced. What was read or stored without a sync before may be gone."""
        self.on_reconnect: Callable[[], None] | None = None
        """Told when a lost connection for writes is back. Must not raise."""

    # --- what a subclass gives ---------------------------------------------------------------

    @abstractmethod
    def query(self, sql: str, args: Sequence[Any]) -> list[Any]:
        """All rows of one statement on a reader connection."""

    @abstractmethod
    def query_one(self, sql: str, args: Sequence[Any]) -> Any:
        """The first row of one statement on a reader connection, or None."""

    @abstractmethod
    def stream(self, sql: str, args: Sequence[Any], batch: int) -> Iterator[Any]:
        """Rows of one statement on a reader connection, fetched `batch` at a time."""

    @abstractmethod
    def writer_query(self, sql: str, args: Sequence[Any]) -> list[Any]:
        """All rows of one statement on the writer connection, inside its open transaction if there is one."""

    @abstractmethod
    def append(self, rows: list[Row], *, durable: bool) -> None:
        """Insert rows in one transaction. Raises HeadMoved if any (run, seq) is taken; then nothing was stored."""

    @abstractmethod
    def exclusive(self, runs: Sequence[int]) -> AbstractContextManager[None]:
        """Nobody else appends to these runs while it is open; `append` inside belongs to it."""

    @abstractmethod
    def create_run(self, tenant: str, scope: int, name: str, opened_at: int) -> int:
        """The id of the run, made now if new."""

    @abstractmethod
    def add_names(self, names: Sequence[str]) -> None:
        """Intern names that are not stored yet."""

    @abstractmethod
    def put_schema(self, fingerprint: str, declaration: bytes) -> None:
        """Store a schema declaration under its fingerprint, once."""

    @abstractmethod
    def put_frame(self, run: int, key: int, frame: Frame) -> None:
        """Add a keyframe; it is disposable and needs no sync."""

    @abstractmethod
    def clock_offset_us(self) -> int:
        """What to add to this process's clock to get the database server's, in µs. 0 on SQLite."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked child: put inherited connections away and make fresh ones."""

    def before_fork(self) -> None:  # noqa: B027  # most have nothing to do
        """Wait until no connection is in use, and keep it so until `after_fork_in_parent`."""

    def after_fork_in_parent(self) -> None:  # noqa: B027
        """Go on as before."""

    # --- names -------------------------------------------------------------------------------

    def intern(self, names: Iterable[str]) -> None:
        """Make sure every name has an id; afterwards `ids[name]` finds it."""
        missing = sorted({name for name in names if name not in self._ids})
        if not missing:
            return
        self._look_up(missing)
        absent = [name for name in missing if name not in self._ids]
        if absent:
            self.add_names(absent)
            self._look_up(absent)

    def look_up(self, name: str) -> int | None:
        """The id of a name on the writer connection, or None. Adds nothing: a rollback would take it back."""
        if name not in self._ids:
            self._look_up((name,))
        return self._ids.get(name)

    def _look_up(self, names: Sequence[str]) -> None:
        for name in names:
            for number, text in self.writer_query(self.sql.names_by_text, (name,)):
                self._remember(number, text)

    def _remember(self, number: int, text: str) -> None:
        self._ids[text] = number
        self._texts[number] = text

    @property
    def ids(self) -> dict[str, int]:
        """Interned names; only those met so far."""
        return self._ids

    def id_of(self, name: str) -> int | None:
        """The id of a key's name, or None if the store has never seen it. Raises NameInvalid."""
        found = self._ids.get(name)
        if found is None:
            check_name("key", name)
            for found, text in self.query(self.sql.names_by_text, (name,)):
                self._remember(found, text)
        return found

    def text_of(self, number: int | None, *, writer: bool = False) -> str | None:
        """The name behind an id."""
        if number is None:
            return None
        texts = self._texts
        return texts[number] if number in texts else self.learn((number,), writer=writer)[number]

    def learn(self, numbers: Iterable[int], *, writer: bool = False) -> dict[int, str]:
        """Look up the names behind ids in one statement; returns all that are known."""
        texts = self._texts  # another one may take its place after a lost connection
        missing = sorted({number for number in numbers if number not in texts})
        if missing:
            ask = self.writer_query if writer else self.query
            for number, text in ask(self.sql.names_by_ids, (str(missing),)):
                self._remember(number, text)
                texts[number] = text
            lost = [number for number in missing if number not in texts]
            if lost:
                raise Damaged(f"the log uses name ids {lost[:5]}, which table names does not hold; restore a backup")
        return texts

    # --- reads -------------------------------------------------------------------------------

    def find_run(self, tenant: str, scope: int, name: str) -> int | None:
        """The id of a run, or None."""
        rows = self.query(self.sql.find_run, (tenant, scope, name))
        return rows[0][0] if rows else None

    def head(self, run: int, *, writer: bool = False) -> tuple[int, bytes, int] | None:
        """Newest (seq, digest, recorded_at) of a run, or None if it holds no event."""
        rows = (self.writer_query if writer else self.query)(self.sql.head, (run,))
        return tuple(rows[0]) if rows else None

    def newest(self, run: int, key: int, upto: int = MAX_SEQ, *, writer: bool = False) -> Found | None:
        """The newest state event of a key at or before a seq."""
        if writer:
            rows = self.writer_query(self.sql.newest, (run, key, upto))
            return Found(*rows[0]) if rows else None
        row = self.query_one(self.sql.newest, (run, key, upto))
        return None if row is None else _new_found(Found, row)

    def newest_seen(self, run: int, key: int) -> Found | None:
        """The newest state event of a key together with the run's head in the same snapshot."""
        row = self.query_one(self.sql.newest_seen, (run, key))
        return None if row is None else _new_found(Found, row)

    def version(self, run: int, key: int, version: int) -> Found | None:
        """The state event that made a version."""
        rows = self.query(self.sql.version, (run, key, version))
        return Found(*rows[0]) if rows else None

    def frame(self, run: int, key: int, upto: int, *, writer: bool = False) -> Frame | None:
        """The newest keyframe of a key at or before a seq."""
        rows = (self.writer_query if writer else self.query)(self.sql.frame, (run, key, upto))
        return Frame(*rows[0]) if rows else None

    def since(self, run: int, key: int, after: int, upto: int, *, writer: bool = False) -> list[Any]:
        """(seq, version, kind, body) of a key's state events after one seq up to another, oldest first."""
        return (self.writer_query if writer else self.query)(self.sql.since, (run, key, after, upto))

    def state(self, run: int, upto: int = MAX_SEQ) -> list[Held]:
        """The newest state event of every key at or before a seq, in one statement."""
        return [_new_held(Held, row) for row in self.query(self.sql.state, (run, upto))]

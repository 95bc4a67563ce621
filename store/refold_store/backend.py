"""What both databases do for the log, and the statements in which they differ.

Rules of this module
- Hot SQL is constant text, run on the driver. `Statements` names each; a test checks them against `tables.py`.
- One writer connection belongs to the committer (under its lock); readers have connections of their own.
- Every read here is one statement, so it sees one snapshot.
- Driver errors leave as refold errors: `HeadMoved` (try again on the new head) or `StoreUnavailable`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from refold_store.errors import Damaged
from refold_store.events import DELETED, SCHEMA_DECLARED, WRITTEN, Row
from refold_store.keeping import Keeping

MAX_SEQ = (1 << 32) - 1
"""Largest seq of a run: it shares a 64-bit row number with the run on SQLite."""


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


class Place(NamedTuple):
    """Where an event stands: the run that holds it, and its row's place in the chain."""

    run: int
    seq: int
    recorded_at: int
    clock: int | None
    txn: int | None
    digest: bytes


class RunRow(NamedTuple):
    """A line of `runs` with the place of its head."""

    id: int
    tenant: str
    name: str
    scope: int
    opened_at: int
    head: int
    last_at: int
    parent: str | None
    parent_seq: int | None


@dataclass(frozen=True, slots=True)
class Statements:
    """The hot SQL of one backend. Parameters in this order: run, key, then what the name says."""

    insert: str
    find_run: str
    parent_of: str
    children: str
    lock_runs: str
    open_run: str
    detach: str
    names_by_text: str
    names_by_ids: str
    head: str
    newest: str
    newest_seen: str
    many_seen: str
    many_at: str
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
    last_of_kind: str
    last_of_turn: str
    newest_turn: str
    request: str
    runs: str
    runs_all: str
    at_seq: str
    txn_end: str
    turn_end: str
    schema_get: str
    keys: str


class Backend(Keeping):
    """A database that holds logs. Subclasses own the connections, appending, and error translation."""

    name: str
    place: str
    """Where it is, fit to be shown: no user, password or parameter."""

    def __init__(self) -> None:
        super().__init__()
        self._forks: set[int] = set()
        self.epoch = 0
        """Grows when a lost connection was replaced. What was read or stored without a sync before may be gone."""
        self.on_reconnect: Callable[[], None] | None = None
        """Told when a lost connection for writes is back. Must not raise."""

    # --- what a subclass gives ---------------------------------------------------------------

    @abstractmethod
    def query_one(self, sql: str, args: Sequence[Any]) -> Any:
        """The first row of one statement on a reader connection, or None."""

    @abstractmethod
    def stream(self, sql: str, args: Sequence[Any], batch: int) -> Iterator[Any]:
        """Rows of one statement on a reader connection, fetched `batch` at a time."""

    @abstractmethod
    def create_run(self, tenant: str, scope: int, name: str, opened_at: int) -> int:
        """The id of the run, made now if new."""

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

    def before_fork(self) -> None:
        """Wait until no connection is in use, and keep it so until `after_fork_in_parent`."""

    def after_fork_in_parent(self) -> None:
        """Go on as before."""

    # --- runs and their pieces ---------------------------------------------------------------

    def find_run(self, tenant: str, scope: int, name: str, *, writer: bool = False) -> int | None:
        """The id of a run, or None."""
        rows = (self.writer_query if writer else self.query)(self.sql.find_run, (tenant, scope, name))
        return self.met(rows[0][0], rows[0][1]) if rows else None

    def met(self, run: int, parent: int | None) -> int:
        """Remember of a run whether it is a fork; its ancestors are looked up when needed. Returns the run."""
        if parent is not None:
            self._forks.add(run)
        return run

    def parent_of(self, run: int, *, writer: bool = False) -> tuple[int, int] | None:
        """(run, seq) that a fork goes on from; None for any other run. Asked anew: a fork may become self-contained.

        Raises Damaged if it is said to go on from itself or from a later run.
        """
        if run not in self._forks:
            return None
        parent, at = (self.writer_query if writer else self.query)(self.sql.parent_of, (run,))[0]
        if parent is None:
            self._forks.discard(run)
            return None
        if at is None or parent >= run:  # runs are numbered as they are made, so that no way up is a circle
            raise Damaged(f"table runs says that run {run} goes on from seq {at} of run {parent}; run `refold verify`")
        rows = (self.writer_query if writer else self.query)(self.sql.parent_of, (parent,))
        self.met(parent, rows[0][0] if rows else None)
        return parent, at

    def pieces(self, run: int, upto: int = MAX_SEQ, *, writer: bool = False) -> list[tuple[int, int, int]]:
        """(run, first seq, last seq) of the logs that make up a run up to a seq, oldest first, its own last."""
        found = []
        while run in self._forks and (parent := self.parent_of(run, writer=writer)) is not None:
            if parent[1] < upto:
                found.append((run, parent[1] + 1, upto))
            run, upto = parent[0], min(parent[1], upto)
        found.append((run, 1, upto))
        return found[::-1]

    def children(self, run: int) -> list[tuple[int, str, str, int]]:
        """(run, tenant, name, seq) of the forks made directly from a run."""
        found = [(row[0], row[1], row[2], row[3]) for row in self.query(self.sql.children, (run,))]
        self._forks.update(row[0] for row in found)
        return found

    def spanning(
        self, sql: str, run: int, args: Sequence[Any], upto: int = MAX_SEQ, *, after: int = 0, writer: bool = False
    ) -> list[Any]:
        """Rows of a statement with parameters (run, *args, upto), of each piece of a run in turn."""
        ask = self.writer_query if writer else self.query
        if run not in self._forks:
            return ask(sql, (run, *args, upto))
        pieces = self.pieces(run, upto, writer=writer)
        return [row for piece, _first, last in pieces if last > after for row in ask(sql, (piece, *args, last))]

    def spanning_rows(self, sql: str, run: int, args: Sequence[Any], *, writer: bool = False) -> list[Any]:
        """Event rows of a statement with parameters (run, *args), of each piece of a run in turn."""
        ask = self.writer_query if writer else self.query
        if run not in self._forks:
            return ask(sql, (run, *args))
        pieces = self.pieces(run, writer=writer)
        return [row for piece, _, last in pieces for row in ask(sql, (piece, *args)) if row[1] <= last]

    def streaming(
        self, sql: str, run: int, args: Sequence[Any], upto: int, batch: int, *, after: int = 0
    ) -> Iterator[Any]:
        """`spanning`, fetched `batch` rows at a time."""
        for piece, _first, last in self.pieces(run, upto):
            if last > after:
                yield from self.stream(sql, (piece, *args, last), batch)

    # --- reads -------------------------------------------------------------------------------

    def head(self, run: int, *, writer: bool = False) -> tuple[int, bytes, int] | None:
        """Newest (seq, digest, recorded_at) of a run, or None if it holds no event."""
        rows = (self.writer_query if writer else self.query)(self.sql.head, (run,))
        return tuple(rows[0]) if rows else None

    def newest(self, run: int, key: int, upto: int = MAX_SEQ, *, writer: bool = False) -> Found | None:
        """The newest state event of a key at or before a seq."""
        if writer:
            rows = self.writer_query(self.sql.newest, (run, key, upto))
            found = Found(*rows[0]) if rows else None
        else:
            found = self._newest(run, key, upto)
        return self.inherited(run, key, upto, writer=writer) if found is None and run in self._forks else found

    def inherited(self, run: int, key: int, upto: int = MAX_SEQ, *, writer: bool = False) -> Found | None:
        """The newest state event of a key that a fork shares with its ancestors, at or before a seq."""
        parent = self.parent_of(run, writer=writer)
        return None if parent is None else self.newest(parent[0], key, min(parent[1], upto), writer=writer)

    def _newest(self, run: int, key: int, upto: int) -> Found | None:
        row = self.query_one(self.sql.newest, (run, key, upto))
        return None if row is None else _new_found(Found, row)

    def newest_seen(self, run: int, key: int) -> Found | None:
        """The newest state event of a key among a run's own, together with its head in the same snapshot."""
        row = self.query_one(self.sql.newest_seen, (run, key))
        return None if row is None else _new_found(Found, row)

    def version(self, run: int, key: int, version: int) -> Found | None:
        """The state event that made a version."""
        for piece, _first, last in reversed(self.pieces(run)):
            rows = self.query(self.sql.version, (piece, key, version))
            if rows and rows[0][0] <= last:
                return Found(*rows[0])
        return None

    def at_seq(self, run: int, seq: int) -> Place | None:
        """The event at a seq; where its read was pruned, the newest before it. None: the run holds nothing there."""
        for piece, _first, last in reversed(self.pieces(run, seq)):
            rows = self.query(self.sql.at_seq, (piece, last))
            if rows:
                if type(rows[0][4]) is not bytes:
                    raise Damaged(f"the digest at seq {rows[0][0]} is none; run `refold verify`", seq=rows[0][0])
                return Place(piece, *rows[0])
        return None

    def last_row(
        self, sql: str, run: int, args: Sequence[Any], *, after: int = 0, upto: int = MAX_SEQ, writer: bool = False
    ) -> Row | None:
        """The row that `last_of_kind` or `last_of_turn` finds in a run or the past it shares, or None.

        `after` bounds the search: without it, a kind that a turn has none of is looked for through the whole run.
        """
        for piece, _first, last in reversed(self.pieces(run, upto, writer=writer)):
            if last <= after:
                return None
            rows = (self.writer_query if writer else self.query)(sql, (piece, *args, after, last))
            if rows:
                return Row(*rows[0])
        return None

    def txn_end(self, run: int, txn: int, upto: int = MAX_SEQ) -> int:
        """The last seq of a transaction of this very run that begins at seq `txn`."""
        return int(self.query(self.sql.txn_end, (run, txn, upto))[0][0])

    def frame(self, run: int, key: int, upto: int, *, writer: bool = False) -> Frame | None:
        """The newest keyframe of a key at or before a seq."""
        for piece, _first, last in reversed(self.pieces(run, upto, writer=writer)):
            rows = (self.writer_query if writer else self.query)(self.sql.frame, (piece, key, last))
            if rows:
                return Frame(*rows[0])
        return None

    def since(self, run: int, key: int, after: int, upto: int, *, writer: bool = False) -> list[Any]:
        """(seq, version, kind, body) of a key's state events after one seq up to another, oldest first.

        The first write of a key under another schema held its whole value: erased, it stands here as a delete, since
        nothing is left to fold onto.
        """
        rows = self.spanning(self.sql.since, run, (key, after), upto, after=after, writer=writer)
        if any(row[3] is None and row[2] == WRITTEN for row in rows):
            declared = self.declared_at(run, writer=writer)
            for at, (seq, version, kind, body) in enumerate(rows):
                before = rows[at - 1][0] if at else after
                if body is None and before and any(before < one < seq for one in declared):
                    kind = DELETED
                rows[at] = seq, version, kind, body
        return rows

    def declared_at(self, run: int, *, writer: bool = False) -> list[int]:
        """The seqs at which a run's schemas were declared."""
        return [row[1] for row in self.spanning_rows(self.sql.by_kind, run, (SCHEMA_DECLARED,), writer=writer)]

    def state(self, run: int, upto: int = MAX_SEQ) -> list[Held]:
        """The newest state event of every key at or before a seq, of one snapshot."""
        if run not in self._forks or (parent := self.parent_of(run)) is None:
            return [_new_held(Held, row) for row in self.query(self.sql.state, (run, upto))]
        head = self.head(run)
        newest = parent[1] if head is None else head[0]
        upto = min(upto, newest)
        found = {row.key: row._replace(head=newest) for row in self.state(parent[0], min(parent[1], upto))}
        if upto > parent[1]:
            rows = self.query(self.sql.many_at, (run, str(list(found)), upto))
            rows += self.query(self.sql.state, (run, upto))
            found |= {row.key: row._replace(head=newest) for row in (Held(*row) for row in rows)}
        return list(found.values())

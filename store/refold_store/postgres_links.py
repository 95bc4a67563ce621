"""Connections to PostgreSQL, and the two statements that run all day.

Rules of this module
- A link is one connection and is used by one thread at a time: the committer's under its lock, a reader while it
  is checked out.
- The lone write and the point read go through libpq's prepared statements with parameters packed here: a psycopg
  cursor costs as much as the server's work on them (bench/README.md). Everything else uses a cursor.
- Idle readers are kept last in, first out; at READERS_MAX in use, a further one waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from struct import Struct
from typing import Any

import psycopg
from psycopg import pq
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper, StrBinaryDumper

from refold_store.backend import Found
from refold_store.errors import StoreClosed, StoreUnavailable
from refold_store.events import Row
from refold_store.postgres_url import connect

READERS_MAX = 8
"""Reader connections of one process."""
READER_WAIT_S = 10.0
"""How long a read waits for one of them."""

Connection = psycopg.Connection[Any]

_INT8, _INT4, _INT2, _BYTEA = 20, 23, 21, 17
_pack8, _pack4 = Struct(">q").pack, Struct(">i").pack
_LONE_COLUMNS = (
    ("run", _INT4),
    ("seq", _INT8),
    ("actor", _INT4),
    ("owner", _INT4),
    ("key", _INT4),
    ("version", _INT8),
    ("recorded_at", _INT8),
    ("salt", _BYTEA),
    ("body", _BYTEA),
    ("digest", _BYTEA),
)
_LONE = "INSERT INTO events (kind, {}) SELECT 1, {} WHERE NOT EXISTS ({})".format(
    ", ".join(name for name, _ in _LONE_COLUMNS),
    ", ".join(f"${n}" for n in range(1, len(_LONE_COLUMNS) + 1)),
    "SELECT 1 FROM events WHERE run = $1 AND seq > $2",
)
_LONE_TYPES = [oid for _, oid in _LONE_COLUMNS]
_NOT_PREPARED = b"26000"
_BINARY = {n: [1] * n for n in (2, 3, len(_LONE_COLUMNS))}


class Link:
    """One connection in autocommit, with a cursor that is reused."""

    __slots__ = ("_named", "_prepared", "connection", "cursor")

    def __init__(self, url: str, *, durable: bool = True) -> None:
        self.connection: Connection = connect(url, autocommit=True, cursor_factory=psycopg.RawCursor)
        # One spelling for all numbers and bytes, so that each statement is prepared once.
        self.connection.adapters.register_dumper(int, Int8BinaryDumper)
        self.connection.adapters.register_dumper(bytes, BytesBinaryDumper)
        self.connection.adapters.register_dumper(str, StrBinaryDumper)
        if not durable:
            self.connection.execute("SET synchronous_commit = off")
        self.cursor = self.connection.cursor(binary=True)
        self._prepared: dict[str, bytes] = {}
        self._named = 0

    @property
    def lost(self) -> bool:
        """Whether the connection can no longer be used."""
        return self.connection.closed or self.connection.broken

    def rows(self, sql: str, args: Sequence[Any]) -> list[Any]:
        """All rows of a statement."""
        return self.cursor.execute(sql, args, prepare=True).fetchall()

    def insert_lone(self, row: Row) -> bool:
        """Insert a write of which only the usual columns are set; outside a transaction: it may have to try twice.

        False: the run holds newer events, and nothing was stored.
        """
        values = [
            _pack4(row[0]),
            _pack8(row[1]),
            _pack4(row[3]),
            _pack4(row[4]),
            _pack4(row[7]),
            _pack8(row[8]),
            _pack8(row[10]),
            row[14],
            row[15],
            row[17],
        ]
        return bool(self._run(_LONE, _LONE_TYPES, values).command_tuples)

    def found(self, sql: str, args: Sequence[int]) -> Found | None:
        """The row of a point read, its numbers unpacked."""
        types = [_INT4, _INT4, _INT8][: len(args)]
        values = [_pack4(args[0]), _pack4(args[1]), *(_pack8(number) for number in args[2:])]
        result = self._run(sql, types, values)
        if not result.ntuples:
            return None
        get, number = result.get_value, int.from_bytes
        return Found(
            number(get(0, 0) or b""),
            number(get(0, 1) or b""),
            number(get(0, 2) or b""),
            number(get(0, 3) or b""),
            number(get(0, 4) or b""),
            number(get(0, 5) or b""),
            get(0, 6),
            None if (refs := get(0, 7)) is None else refs.decode(),
            get(0, 8),
            get(0, 9),
            None if (flags := get(0, 10)) is None else number(flags),
            number(get(0, 11) or b""),
            number(get(0, 12) or b"") if result.nfields > 12 else 0,
        )

    def _run(self, sql: str, types: list[int], values: list[Any]) -> Any:
        pgconn = self.connection.pgconn
        result = self._execute(pgconn, sql, types, values)
        if result.error_field(pq.DiagnosticField.SQLSTATE) == _NOT_PREPARED:
            # psycopg deallocates every statement of the session after a ROLLBACK.
            self._prepared.clear()
            result = self._execute(pgconn, sql, types, values)
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            _check(result, pgconn)
        return result

    def _execute(self, pgconn: Any, sql: str, types: list[int], values: list[Any]) -> Any:
        name = self._prepared.get(sql)
        if name is None:
            self._named += 1
            name = f"refold_{self._named}".encode()
            _check(pgconn.prepare(name, sql.encode(), types), pgconn)
            self._prepared[sql] = name
        return pgconn.exec_prepared(name, values, _BINARY[len(values)], 1)

    def roll_back(self) -> None:
        """Leave a transaction, if the server still listens; psycopg then deallocates the statements of the session."""
        with suppress(psycopg.Error):
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Say goodbye, if the server still listens."""
        with suppress(psycopg.Error):
            self.connection.close()


def _check(result: Any, pgconn: Any) -> None:
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return
    if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        raise psycopg.OperationalError(pgconn.get_error_message())
    raise psycopg.errors.error_from_result(result)


class Readers:
    """The reader connections of one process."""

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._closed = False
        self._idle: deque[Link] = deque()
        self._free = threading.BoundedSemaphore(READERS_MAX)

    @contextmanager
    def link(self) -> Iterator[Link]:
        """One link for as long as the block lasts."""
        link = self.take()
        try:
            yield link
        finally:
            self.give_back(link)

    def take(self) -> Link:
        """Check one out. Raises StoreUnavailable if all stay in use for READER_WAIT_S."""
        if self._closed:
            raise StoreClosed("the store is closed; open it again")
        if not self._free.acquire(timeout=READER_WAIT_S):
            raise StoreUnavailable(
                f"all {READERS_MAX} reader connections stayed in use for {READER_WAIT_S:.0f} s; "
                "end iterations over events() that nobody reads on"
            )
        try:
            return self._idle.pop() if self._idle else self._connect()
        except BaseException:
            self._free.release()
            raise

    def give_back(self, link: Link) -> None:
        """Return it; a lost one is dropped."""
        if link.lost or self._closed:
            link.close()
        else:
            self._idle.append(link)
        self._free.release()

    def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close the idle ones, which a lost server took with it."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

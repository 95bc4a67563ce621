"""The floors: what a correct versioned write, a point read and a scan cost on the bare driver, and no more than that.

The plain store that one would write by hand: a log of writes, and a table of current values. SQLite: `BEGIN IMMEDIATE;
SELECT version; INSERT; UPSERT; COMMIT` with `synchronous=FULL`, WAL. PostgreSQL: one prepared statement, autocommit.
Bodies are given as finished text: the floor encodes and checks nothing. A point read is one row of the current values;
a scan walks the log by its primary key.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg

from bench.values import TEXTS

SQLITE_TABLES = """
CREATE TABLE log (seq INTEGER PRIMARY KEY, run INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
                  writer TEXT NOT NULL, at INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE current (run INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
                      PRIMARY KEY (run, key));
"""
SQLITE_VERSION = "SELECT version FROM current WHERE run = ? AND key = ?"
SQLITE_INSERT = "INSERT INTO log (run, key, version, writer, at, body) VALUES (?, ?, ?, ?, ?, ?)"
SQLITE_UPSERT = (
    "INSERT INTO current (run, key, version, body) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (run, key) DO UPDATE SET version = excluded.version, body = excluded.body"
)
SQLITE_POINT = "SELECT version, body FROM current WHERE run = ? AND key = ?"
SCAN = "SELECT seq, run, key, version, writer, at, body FROM log ORDER BY seq"

POSTGRES_TABLES = """
CREATE TABLE log (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run integer NOT NULL,
                  key text COLLATE "C" NOT NULL, version bigint NOT NULL, writer text NOT NULL, at bigint NOT NULL,
                  body bytea NOT NULL);
CREATE TABLE current (run integer NOT NULL, key text COLLATE "C" NOT NULL, version bigint NOT NULL, body bytea NOT NULL,
                      PRIMARY KEY (run, key));
"""
POSTGRES_WRITE = """
WITH moved AS (INSERT INTO current (run, key, version, body) VALUES (%s, %s, 1, %s)
               ON CONFLICT (run, key) DO UPDATE SET version = current.version + 1, body = excluded.body
               RETURNING run, key, version, body)
INSERT INTO log (run, key, version, writer, at, body)
SELECT run, key, version, %s, %s, body FROM moved RETURNING version
"""
POSTGRES_POINT = "SELECT version, body FROM current WHERE run = %s AND key = %s"
WRITER, AT = "triage_agent", 1_800_000_000_000_000
FILL_BATCH = 10_000


class SqliteFloor:
    """The bare sqlite3 driver."""

    def __init__(self, path: Path, keys: list[str], *, run: int = 1) -> None:
        fresh = not path.exists()
        self.path, self.keys, self.run = path, keys, run
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        if fresh:
            self.connection.executescript(SQLITE_TABLES)
            self.current()
        self._numbers = itertools.count()

    def current(self) -> None:
        """Fills the table of point reads."""
        self.connection.execute("BEGIN")
        for number, key in enumerate(self.keys):
            text = TEXTS[number % len(TEXTS)]
            self.connection.execute("INSERT INTO current VALUES (?, ?, ?, ?)", (self.run, key, 1, text))
        self.connection.execute("COMMIT")

    def write(self, operations: int) -> None:
        """Durable versioned writes, one transaction each."""
        execute, keys, run = self.connection.execute, self.keys, self.run
        for number in itertools.islice(self._numbers, operations):
            key, text = keys[number % len(keys)], TEXTS[number % len(TEXTS)]
            execute("BEGIN IMMEDIATE")
            found = execute(SQLITE_VERSION, (run, key)).fetchone()
            version = found[0] + 1 if found else 1
            execute(SQLITE_INSERT, (run, key, version, WRITER, AT + number, text))
            execute(SQLITE_UPSERT, (run, key, version, text))
            execute("COMMIT")

    def read(self, operations: int) -> None:
        """Point reads of version and body, not decoded."""
        execute, keys, run = self.connection.execute, self.keys, self.run
        for number in range(operations):
            execute(SQLITE_POINT, (run, keys[number % len(keys)])).fetchone()

    def read_all(self, operations: int) -> None:
        """All keys by one range query, not decoded."""
        for _ in range(operations):
            self.connection.execute("SELECT key, version, body FROM current WHERE run = ?", (self.run,)).fetchall()

    def fill(self, events: int) -> None:
        """So many rows of log, quickly."""
        done = self.connection.execute("SELECT count(*) FROM log").fetchone()[0]
        self.connection.execute("BEGIN")
        self.connection.executemany(SQLITE_INSERT, log_rows(self.keys, done, events, self.run))
        self.connection.execute("COMMIT")
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def scan(self, operations: int) -> None:
        """Walks the whole log."""
        for _ in range(operations):
            for _row in self.connection.execute(SCAN):
                pass

    def replay(self, operations: int) -> None:
        """Walks the whole log and decodes each body."""
        loads = orjson.loads
        for _ in range(operations):
            for row in self.connection.execute(SCAN):
                loads(row[6])

    def size(self) -> int:
        """Bytes of the file, all of its WAL written back."""
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()


class PostgresFloor:
    """The bare psycopg driver."""

    def __init__(self, url: str, keys: list[str], *, run: int = 1) -> None:
        self.url, self.keys, self.run = url, keys, run
        self.connection = psycopg.connect(url, autocommit=True)
        if self.connection.execute("SELECT to_regclass('current')").fetchone() == (None,):
            self.connection.execute(POSTGRES_TABLES.encode())
            self.current()
        self._cursor = self.connection.cursor(binary=True)
        self._numbers = itertools.count()

    def current(self) -> None:
        """Fills the table of point reads."""
        with self.connection.cursor() as cursor, cursor.copy("COPY current FROM STDIN") as copy:
            for number, key in enumerate(self.keys):
                copy.write_row((self.run, key, 1, TEXTS[number % len(TEXTS)]))
        self.connection.execute("ANALYZE current")

    def write(self, operations: int) -> None:
        """Durable versioned writes, one statement each."""
        execute, keys, run = self._cursor.execute, self.keys, self.run
        for number in itertools.islice(self._numbers, operations):
            key, text = keys[number % len(keys)], TEXTS[number % len(TEXTS)]
            execute(POSTGRES_WRITE, (run, key, text, WRITER, AT + number), prepare=True)
            self._cursor.fetchone()

    def read(self, operations: int) -> None:
        """Point reads of version and body, not decoded."""
        execute, keys, run = self._cursor.execute, self.keys, self.run
        for number in range(operations):
            execute(POSTGRES_POINT, (run, keys[number % len(keys)]), prepare=True)
            self._cursor.fetchone()

    def read_all(self, operations: int) -> None:
        """All keys by one range query, not decoded."""
        for _ in range(operations):
            self._cursor.execute("SELECT key, version, body FROM current WHERE run = %s", (self.run,), prepare=True)
            self._cursor.fetchall()

    def fill(self, events: int) -> None:
        """So many rows of log, quickly."""
        found = self.connection.execute("SELECT count(*) FROM log").fetchone()
        done = found[0] if found else 0
        columns = "COPY log (run, key, version, writer, at, body) FROM STDIN"
        with self.connection.cursor() as cursor, cursor.copy(columns) as copy:
            for row in log_rows(self.keys, done, events, self.run):
                copy.write_row(row)
        self.connection.execute("VACUUM ANALYZE log")

    def scan(self, operations: int) -> None:
        """Walks the whole log through a server-side cursor."""
        for _ in range(operations):
            for _row in self._stream():
                pass

    def replay(self, operations: int) -> None:
        """Walks the whole log and decodes each body."""
        loads = orjson.loads
        for _ in range(operations):
            for row in self._stream():
                loads(row[6])

    def _stream(self) -> Iterator[tuple[Any, ...]]:
        with self.connection.transaction(), self.connection.cursor("scan", binary=True) as cursor:
            cursor.itersize = FILL_BATCH
            cursor.execute(SCAN)
            yield from cursor

    def size(self) -> int:
        """Bytes of the tables and their indexes."""
        found = self.connection.execute(
            "SELECT pg_total_relation_size('log') + pg_total_relation_size('current')"
        ).fetchone()
        assert found is not None
        return int(found[0])

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()


Floor = SqliteFloor | PostgresFloor


def log_rows(keys: list[str], start: int, stop: int, run: int) -> Iterator[tuple[int, str, int, str, int, bytes]]:
    """Rows of a log, each key in its turn."""
    for number in range(start, stop):
        version, which = divmod(number, len(keys))
        yield run, keys[which], version + 1, WRITER, AT + number, TEXTS[number % len(TEXTS)]

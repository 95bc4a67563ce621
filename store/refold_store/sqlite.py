"""SQLite: one file, WAL, one writer connection per process, a reader connection per thread.

Rules of this module
- `synchronous=FULL` for what must survive; `NORMAL` for reads and keyframes, whose pages reach the disk
  with the next durable commit (the WAL keeps the order).
- A lone insert is its own immediate transaction. A batch runs between BEGIN IMMEDIATE and COMMIT.
- "database is locked" is retried with short random pauses, so that writers of several processes take turns.
- `:memory:` is one connection shared under a lock.
"""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from refold_store.backend import Backend, Frame, is_lone, is_write
from refold_store.errors import ConfigError, ReadOnlyStore, StoreClosed, StoreUnavailable
from refold_store.events import Row, commit
from refold_store.keeping import HeadMoved
from refold_store.migrate import check_sqlite, ensure_sqlite
from refold_store.sqlite_sql import INSERT_TRACED, INSERT_USUAL, SQL

BUSY_S = 30.0
"""Longest wait for another process's write before StoreUnavailable."""
FORK_WAIT_S = 5.0
"""Longest time a fork waits for a statement that is under way."""
PAUSE_MIN_S = 0.0002
PAUSE_MAX_S = 0.005
"""Bounds of the random pause between two tries on a locked file: short, so that no writer starves."""
STATEMENT_CACHE = 128
READER_CACHE_KB = 32_768
"""Most a reader keeps of the file in memory: the upper levels of a long run's tree."""


class _Reader:
    """A thread's connection; it closes when the thread ends."""

    __slots__ = ("__weakref__", "connection", "cursor", "lock")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.lock = threading.Lock()
        """Held while a statement runs: a fork must not find it in the middle of one."""

    def close(self) -> None:
        """Close both: the last statement of an open cursor would keep the file and its WAL open."""
        with suppress(sqlite3.ProgrammingError):  # closed before
            self.cursor.close()
        self.connection.close()

    def __del__(self) -> None:
        self.close()


def _check_place(path: str) -> None:
    """Raises ConfigError for what no database file can be: a folder, or a pipe, which would wait for its other end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # not there, or not to be seen: opening it says why
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise ConfigError(f"{path!r} is {kind}; give the path of a database file")


class SqliteBackend(Backend):
    """One SQLite file, or one shared in-memory database."""

    name = "sqlite"
    sql = SQL

    def __init__(self, path: str, *, read_only: bool = False, create: bool = True) -> None:
        super().__init__()
        self.path = self.place = path
        self.read_only = read_only
        self._memory = path == ":memory:"
        self._lock = threading.RLock()
        self._local = threading.local()
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        self._abandoned: list[object] = []
        self._quiet: list[_Reader] | None = None
        self._full = True
        self._depth = 0
        if (read_only or not create) and not self._memory and not os.path.exists(path):
            raise StoreUnavailable(f"no store at {path!r}; `refold init` or a write makes one")
        if not self._memory:
            _check_place(path)
        self._writer = self._connect()
        if not read_only:
            ensure_sqlite(lambda: self._writer)
            self._writer.execute("PRAGMA synchronous = FULL")
        else:
            check_sqlite(self._writer, path)
        self._cursor = self._writer.cursor()

    def _connect(self) -> sqlite3.Connection:
        mode = "rwc" if not self.read_only else "ro&immutable=1" if self._on_read_only_medium() else "ro"
        target = ":memory:" if self._memory else f"file:{quote(self.path)}?mode={mode}"
        try:
            connection = sqlite3.connect(
                target,
                uri=not self._memory,
                timeout=0.0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=STATEMENT_CACHE,
            )
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(
                f"cannot open {self.path!r}: {error}; check the folder and its permissions"
            ) from error
        return connection

    def _on_read_only_medium(self) -> bool:
        """Whether SQLite cannot make the files it shares between readers, and nobody is writing: then it needs none."""
        folder = os.path.dirname(os.path.abspath(self.path))
        return not os.path.exists(f"{self.path}-wal") and not os.access(folder, os.W_OK)

    # --- reads -------------------------------------------------------------------------------

    def _reader(self) -> _Reader:
        found: _Reader | None = getattr(self._local, "reader", None)
        if found is None:
            with self._lock:
                connection = self._connect()
                connection.execute("PRAGMA busy_timeout = 5000")
                connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KB}")
                found = self._local.reader = _Reader(connection)
                self._readers.add(found)
        return found

    def query(self, sql: str, args: Sequence[Any]) -> list[Any]:
        if self._memory:
            return self.writer_query(sql, args)
        reader = self._reader()
        try:
            with reader.lock:
                return reader.cursor.execute(sql, args).fetchall()
        except sqlite3.Error as error:
            raise _unavailable(error) from error

    def query_one(self, sql: str, args: Sequence[Any]) -> Any:
        if self._memory:
            rows = self.writer_query(sql, args)
            return rows[0] if rows else None
        reader = self._reader()
        try:
            # All rows, though there is one at most: a statement not run to its end keeps its snapshot open.
            with reader.lock:
                rows = reader.cursor.execute(sql, args).fetchall()
            return rows[0] if rows else None
        except sqlite3.Error as error:
            raise _unavailable(error) from error

    def stream(self, sql: str, args: Sequence[Any], batch: int) -> Iterator[Any]:
        if self._memory:
            yield from self.writer_query(sql, args)
            return
        reader = self._reader()
        try:
            with reader.lock:
                cursor = reader.connection.execute(sql, args)
            try:
                while True:
                    with reader.lock:
                        rows = cursor.fetchmany(batch)
                    if not rows:
                        return
                    yield from rows
            finally:
                with suppress(sqlite3.ProgrammingError):  # left early, and the store was closed before
                    cursor.close()
        except sqlite3.Error as error:
            raise _unavailable(error) from error

    def writer_query(self, sql: str, args: Sequence[Any]) -> list[Any]:
        with self._lock:
            rows: list[Any] = self._patiently(lambda: self._writer.execute(sql, args).fetchall())
            return rows

    # --- appending ---------------------------------------------------------------------------

    def append(self, rows: list[Row], *, durable: bool) -> None:
        with self._lock:
            if self._full is not durable:
                self._set_sync(durable)
            if self._depth:
                self._insert(rows)
            elif len(rows) == 1:
                try:
                    self._insert_one(rows[0])
                except sqlite3.Error:
                    self._patiently(lambda: self._insert(rows))
            else:
                with self._transaction():
                    self._insert(rows)

    def _insert_one(self, row: Row) -> None:
        if not is_write(row):
            self._cursor.execute(SQL.insert, row)
        elif is_lone(row):
            usual = (row[0] << 32 | row[1], row[3], row[4], row[7], row[8], row[10], row[14], row[15], row[17])
            self._cursor.execute(INSERT_USUAL, usual)
        else:
            self._cursor.execute(INSERT_TRACED, _traced(row))

    def _insert(self, rows: list[Row]) -> None:
        try:
            if all(map(is_write, rows)):
                self._cursor.executemany(INSERT_TRACED, map(_traced, rows))
            else:
                self._cursor.executemany(SQL.insert, rows)
        except sqlite3.IntegrityError as error:
            raise HeadMoved from error
        except sqlite3.Error as error:
            if _is_busy(error):
                raise
            raise _unavailable(error) from error

    def _set_sync(self, durable: bool) -> None:
        if not self._depth:
            pragma = "PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = NORMAL"
            self._patiently(lambda: self._writer.execute(pragma))
            self._full = durable

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._patiently(lambda: self._writer.execute("BEGIN IMMEDIATE"))
        self._depth += 1
        try:
            yield
            try:
                self._writer.execute("COMMIT")
            except sqlite3.Error as error:
                raise _unavailable(error) from error
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        finally:
            self._depth -= 1

    @contextmanager
    def exclusive(self, runs: Sequence[int]) -> Iterator[None]:
        with self._lock:
            self._set_sync(True)
            with self._transaction():
                yield

    def change(self, sql: str, args: Sequence[Any]) -> int:
        try:
            return self._writer.execute(sql, args).rowcount
        except sqlite3.Error as error:
            raise _unavailable(error) from error

    def ready_to_erase(self) -> None:
        with self._lock:
            self._writer.create_function("refold_commitment", 2, _commitment, deterministic=True)
            self._writer.execute("PRAGMA secure_delete = ON").fetchone()

    def vacuum(self) -> None:
        with self._lock:
            for step in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                found = self._patiently(lambda step=step: self._writer.execute(step).fetchone())
            if found is not None and found[0]:
                raise StoreUnavailable(
                    f"others read {self.place!r}, so its WAL file could not be emptied: "
                    "what was erased may still stand in it; close them and vacuum again"
                )

    def _patiently(self, action: Any) -> Any:
        """Run `action`, again while another process holds the write lock, with short random pauses."""
        deadline = 0.0
        while True:
            try:
                return action()
            except sqlite3.Error as error:
                if not _is_busy(error) or self._depth:
                    raise _unavailable(error) from error
                now = time.monotonic()
                deadline = deadline or now + BUSY_S
                if now > deadline:
                    raise StoreUnavailable(
                        f"{self.path!r} stayed locked for {BUSY_S:.0f} s by another process; nothing was written"
                    ) from error
                time.sleep(random.uniform(PAUSE_MIN_S, PAUSE_MAX_S))

    # --- runs, names, schemas, keyframes -----------------------------------------------------

    def _add(self, sql: str, args: Sequence[Any]) -> None:
        """A small insert that needs no sync of its own: later durable commits carry it."""
        with self._lock:
            if self.read_only:
                raise ReadOnlyStore(f"{self.path!r} is open read-only")
            self._set_sync(False)
            self._patiently(lambda: self._writer.execute(sql, args))

    def create_run(self, tenant: str, scope: int, name: str, opened_at: int) -> int:
        if (found := self.find_run(tenant, scope, name, writer=True)) is None:
            self._add(
                "INSERT INTO runs (id, tenant, scope, name, opened_at) "
                "SELECT (SELECT coalesce(max(id), 0) + 1 FROM runs), ?1, ?2, ?3, ?4 "
                "WHERE NOT EXISTS (SELECT 1 FROM runs WHERE tenant = ?1 AND scope = ?2 AND name = ?3)",
                (tenant, scope, name, opened_at),
            )
            found = self.find_run(tenant, scope, name, writer=True)
            assert found is not None
        return found

    def add_names(self, names: Sequence[str]) -> None:
        for name in names:
            self._add(
                "INSERT INTO names (name) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM names WHERE name = ?1)", (name,)
            )

    def put_schema(self, fingerprint: str, declaration: bytes) -> None:
        self._add(
            "INSERT INTO schemas (fingerprint, declaration) SELECT ?1, ?2 "
            "WHERE NOT EXISTS (SELECT 1 FROM schemas WHERE fingerprint = ?1)",
            (fingerprint, declaration),
        )

    def put_frame(self, run: int, key: int, frame: Frame) -> None:
        self._add(SQL.put_frame, (run, key, *frame))

    def clock_offset_us(self) -> int:
        return 0

    # --- life --------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            for reader in list(self._readers):
                reader.close()
            self._cursor.close()  # its last statement would keep the file and its WAL open
            self._writer.close()

    def before_fork(self) -> None:
        if self._lock.acquire(timeout=FORK_WAIT_S):
            self._quiet = [reader for reader in self._readers if reader.lock.acquire(timeout=FORK_WAIT_S)]

    def after_fork_in_parent(self) -> None:
        if self._quiet is not None:
            for reader in self._quiet:
                reader.lock.release()
            self._quiet = None
            self._lock.release()

    def after_fork(self) -> None:
        # SQLite remembers file locks by process. The child's copy of that memory is wrong: it would believe to hold
        # the parent's lock, and its writes would be lost when others reset the WAL. Closing what was inherited clears
        # it, and leaves the parent's locks alone: they are not inherited. What was in use cannot be closed.
        self._abandoned += [self._writer, self._cursor, *self._readers, self._local]
        if self._quiet is not None:
            for reader in self._quiet:
                reader.close()
            self._cursor.close()
            self._writer.close()
        self._quiet = None
        self._lock = threading.RLock()
        self._local = threading.local()
        self._readers = weakref.WeakSet()
        self._depth = 0
        self._full = True
        if not self._memory:  # a shared one stays closed: the parent has it
            self._writer = self._connect()
            self._writer.execute("PRAGMA synchronous = FULL")
            self._cursor = self._writer.cursor()


def _traced(row: Row) -> tuple[Any, ...]:
    """The parameters of INSERT_TRACED."""
    place = row[0] << 32 | row[1]
    return (place, row[3], row[4], row[7], row[8], row[10], row[14], row[15], row[17], row[5], *row[18:21])


def _commitment(salt: bytes | None, body: bytes | None) -> bytes:
    return commit(salt or b"", body)


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _unavailable(error: sqlite3.Error) -> Exception:
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error):
        return StoreClosed("the store was closed while in use, or is in memory and belongs to the parent process")
    return StoreUnavailable(
        f"SQLite refused: {error}; nothing was half written, the store can be used again once mended"
    )

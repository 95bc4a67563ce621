"""PostgreSQL through psycopg 3: a writer connection for what must survive, one for what may follow, a pool of readers.

Rules of this module
- A lone write is one prepared statement in autocommit: one round trip, one sync. So is a batch (`unnest`).
- Reads and keyframes go over a connection with `synchronous_commit = off`: the next durable commit carries them.
- Under contention the run's advisory transaction lock is taken in a statement of its own, in READ COMMITTED.
- After a lost connection the row's digest tells whether it was stored, so that nothing is stored twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from refold_store.backend import Backend, Found, Frame, is_lone, is_write
from refold_store.errors import ReadOnlyStore, RefoldError, StoreClosed, StoreUnavailable
from refold_store.events import Row
from refold_store.keeping import HeadMoved
from refold_store.migrate import check_postgres
from refold_store.postgres_links import Connection, Link, Readers
from refold_store.postgres_sql import APPEND_MANY, INSERT_MANY, LOCK_RUN, NAMES, SQL, TYPES
from refold_store.postgres_url import connect, libpq_url
from refold_store.revision import REVISION_SQL

RECONNECT_S = 10.0
"""How long a write waits for a lost server to come back before StoreUnavailable."""
RECONNECT_PAUSE_MIN_S, RECONNECT_PAUSE_MAX_S = 0.01, 0.2

T = TypeVar("T")


class PostgresBackend(Backend):
    """A PostgreSQL database whose tables `refold migrate` made."""

    name = "postgresql"
    sql = SQL

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        super().__init__()
        self.url = libpq_url(url)
        self.read_only = read_only
        self._abandoned: list[object] = []
        self._links: dict[bool, Link] = {}
        self._shut = False
        self._open_exclusive = False
        self._uncommitted: list[Row] = []
        self._readers = Readers(lambda: Link(self.url))
        try:
            writer = self._link(durable=True).connection
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"cannot connect to PostgreSQL: {error}; check the URL and the server") from error
        try:
            self.place = f"{writer.info.host}:{writer.info.port}/{writer.info.dbname}"
            check_postgres(_revision(writer))
        except psycopg.errors.InsufficientPrivilege as error:
            role = writer.info.user
            self.close()
            raise StoreUnavailable(
                f"the role {role!r} may not read refold's tables; "
                "give it its rights as their owner: refold migrate --roles reader=ROLE (or writer=ROLE)"
            ) from error
        except psycopg.Error as error:
            self.close()
            raise _unavailable(error) from error
        except RefoldError:
            self.close()
            raise

    # --- connections -------------------------------------------------------------------------

    def _link(self, *, durable: bool) -> Link:
        found = self._links.get(durable)
        if found is None or found.lost:
            if self._shut:
                raise StoreClosed("the store was closed while in use; open it again")
            if found is not None:
                self._lose_memory()
            elif not durable and True in self._links:
                self._link(durable=True).rows("SELECT 1", ())  # if the server was away, this one knows
            lost, found = found, Link(self.url, durable=durable)
            self._links[durable] = found
            if lost is not None and self.on_reconnect is not None:
                self.on_reconnect()
        return found

    def _lose_memory(self) -> None:
        """A connection was lost, perhaps in a crash: what no sync covered may be gone, names and heads included."""
        self.epoch += 1
        self._ids.clear()
        self._texts = {}
        self._readers.drop_idle()

    def _reconnecting(self, action: Callable[[], T]) -> T:
        """Run `action`, again after a lost connection, until the server answers or RECONNECT_S is over."""
        deadline, pause = 0.0, RECONNECT_PAUSE_MIN_S
        while True:
            try:
                return action()
            except psycopg.OperationalError as error:
                if not _is_lost(error):
                    raise _unavailable(error) from error
                now = time.monotonic()
                deadline = deadline or now + RECONNECT_S
                if now > deadline:
                    raise StoreUnavailable(
                        f"PostgreSQL did not answer for {RECONNECT_S:.0f} s: {error}; "
                        "the last write may or may not be stored, a request_id makes it safe to repeat",
                        maybe_committed=True,
                    ) from error
                time.sleep(pause)
                pause = RECONNECT_PAUSE_MAX_S
            except psycopg.Error as error:
                raise _unavailable(error) from error

    # --- reads -------------------------------------------------------------------------------

    def query(self, sql: str, args: Sequence[Any]) -> list[Any]:
        return self._reconnecting(lambda: self._query_once(sql, args))

    def query_one(self, sql: str, args: Sequence[Any]) -> Any:
        rows = self.query(sql, args)
        return rows[0] if rows else None

    def _newest(self, run: int, key: int, upto: int) -> Found | None:
        return self._found(SQL.newest, (run, key, upto))

    def newest_seen(self, run: int, key: int) -> Found | None:
        return self._found(SQL.newest_seen, (run, key))

    def _found(self, sql: str, args: Sequence[int]) -> Found | None:
        try:
            return self._found_once(sql, args)
        except psycopg.Error as error:
            if not isinstance(error, psycopg.OperationalError) or not _is_lost(error):
                raise _unavailable(error) from error
        return self._reconnecting(lambda: self._found_once(sql, args))

    def _found_once(self, sql: str, args: Sequence[int]) -> Found | None:
        link = self._readers.take()
        try:
            return link.found(sql, args)
        finally:
            self._readers.give_back(link)

    def _query_once(self, sql: str, args: Sequence[Any]) -> list[Any]:
        with self._readers.link() as link:
            return link.rows(sql, args)

    def stream(self, sql: str, args: Sequence[Any], batch: int) -> Iterator[Any]:
        link = self._reconnecting(self._begin_reading)
        try:
            with psycopg.RawServerCursor(link.connection, "refold_stream") as cursor:
                cursor.itersize = batch
                cursor.execute(sql, args, binary=True)
                yield from cursor
        except psycopg.Error as error:
            raise _unavailable(error) from error
        finally:
            link.roll_back()
            self._readers.give_back(link)

    def _begin_reading(self) -> Link:
        link = self._readers.take()
        try:
            link.connection.execute("BEGIN")
        except BaseException:
            self._readers.give_back(link)
            raise
        return link

    def writer_query(self, sql: str, args: Sequence[Any]) -> list[Any]:
        if self._open_exclusive:
            return self._link(durable=True).rows(sql, args)
        return self._reconnecting(lambda: self._link(durable=True).rows(sql, args))

    # --- appending ---------------------------------------------------------------------------

    def append(self, rows: list[Row], *, durable: bool) -> None:
        if self._open_exclusive:
            self._insert(self._links[True], rows)
            self._uncommitted = rows
            return
        epoch, sent = self.epoch, False

        def once() -> None:
            nonlocal sent
            link = self._link(durable=durable)
            if self.epoch == epoch:
                sent = True
                self._insert(link, rows)
            elif not (sent and self._stored(link, rows)):
                raise HeadMoved

        self._reconnecting(once)

    def _insert(self, link: Link, rows: list[Row]) -> None:
        try:
            if self._open_exclusive:  # under the run's lock a head is no guess
                link.cursor.execute(INSERT_MANY, _columns(rows), prepare=True)
            elif len(rows) == 1 and is_write(rows[0]) and is_lone(rows[0]):
                if not link.insert_lone(rows[0]):
                    raise HeadMoved
            elif not link.cursor.execute(APPEND_MANY, _columns(rows), prepare=True).rowcount:
                raise HeadMoved
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected) as error:
            raise HeadMoved from error

    def _stored(self, link: Link, rows: list[Row]) -> bool:
        """Whether exactly these rows are there. One transaction stored them, so the last one speaks for all.

        A lost session may still be on its way to the disk. The key of the row is tried first: that waits for it.
        """
        last = rows[-1]
        link.connection.execute("BEGIN")
        try:
            link.cursor.execute(SQL.insert, last, prepare=True)
        except psycopg.errors.UniqueViolation:
            pass
        finally:
            link.roll_back()
        found = link.rows("SELECT digest FROM events WHERE run = $1 AND seq = $2", (last.run, last.seq))
        return bool(found) and found[0][0] == last.digest

    @contextmanager
    def exclusive(self, runs: Sequence[int]) -> Iterator[None]:
        link = self._reconnecting(lambda: self._begin(runs))
        self._open_exclusive, self._uncommitted = True, []
        try:
            yield
            self._open_exclusive = False
            self._commit(link, self._uncommitted)
        except psycopg.Error as error:
            link.roll_back()
            if isinstance(error, psycopg.OperationalError) and _is_lost(error):
                raise HeadMoved from error
            raise _unavailable(error) from error
        except BaseException:
            link.roll_back()
            raise
        finally:
            self._open_exclusive = False

    def change(self, sql: str, args: Sequence[Any]) -> int:
        link = self._links[True]
        try:
            return link.cursor.execute(sql, args).rowcount
        except psycopg.errors.InsufficientPrivilege as error:
            role = link.connection.info.user
            raise StoreUnavailable(
                f"the role {role!r} may not erase, prune or archive; connect as one that may "
                "(the tables' owner gives the rights: refold migrate --roles keeper=ROLE)"
            ) from error

    def vacuum(self) -> None:
        told: list[str] = []
        try:
            with connect(self.url, autocommit=True) as connection:
                connection.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
                connection.execute("VACUUM FULL events, keyframes")
        except psycopg.Error as error:
            raise _unavailable(error) from error
        if told:
            raise StoreUnavailable(f"{told[0]}; as the tables' owner run: VACUUM FULL events, keyframes")

    def _begin(self, runs: Sequence[int]) -> Link:
        link = self._link(durable=True)
        try:
            link.connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            for run in sorted(runs):
                link.connection.execute("SELECT pg_advisory_xact_lock($1::int4, $2::int4)", (LOCK_RUN, run))
        except BaseException:
            link.roll_back()
            raise
        return link

    def _commit(self, link: Link, rows: list[Row]) -> None:
        try:
            link.connection.execute("COMMIT")
        except psycopg.OperationalError:
            if not rows or not self._reconnecting(lambda: self._stored(self._link(durable=True), rows)):
                raise

    # --- runs, names, schemas, keyframes -----------------------------------------------------

    def create_run(self, tenant: str, scope: int, name: str, opened_at: int) -> int:
        if (found := self.find_run(tenant, scope, name, writer=True)) is not None:
            return found

        def once() -> int:
            link = self._link(durable=True)
            try:
                link.connection.execute("BEGIN")
                link.connection.execute(SQL.lock_runs)
                link.connection.execute(
                    "INSERT INTO runs (id, tenant, scope, name, opened_at) "
                    "SELECT coalesce(max(id), 0) + 1, $1::text, $2::int2, $3::text, $4::int8 FROM runs "
                    "ON CONFLICT (tenant, scope, name) DO NOTHING",
                    (tenant, scope, name, opened_at),
                )
                link.connection.execute("COMMIT")
            except BaseException:
                link.roll_back()
                raise
            return self.met(*link.rows(SQL.find_run, (tenant, scope, name))[0])

        return self._reconnecting(once)

    def _add(self, sql: str, args: Sequence[Any]) -> None:
        if self.read_only:
            raise ReadOnlyStore("the store is open read-only")
        self._reconnecting(lambda: self._link(durable=False).cursor.execute(sql, args, prepare=True))

    def add_names(self, names: Sequence[str]) -> None:
        self._add("INSERT INTO names (name) SELECT unnest($1::text[]) ON CONFLICT (name) DO NOTHING", (list(names),))

    def put_schema(self, fingerprint: str, declaration: bytes) -> None:
        self._add(
            "INSERT INTO schemas (fingerprint, declaration) VALUES ($1, $2) ON CONFLICT (fingerprint) DO NOTHING",
            (fingerprint, declaration),
        )

    def put_frame(self, run: int, key: int, frame: Frame) -> None:
        self._add(SQL.put_frame, (run, key, *frame))

    def clock_offset_us(self) -> int:
        before = time.time_ns()
        rows = self.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8", ())
        return int(rows[0][0]) - (before + time.time_ns()) // 2000

    # --- life --------------------------------------------------------------------------------

    def close(self) -> None:
        self._shut = True
        for link in self._links.values():
            link.close()
        self._readers.close()

    def after_fork(self) -> None:
        # The sockets belong to the parent: keep the objects referenced so that nothing says goodbye on them.
        self._abandoned += [self._links, self._readers]
        self._links = {}
        self._open_exclusive = False
        self._readers = Readers(lambda: Link(self.url))


def _columns(rows: list[Row]) -> list[Any]:
    """Rows turned into one array a column. Numbers go as an array literal: psycopg would size their type each time."""
    return [
        list(column) if name in TYPES else f"{{{','.join('NULL' if n is None else str(n) for n in column)}}}"
        for name, column in zip(NAMES, zip(*rows, strict=True), strict=True)
    ]


def _revision(connection: Connection) -> str | None:
    try:
        row = connection.execute(REVISION_SQL).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return None if row is None else str(row[0])


def _is_lost(error: psycopg.OperationalError) -> bool:
    state = error.sqlstate or ""
    return not state or state.startswith(("08", "57P"))


def _unavailable(error: psycopg.Error) -> Exception:
    return StoreUnavailable(f"PostgreSQL refused: {error}; nothing was half written")

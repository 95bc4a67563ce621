"""refold itself, as a user would embed it: a declared schema, a store, a run. Everything is on but instrumentation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Annotated

import psycopg

from bench.floors import Floor, PostgresFloor, SqliteFloor
from bench.lab import SQLITE, Lab
from bench.values import DOCUMENTS, OWNER, READER, Fact, key_names
from refold import Owner, StateSchema, append, family, max_bytes, open_store
from refold_store.migrate import migrate_postgres

RUN = "clm-77401"
FILL_KEYS = 100
POSTGRES_TABLES = ("events", "keyframes", "names", "runs")


class BenchState(StateSchema):
    """One family of facts, which a model checks, and one list of such facts."""

    fact: Annotated[Fact, Owner(OWNER), family("fact/{no}")]
    log: Annotated[list[Fact], Owner(OWNER), append, max_bytes(256 << 20)]


class Refold:
    """A store with one run of it in use."""

    name = "refold"

    def __init__(self, lab: Lab, backend: str, *, keys: int = 10, url: str | None = None) -> None:
        self.backend = backend
        if url is None:
            url = new_store_url(lab, backend)
        self.url, self.keys = url, key_names(keys)
        self.store = open_store(url, schema=BenchState)
        self.run = self.store.run(RUN)
        self._numbers = count()

    def use(self, name: str) -> None:
        """Goes on in another run of the store."""
        self.run = self.store.run(name)

    def write(self, operations: int) -> None:
        """Durable writes, one after another."""
        write, keys = self.run.write_state, self.keys
        for number in islice(self._numbers, operations):
            write(keys[number % len(keys)], DOCUMENTS[number % len(DOCUMENTS)], writer=OWNER)

    def transaction(self, operations: int) -> None:
        """Transactions that write every key once."""
        for start in islice(self._numbers, operations):
            with self.run.transaction() as tx:
                for number, key in enumerate(self.keys, start):
                    tx.write_state(key, DOCUMENTS[number % len(DOCUMENTS)], writer=OWNER)

    def append(self, operations: int) -> None:
        """Appends to one list."""
        write = self.run.write_state
        for number in islice(self._numbers, operations):
            write("log", DOCUMENTS[number % len(DOCUMENTS)], writer=OWNER)

    def peek(self, operations: int) -> None:
        """Newest value, decoded to JSON, and its version; not recorded."""
        peek, keys = self.run.peek, self.keys
        for number in range(operations):
            read = peek(keys[number % len(keys)])
            assert read.version
            assert read.json is not None

    def peek_typed(self, operations: int) -> None:
        """The same, decoded to the declared type."""
        peek, keys = self.run.peek, self.keys
        for number in range(operations):
            read = peek(keys[number % len(keys)])
            assert read.version
            assert read.value is not None

    def read(self, operations: int) -> None:
        """Recorded reads."""
        read, keys = self.run.read_state, self.keys
        for number in range(operations):
            assert read(keys[number % len(keys)], reader=READER).json

    def read_and_flush(self, operations: int) -> None:
        """Recorded reads, and their records in the log before this returns."""
        self.read(operations)
        self.store.flush()

    def state(self, operations: int) -> None:
        """The whole state now; one of its bodies is decoded."""
        for number in range(operations):
            assert self.run.state()[self.keys[number % len(self.keys)]].json

    def replay(self, operations: int) -> None:
        """All events of the run, each body decoded."""
        for _ in range(operations):
            for event in self.run.events():
                assert event.body is not None

    def fold(self, operations: int) -> None:
        """The state as a fold over all events of the run, decoded at the end."""
        for _ in range(operations):
            assert self.run.fold()

    def head(self) -> int:
        """The run's newest seq."""
        return self.run.info().head_seq

    def size(self) -> int:
        """Bytes on disk: the SQLite file with its WAL written back; the tables with their indexes on PostgreSQL."""
        self.store.flush()
        if self.backend == SQLITE:
            path = self.url.removeprefix("sqlite:///")
            with sqlite3.connect(path, isolation_level=None) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return Path(path).stat().st_size
        query = " + ".join(f"pg_total_relation_size('{table}')" for table in POSTGRES_TABLES)
        with psycopg.connect(self.url) as connection:
            found = connection.execute(f"SELECT {query}".encode()).fetchone()
        assert found is not None
        return int(found[0])

    def close(self) -> None:
        """Closes the store."""
        self.store.close()


def new_store_url(lab: Lab, backend: str) -> str:
    """The URL of an empty, migrated place for a store."""
    if backend == SQLITE:
        return f"sqlite:///{lab.fresh_file('refold')}"
    url = lab.fresh_database("refold")
    migrate_postgres(url)
    return url


@contextmanager
def subjects(lab: Lab, backend: str, *, keys: int = 10) -> Iterator[tuple[Refold, Floor]]:
    """refold and the floor of one backend, both fresh, closed at the end."""
    ours = Refold(lab, backend, keys=keys)
    floor = new_floor(lab, backend, keys=keys)
    try:
        yield ours, floor
    finally:
        ours.close()
        floor.close()


def new_floor(lab: Lab, backend: str, *, keys: int = 10) -> Floor:
    """An empty floor."""
    names = key_names(keys)
    if backend == SQLITE:
        return SqliteFloor(lab.fresh_file("floor"), names)
    return PostgresFloor(lab.fresh_database("floor"), names)


def filled(lab: Lab, backend: str, events: int) -> Refold:
    """A store whose run holds at least so many events, made once in a benchmark run, by transactions of FILL_KEYS."""
    name = f"filled_{events}"
    if backend == SQLITE:
        path = lab.folder / name / "bench.db"
        fresh = not path.exists()
        path.parent.mkdir(exist_ok=True)
        url = f"sqlite:///{path}"
    else:
        url, fresh = lab.database(name)
        if fresh:
            migrate_postgres(url)
    ours = Refold(lab, backend, keys=FILL_KEYS, url=url)
    if fresh:
        ours.transaction(-(-events // FILL_KEYS))
        settle(ours)
    return ours


def filled_floor(lab: Lab, backend: str, events: int) -> Floor:
    """A floor whose log holds so many rows."""
    floor = new_floor(lab, backend, keys=FILL_KEYS)
    floor.fill(events)
    return floor


def settle(ours: Refold) -> None:
    """Leaves a filled store as one that has rested: WAL written back, statistics and visibility known."""
    ours.size()
    if ours.backend != SQLITE:
        with psycopg.connect(ours.url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")

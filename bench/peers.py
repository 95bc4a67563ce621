"""The peers: eventsourcing and LangGraph's checkpointers, used as their documentation shows, with full durability.

They are loaded by name, only when a run asks for them, for they belong to an extra (`bench`). Same values as ours.
LangGraph keeps a state of several channels in a checkpoint, so a put writes one changed channel of them;
eventsourcing keeps an aggregate whose events are writes of one key.
"""

from __future__ import annotations

import importlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import psycopg.conninfo
import psycopg.rows

from bench.values import DOCUMENTS

THREAD = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
CACHED_AGGREGATES = 8


class LangGraph:
    """A LangGraph checkpointer that holds one thread."""

    name = "LangGraph"

    def __init__(self, saver: Any, channels: int) -> None:
        base = importlib.import_module("langgraph.checkpoint.base")
        self.saver, self.channels = saver, [f"fact_{number:04d}" for number in range(channels)]
        saver.setup()
        self._empty, self._id = base.empty_checkpoint, importlib.import_module("langgraph.checkpoint.base.id").uuid6
        self.values = {name: DOCUMENTS[at % len(DOCUMENTS)] for at, name in enumerate(self.channels)}
        self.versions = {name: saver.get_next_version(None, None) for name in self.channels}
        self._numbers = itertools.count()
        self.ids: list[str] = []
        self._save(dict(self.versions))

    def _save(self, changed: dict[str, Any]) -> None:
        checkpoint = self._empty()
        checkpoint["id"] = str(self._id(clock_seq=-2))
        checkpoint["channel_values"], checkpoint["channel_versions"] = self.values, self.versions
        config = dict(THREAD)
        if self.ids:
            config = {"configurable": {**THREAD["configurable"], "checkpoint_id": self.ids[-1]}}
        self.saver.put(config, checkpoint, {"source": "loop", "step": len(self.ids), "parents": {}}, changed)
        self.ids.append(checkpoint["id"])

    def write(self, operations: int) -> None:
        """One changed channel, one put."""
        for number in itertools.islice(self._numbers, operations):
            name = self.channels[number % len(self.channels)]
            self.values = {**self.values, name: DOCUMENTS[number % len(DOCUMENTS)]}
            self.versions = {**self.versions, name: self.saver.get_next_version(self.versions[name], None)}
            self._save({name: self.versions[name]})

    def read(self, operations: int) -> None:
        """One value of the newest state: the whole checkpoint is fetched."""
        for number in range(operations):
            found = self.saver.get_tuple(THREAD)
            assert found.checkpoint["channel_values"][self.channels[number % len(self.channels)]]

    def read_at(self, operations: int) -> None:
        """The state of an older checkpoint by its id."""
        for number in range(operations):
            which = self.ids[(number * 7919) % len(self.ids)]
            found = self.saver.get_tuple({"configurable": {**THREAD["configurable"], "checkpoint_id": which}})
            assert found.checkpoint["channel_values"]

    def replay(self, operations: int) -> None:
        """All checkpoints of the thread, decoded."""
        for _ in range(operations):
            for found in self.saver.list(THREAD):
                assert found.checkpoint

    def close(self) -> None:
        """Closes the connection."""
        self.saver.conn.close()


class LangGraphSqlite(LangGraph):
    """The SQLite checkpointer, WAL and synchronous=FULL."""

    def __init__(self, path: Path, channels: int) -> None:
        self.path = path
        connection = sqlite3.connect(path, check_same_thread=False)
        connection.execute("PRAGMA synchronous=FULL")
        super().__init__(importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver(connection), channels)

    def size(self) -> int:
        """Bytes of the file."""
        self.saver.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size


class LangGraphPostgres(LangGraph):
    """The PostgreSQL checkpointer, connected as its `from_conn_string` does."""

    def __init__(self, url: str, channels: int) -> None:
        connection = psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=psycopg.rows.dict_row)
        super().__init__(importlib.import_module("langgraph.checkpoint.postgres").PostgresSaver(connection), channels)

    def size(self) -> int:
        """Bytes of its tables with indexes."""
        names = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
        query = " + ".join(f"pg_total_relation_size('{name}')" for name in names)
        return int(self.saver.conn.execute(f"SELECT {query} AS size").fetchone()["size"])


def facts_class() -> Any:
    """An aggregate of keyed facts, declared when eventsourcing is loaded."""
    domain = importlib.import_module("eventsourcing.domain")

    def __init__(self: Any) -> None:  # eventsourcing derives the created event from it
        self.facts = {}

    def write(self: Any, key: str, value: dict[str, object]) -> None:
        self.facts[key] = value

    body = {"__init__": __init__, "write": domain.event("Written")(write), "__module__": __name__}
    body["__qualname__"] = "Facts"
    return type(domain.Aggregate)("Facts", (domain.Aggregate,), body)


class EventSourcing:
    """An eventsourcing application with one aggregate."""

    name = "eventsourcing"

    def __init__(self, env: dict[str, str], keys: list[str]) -> None:
        application = importlib.import_module("eventsourcing.application").Application
        cached = {"AGGREGATE_CACHE_MAXSIZE": str(CACHED_AGGREGATES)}
        facts = FACTS_CLASS[0] if FACTS_CLASS else facts_class()
        FACTS_CLASS[:] = [facts]
        globals()["Facts"] = facts  # events are stored with the path of their class
        self.app = application(env={**env, **cached})
        self.keys, self.aggregate = keys, facts()
        self._numbers = itertools.count()
        self.app.save(self.aggregate)

    def write(self, operations: int) -> None:
        """One event, one save."""
        for number in itertools.islice(self._numbers, operations):
            self.aggregate.write(self.keys[number % len(self.keys)], DOCUMENTS[number % len(DOCUMENTS)])
            self.app.save(self.aggregate)

    def transaction(self, operations: int) -> None:
        """As many events as there are keys, one save."""
        for _ in range(operations):
            for number, key in enumerate(self.keys):
                self.aggregate.write(key, DOCUMENTS[number % len(DOCUMENTS)])
            self.app.save(self.aggregate)

    def read(self, operations: int) -> None:
        """One value of the newest state, the aggregate cached."""
        for number in range(operations):
            found = self.app.repository.get(self.aggregate.id)
            assert found.facts[self.keys[number % len(self.keys)]]

    def read_at(self, operations: int) -> None:
        """The aggregate as it was at half its life."""
        for _ in range(operations):
            assert self.app.repository.get(self.aggregate.id, version=max(1, self.aggregate.version // 2))

    def replay(self, operations: int) -> None:
        """All events of the aggregate, decoded."""
        for _ in range(operations):
            for event in self._events():
                assert event

    def _events(self) -> Iterator[Any]:
        yield from self.app.events.get(self.aggregate.id)

    def close(self) -> None:
        """Closes the application."""
        self.app.close()


FACTS_CLASS: list[Any] = []


class EventSourcingSqlite(EventSourcing):
    """On SQLite; its connections use WAL, synchronous stays at the driver's FULL."""

    def __init__(self, path: Path, keys: list[str]) -> None:
        self.path = path
        env = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path), "SQLITE_LOCK_TIMEOUT": "30"}
        super().__init__(env, keys)

    def size(self) -> int:
        """Bytes of the file."""
        with sqlite3.connect(self.path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self.path.stat().st_size


class EventSourcingPostgres(EventSourcing):
    """On PostgreSQL, with its own pool."""

    def __init__(self, url: str, keys: list[str]) -> None:
        self.url = url
        parts = psycopg.conninfo.conninfo_to_dict(url)
        env = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": str(parts["dbname"]),
            "POSTGRES_HOST": str(parts["host"]),
            "POSTGRES_PORT": str(parts.get("port", 5432)),
            "POSTGRES_USER": str(parts["user"]),
            "POSTGRES_PASSWORD": str(parts.get("password") or "none"),
        }
        super().__init__(env, keys)

    def size(self) -> int:
        """Bytes of its tables with indexes."""
        query = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE '%events%'"
        with psycopg.connect(self.url) as connection:
            found = connection.execute(query).fetchone()
        assert found is not None
        return int(found[0])

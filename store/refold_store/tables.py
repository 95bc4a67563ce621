"""The tables of a store, for both databases: the single truth for columns, types and indexes.

Rules: migrations build exactly these tables (a test compares the catalogs); hot SQL elsewhere is constant text that a
test checks against them; triggers and views are not described here, they stand in the migrations.

The two databases differ where it pays: SQLite keys an event by one integer, `pos = run << 32 | seq`, and computes
`run` and `seq` from it; PostgreSQL keys it by (run, seq). Columns stand in the order of their alignment (8, 4, 2 bytes,
then the texts), and `body` last, so that PostgreSQL pads nothing and SQLite reads no overflow page for a header.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from sqlalchemy import (
    BigInteger,
    Column,
    Computed,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeEngine

Backend = Literal["sqlite", "postgresql"]

SEQ_BITS: Final = 32

WRITES: Final = "kind <= 2"
KEYED_READS: Final = "kind = 3 AND key IS NOT NULL"
OTHERS: Final = "kind > 3 OR key IS NULL"
FIRST_WRITES: Final = "version = 1 AND kind <= 2"
REQUESTS: Final = "request_id IS NOT NULL"
FORKS: Final = "parent IS NOT NULL"


def metadata(backend: Backend) -> MetaData:
    """The tables as one database spells them."""
    found = MetaData()
    _names(found, backend)
    _runs(found, backend)
    _schemas(found, backend)
    _keyframes(found, backend)
    _events(found, backend)
    return found


def _text(backend: Backend) -> TypeEngine[str]:
    """Text compared by bytes: SQLite's default, collation C on PostgreSQL."""
    return Text(collation="C") if backend == "postgresql" else Text()


def _names(found: MetaData, backend: Backend) -> None:
    identity = [Identity(always=False)] if backend == "postgresql" else []
    Table(
        "names",
        found,
        Column("id", Integer, *identity, primary_key=True),
        Column("name", _text(backend), nullable=False),
        UniqueConstraint("name", name="names_name"),
    )


def _runs(found: MetaData, backend: Backend) -> None:
    table = Table(
        "runs",
        found,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("tenant", _text(backend), nullable=False),
        Column("name", _text(backend), nullable=False),
        Column("scope", SmallInteger, nullable=False, server_default=text("0")),
        Column("opened_at", BigInteger, nullable=False),
        Column("parent", Integer),
        Column("parent_seq", BigInteger),
        UniqueConstraint("tenant", "scope", "name", name="runs_name"),
    )
    _index(table, "runs_parent", ["parent"], FORKS)


def _schemas(found: MetaData, backend: Backend) -> None:
    Table(
        "schemas",
        found,
        Column("fingerprint", _text(backend), primary_key=True, nullable=False),
        Column("declaration", LargeBinary, nullable=False),
    )


def _keyframes(found: MetaData, backend: Backend) -> None:
    Table(
        "keyframes",
        found,
        Column("run", Integer, nullable=False),
        Column("key", Integer, nullable=False),
        Column("seq", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("body", LargeBinary, nullable=False),
        PrimaryKeyConstraint("run", "key", "seq", name="keyframes_pkey"),
        sqlite_with_rowid=False,
    )


def _events(found: MetaData, backend: Backend) -> None:
    own: list[Column[Any]] = [
        Column("txn", BigInteger),
        Column("turn", BigInteger),
        Column("version", BigInteger),
        Column("seen_seq", BigInteger),
        Column("recorded_at", BigInteger, nullable=False),
        Column("clock", BigInteger),
        Column("actor", Integer),
        Column("owner", Integer),
        Column("key", Integer),
        Column("kind", SmallInteger, nullable=False),
        Column("trace_flags", SmallInteger),
        Column("digest", LargeBinary, nullable=False),
        Column("salt", LargeBinary),
        Column("commitment", LargeBinary),
        Column("trace_id", LargeBinary),
        Column("span_id", LargeBinary),
        Column("request_id", _text(backend)),
        Column("refs", _text(backend)),
        Column("body", LargeBinary),
    ]
    place = _postgres_place(own) if backend == "postgresql" else _sqlite_place(own)
    table = Table("events", found, *place)
    _event_indexes(table, backend)


def _postgres_place(own: list[Column[Any]]) -> list[Any]:
    """Columns with (run, seq) as the key; `run` stands with the other 4-byte columns."""
    first_small = next(at for at, column in enumerate(own) if column.name == "actor")
    return [
        Column("seq", BigInteger, nullable=False),
        *own[:first_small],
        Column("run", Integer, nullable=False),
        *own[first_small:],
        PrimaryKeyConstraint("run", "seq", name="events_pkey"),
    ]


def _sqlite_place(own: list[Column[Any]]) -> list[Any]:
    """Columns with `pos` as the rowid, and `run` and `seq` computed from it."""
    return [
        Column("pos", Integer, primary_key=True),
        *own,
        Column("run", Integer, Computed(f"pos >> {SEQ_BITS}", persisted=False)),
        Column("seq", Integer, Computed(f"pos & {(1 << SEQ_BITS) - 1}", persisted=False)),
    ]


def _event_indexes(table: Table, backend: Backend) -> None:
    if backend == "postgresql":
        _index(table, "events_state", ["run", "key", "seq"], WRITES, include=["version"])
        _index(table, "events_reads", ["run", "key", "version", "seq"], KEYED_READS)
        _index(table, "events_other", ["run", "kind", "seq"], OTHERS)
        _index(table, "events_first", ["run", "key"], FIRST_WRITES)
        _index(table, "events_request", ["run", "request_id"], REQUESTS, unique=True)
    else:
        _index(table, "events_state", ["key", "pos", "version"], WRITES)
        _index(table, "events_reads", ["key", "version", "pos"], KEYED_READS)
        _index(table, "events_other", ["kind", "pos"], OTHERS)
        _index(table, "events_first", ["pos", "key"], FIRST_WRITES)
        _index(table, "events_request", ["request_id", "run"], REQUESTS, unique=True)


def _index(
    table: Table, name: str, columns: list[str], where: str, *, include: list[str] | None = None, unique: bool = False
) -> None:
    Index(
        name,
        *(table.c[column] for column in columns),
        unique=unique,
        sqlite_where=text(where),
        postgresql_where=text(where),
        postgresql_include=include or [],
    )

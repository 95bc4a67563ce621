"""What the databases themselves do, below any code of refold: refuse changes, grant roles, show views."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from refold_store.errors import ConfigError, StoreOlder
from refold_store.migrate import ensure_sqlite, postgres_roles

KEPT = ("events", "runs", "names", "schemas")
ROLES = {"writer": "t_writer", "reader": "t reader", "keeper": 't"keeper'}
CHANGES = {
    "events": "body = NULL",
    "runs": "opened_at = 2",
    "names": "name = 'x'",
    "schemas": "fingerprint = 'x'",
}


@dataclass(frozen=True)
class Raw:
    """A connection in autocommit, and SQL literals as its database spells them."""

    backend: str
    connection: Any

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute one statement and give its rows."""
        cursor = self.connection.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []

    def literal(self, value: object) -> str:
        """A value as SQL text."""
        match value:
            case None:
                return "NULL"
            case int():
                return str(value)
            case bytes():
                return f"X'{value.hex()}'" if self.backend == "sqlite" else f"'\\x{value.hex()}'::bytea"
            case _:
                return "'" + str(value).replace("'", "''") + "'"

    def insert(self, table: str, *, verb: str = "INSERT", suffix: str = "", **columns: object) -> None:
        """Insert one row."""
        values = ", ".join(self.literal(value) for value in columns.values())
        self.run(f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({values}) {suffix}")

    def event(self, run: int, seq: int, *, verb: str = "INSERT", suffix: str = "", **columns: object) -> None:
        """Insert an event: a write of key 1 by actor 2 unless told otherwise."""
        place = {"pos": run << 32 | seq} if self.backend == "sqlite" else {"run": run, "seq": seq}
        basic = {
            "kind": 1,
            "actor": 2,
            "owner": 2,
            "key": 1,
            "recorded_at": 1_764_554_400_000_000 + seq,
            "digest": b"d",
        }
        self.insert("events", verb=verb, suffix=suffix, **place, **(basic | columns))

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything that must never change."""
        return {table: sorted(self.run(f"SELECT * FROM {table}"), key=repr) for table in KEPT}


def fill(raw: Raw) -> None:
    """One run with one write, and the rows it needs."""
    raw.insert("names", name="routing")
    raw.insert("names", name="triage")
    raw.insert("runs", id=1, tenant="acme", name="clm-1", scope=0, opened_at=1)
    raw.insert("schemas", fingerprint="f", declaration=b"{}")
    raw.event(1, 1, version=1, request_id="a1", salt=b"s", body=b'{"value":1}')


@contextmanager
def raw_sqlite(path: Path) -> Iterator[Raw]:
    """A new SQLite store."""
    connection = ensure_sqlite(lambda: sqlite3.connect(path, isolation_level=None))
    try:
        yield Raw("sqlite", connection)
    finally:
        connection.close()


@contextmanager
def raw_postgres(url: str, **options: Any) -> Iterator[Raw]:
    """A migrated PostgreSQL database."""
    with psycopg.connect(url, autocommit=True, **options) as connection:
        yield Raw("postgresql", connection)


@pytest.fixture
def sqlite_raw(tmp_path: Path) -> Iterator[Raw]:
    """A filled SQLite store."""
    with raw_sqlite(tmp_path / "refold.db") as raw:
        fill(raw)
        yield raw


@pytest.fixture
def postgres_raw(pg_url: str) -> Iterator[Raw]:
    """A filled PostgreSQL store, as the owner of its tables, a superuser."""
    with raw_postgres(pg_url) as raw:
        fill(raw)
        yield raw


@pytest.fixture(params=["sqlite_raw", "postgres_raw"])
def raw(request: pytest.FixtureRequest) -> Raw:
    """A filled store on each backend."""
    found: Raw = request.getfixturevalue(request.param)
    return found


def refused(raw: Raw, sql: str, match: str = "are immutable") -> None:
    """Demand that a statement is refused and that nothing changed."""
    before = raw.dump()
    with pytest.raises((sqlite3.IntegrityError, psycopg.Error), match=match) as caught:
        raw.run(sql)
    if isinstance(caught.value, psycopg.Error):
        assert caught.value.sqlstate in ("RF001", "23505")
    assert raw.dump() == before


@pytest.mark.parametrize("table", KEPT)
def test_update_is_refused(raw: Raw, table: str) -> None:
    """UPDATE is refused on every table of the log."""
    refused(raw, f"UPDATE {table} SET {CHANGES[table]}")


@pytest.mark.parametrize("table", KEPT)
def test_delete_is_refused(raw: Raw, table: str) -> None:
    """DELETE is refused on every table of the log."""
    refused(raw, f"DELETE FROM {table}")


@pytest.mark.parametrize("suffix", ["", "ON CONFLICT ({key}) DO UPDATE SET body = NULL"])
def test_second_event_is_refused(raw: Raw, suffix: str) -> None:
    """A second insert of a (run, seq) is refused, as an upsert too."""
    suffix = suffix.format(key="pos" if raw.backend == "sqlite" else "run, seq")
    before = raw.dump()
    with pytest.raises((sqlite3.IntegrityError, psycopg.Error), match=r"event exists|events_pkey|immutable"):
        raw.event(1, 1, version=9, suffix=suffix)
    assert raw.dump() == before


@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL"])
@pytest.mark.parametrize(("seq", "request_id"), [(1, None), (1, "a1"), (2, "a1")])
def test_sqlite_replace_is_refused(sqlite_raw: Raw, verb: str, seq: int, request_id: str | None) -> None:
    """No conflict clause gets past an event, whether it meets its place or its request_id."""
    before = sqlite_raw.dump()
    with pytest.raises(sqlite3.IntegrityError, match=r"refold: (event|request) exists") as caught:
        sqlite_raw.event(1, seq, verb=verb, request_id=request_id)
    assert caught.value.sqlite_errorname == "SQLITE_CONSTRAINT_TRIGGER"
    assert sqlite_raw.dump() == before


@pytest.mark.parametrize(
    "row",
    [
        "names (id, name) VALUES (1, 'other')",
        "names (name) VALUES ('routing')",
        "names (id, name) VALUES (9, 'routing')",
        "runs (id, tenant, name, opened_at) VALUES (1, 'x', 'y', 1)",
        "runs (id, tenant, name, opened_at) VALUES (9, 'acme', 'clm-1', 1)",
        "schemas (fingerprint, declaration) VALUES ('f', X'00')",
    ],
)
def test_sqlite_replace_of_a_name_is_refused(sqlite_raw: Raw, row: str) -> None:
    """INSERT OR REPLACE cannot renumber or rename what events point to."""
    refused(sqlite_raw, f"INSERT OR REPLACE INTO {row}", match=r"refold: (name|run|schema) exists")


def test_sqlite_update_or_replace_is_refused(sqlite_raw: Raw) -> None:
    """UPDATE OR REPLACE is an update like any other."""
    sqlite_raw.event(1, 2, version=2)
    refused(sqlite_raw, "UPDATE OR REPLACE events SET pos = pos - 1 WHERE seq = 2")


def test_same_row_in_another_place_is_fine(raw: Raw) -> None:
    """A request_id binds in its own run only, and a scope's run may carry a user's run name."""
    raw.insert("runs", id=2, tenant="acme", name="clm-1", scope=1, opened_at=1)
    raw.event(2, 1, version=1, request_id="a1")
    raw.event(1, 2, version=2, request_id="a2")
    assert len(raw.run("SELECT * FROM events")) == 3


def test_keyframes_are_disposable(raw: Raw) -> None:
    """Keyframes stand outside the log: they may be replaced and deleted."""
    raw.insert("keyframes", run=1, key=1, seq=1, version=1, body=b"1")
    raw.run("UPDATE keyframes SET version = 2")
    raw.run("DELETE FROM keyframes")
    assert raw.run("SELECT * FROM keyframes") == []


@pytest.mark.parametrize("table", KEPT)
def test_truncate_is_refused(postgres_raw: Raw, table: str) -> None:
    """TRUNCATE is refused, even to the owner."""
    refused(postgres_raw, f"TRUNCATE {table} CASCADE")


@pytest.mark.parametrize("sql", ["UPDATE events SET body = NULL", "DELETE FROM runs", "TRUNCATE events"])
def test_replica_mode_does_not_help(postgres_raw: Raw, sql: str) -> None:
    """session_replication_role, which silences ordinary triggers, does not silence these."""
    postgres_raw.run("SET session_replication_role = replica")
    refused(postgres_raw, sql)


@pytest.fixture
def roles(postgres_raw: Raw, pg_url: str) -> Iterator[None]:
    """The three roles with their rights on the store; roles belong to the server, so they go after the test."""
    for role in ROLES.values():
        postgres_raw.run(f'CREATE ROLE "{role.replace(chr(34), chr(34) * 2)}"')
    postgres_roles(pg_url, **ROLES)
    postgres_roles(pg_url, **ROLES)  # twice is as good as once
    yield
    postgres_raw.run("RESET ROLE")
    for role in ROLES.values():
        quoted = f'"{role.replace(chr(34), chr(34) * 2)}"'
        postgres_raw.run(f"DROP OWNED BY {quoted}")
        postgres_raw.run(f"DROP ROLE {quoted}")


def become(raw: Raw, kind: str) -> None:
    """Go on with the rights of a role."""
    raw.run("SET ROLE " + '"' + ROLES[kind].replace('"', '""') + '"')


OTHERS_WORK = [
    "DROP TABLE events",
    "DROP TRIGGER events_immutable ON events",
    "ALTER TABLE events DISABLE TRIGGER ALL",
    "CREATE OR REPLACE FUNCTION refold_immutable() RETURNS trigger LANGUAGE sql AS 'SELECT NULL'",
    "TRUNCATE events",
    "UPDATE refold_version SET version_num = 'x'",
    "UPDATE events SET kind = 2",
    "DELETE FROM names",
    "SET session_replication_role = replica",
]


@pytest.mark.usefixtures("roles")
@pytest.mark.parametrize("kind", ROLES)
def test_no_role_may_change_the_log(postgres_raw: Raw, kind: str) -> None:
    """No role may change events, drop tables, or touch the triggers."""
    become(postgres_raw, kind)
    before = postgres_raw.dump()
    for sql in OTHERS_WORK:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            postgres_raw.run(sql)
    assert postgres_raw.dump() == before


@pytest.mark.usefixtures("roles")
def test_writer_appends_and_reads(postgres_raw: Raw) -> None:
    """The writer role can do all that writing needs: names, runs, schemas, events, keyframes, views, the revision."""
    become(postgres_raw, "writer")
    postgres_raw.insert("names", name="new", suffix="ON CONFLICT (name) DO NOTHING")
    postgres_raw.insert("runs", id=2, tenant="acme", name="clm-2", opened_at=1)
    postgres_raw.insert("schemas", fingerprint="g", declaration=b"{}", suffix="ON CONFLICT DO NOTHING")
    postgres_raw.event(2, 1, version=1)
    postgres_raw.insert("keyframes", run=1, key=1, seq=1, version=1, body=b"1")
    assert len(postgres_raw.run("SELECT * FROM current_state")) == 2
    assert postgres_raw.run("SELECT version_num FROM refold_version")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        postgres_raw.run("UPDATE events SET body = NULL")


@pytest.mark.usefixtures("roles")
def test_reader_only_reads(postgres_raw: Raw) -> None:
    """The reader role sees tables and views and inserts nothing."""
    become(postgres_raw, "reader")
    assert len(postgres_raw.run("SELECT * FROM state_events")) == 1
    for table in (*KEPT, "keyframes"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            postgres_raw.run(f"INSERT INTO {table} DEFAULT VALUES")


@pytest.mark.usefixtures("roles")
def test_keeper_meets_the_triggers(postgres_raw: Raw) -> None:
    """The keeper role has the rights that erasing and pruning need; without an authorising event triggers refuse."""
    become(postgres_raw, "keeper")
    refused(postgres_raw, "UPDATE events SET body = NULL, salt = NULL, commitment = 'x'")
    refused(postgres_raw, "DELETE FROM events")


def test_roles_need_a_role_and_a_store(pg_url: str, empty_pg_url: str) -> None:
    """A role that does not exist, and a database without a store, are named."""
    with pytest.raises(ConfigError, match='CREATE ROLE "nobody_here"'):
        postgres_roles(pg_url, writer="nobody_here")
    with pytest.raises(StoreOlder, match="refold migrate"):
        postgres_roles(empty_pg_url, writer="postgres")


STATE_BODIES = [
    (b'{"basis":"why","value":true}', "true"),
    (b'{"value":1e+22}', "1e+22"),
    (b'{"value":123456789012345678901234567890}', "123456789012345678901234567890"),
    (b'{"value":"a"}', '"a"'),
    (b'{"value":null}', "null"),
    (b'{"value":{"b":[1,{"value":2}]}}', '{"b":[1,{"value":2}]}'),
]


@pytest.mark.parametrize(("body", "value"), STATE_BODIES)
def test_state_views_show_a_value_as_json(raw: Raw, body: bytes, value: str) -> None:
    """current_state and state_events show the newest value as JSON, with who, why and the exact text."""
    raw.event(1, 2, version=2, body=body)
    shown = "value" if raw.backend == "sqlite" else "value = " + raw.literal(value) + "::jsonb"
    for view in ("current_state", "state_events WHERE version = 2"):
        rows = raw.run(f"SELECT tenant, run, seq, key, version, writer, owner, body, {shown} FROM {view}")
        right = value if raw.backend == "sqlite" else True
        assert rows == [("acme", "clm-1", 2, "routing", 2, "triage", "triage", body.decode(), right)]
    assert raw.run("SELECT basis FROM current_state") == [("why" if b"why" in body else None,)]


@pytest.mark.parametrize("body", [b'{"value":"\\u0000"}', b'{"value":' + b"[" * 20_000 + b"]" * 20_000 + b"}", None])
def test_a_body_that_does_not_cast_hides_no_row(raw: Raw, body: bytes | None) -> None:
    """A text that JSON functions cannot hold, or an erased one, leaves the row in the view and its exact text."""
    raw.event(1, 2, version=2, body=body)
    rows = raw.run("SELECT seq, body FROM current_state")
    assert rows == [(2, None if body is None else body.decode())]
    if raw.backend == "postgresql" or body is None:
        assert raw.run("SELECT value FROM current_state") == [(None,)]


def test_deleted_keys_leave_the_current_state(raw: Raw) -> None:
    """A deleted key is in the history and not in the current state; a time shows its microseconds."""
    raw.event(1, 2, kind=2, version=2, body=b"{}")
    assert raw.run("SELECT * FROM current_state") == []
    rows = raw.run("SELECT version, deleted, recorded_at FROM state_events ORDER BY seq")
    assert [(version, bool(deleted)) for version, deleted, _ in rows] == [(1, False), (2, True)]
    when = rows[1][2]
    when = datetime.fromisoformat(when) if raw.backend == "sqlite" else when
    assert when == datetime(2025, 12, 1, 2, 0, 0, 2, tzinfo=UTC)


def test_reads_view_tells_stale_from_fresh(raw: Raw) -> None:
    """A read is stale if its run had a newer version at seen_seq; a read of many keys is one line a key."""
    raw.insert("names", name="reserve")
    raw.event(1, 2, version=2)
    raw.event(1, 3, kind=3, version=1, seen_seq=1, owner=None)
    raw.event(1, 4, kind=3, version=1, seen_seq=3, owner=None)
    raw.event(1, 5, kind=3, key=None, seen_seq=4, owner=None, refs='{"keys":[["reserve",0],["routing",2]]}')
    rows = raw.run("SELECT seq, reader, key, version, newest_version, stale FROM reads ORDER BY seq, key")
    assert [(*row[:-1], bool(row[-1])) for row in rows] == [
        (3, "triage", "routing", 1, 1, False),
        (4, "triage", "routing", 1, 2, True),
        (5, "triage", "reserve", 0, 0, False),
        (5, "triage", "routing", 2, 2, False),
    ]


def test_refusals_view_names_the_reason(raw: Raw) -> None:
    """refusals shows who tried what, and why it was not accepted."""
    raw.event(1, 2, kind=4, owner=None, body=b'{"message":"no","path":"$.a","reason":"owner","update":7}')
    rows = raw.run("SELECT tenant, run, seq, key, writer, reason, message, path, update_value FROM refusals")
    assert [(*row[:-1], str(row[-1])) for row in rows] == [
        ("acme", "clm-1", 2, "routing", "triage", "owner", "no", "$.a", "7")
    ]


def test_views_seek(sqlite_raw: Raw) -> None:
    """The current state of one run is found by seeks, however long the log is."""
    plan = sqlite_raw.run("EXPLAIN QUERY PLAN SELECT * FROM current_state WHERE tenant = 'acme' AND run = 'clm-1'")
    assert [detail for *_, detail in plan if detail.startswith("SCAN")] == []

"""Migrations: they add up to the tables, run once however many processes come, and say clearly what does not fit."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from refold_store import migrate, tables
from refold_store.errors import ConfigError, SchemaMismatch, StoreNewer, StoreOlder, StoreUnavailable
from refold_store.migrate import (
    check_postgres,
    check_sqlite,
    ensure_sqlite,
    migrate_postgres,
    postgres_revision,
    sqlite_revision,
)
from refold_store.migrations.scripts import NoWayBack
from refold_store.revision import HEAD_REVISION, REVISIONS
from refold_store.store import open_store

PACKAGE = Path(migrate.__file__).parent
OPEN_SQLITE = """
import sqlite3, sys
from refold_store.migrate import ensure_sqlite
for path in sys.argv[1:]:
    connection = ensure_sqlite(lambda: sqlite3.connect(path, isolation_level=None, timeout=0))
    print(*connection.execute("SELECT count(*), min(version_num) FROM refold_version").fetchone())
    connection.close()
"""
AT_THE_SIGN = """
import sys, alembic.command, sqlalchemy
print("ready", flush=True)
sys.stdin.readline()
"""
MIGRATE_POSTGRES = """
import sys
from refold_store.migrate import migrate_postgres
print(*migrate_postgres(*sys.argv[1:]))
"""


def connect(path: Path | str) -> sqlite3.Connection:
    """A raw connection, as the SQLite backend makes it."""
    return sqlite3.connect(path, isolation_level=None, timeout=0)


def start(code: str, *args: object, source: Path = PACKAGE.parent) -> subprocess.Popen[str]:
    """A process of its own that runs some code with the store package found under `source`."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env={"PYTHONPATH": str(source)}, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )


def outcome(process: subprocess.Popen[str]) -> str:
    """What a process printed; it must have ended well."""
    printed = process.communicate(timeout=100)[0].strip()
    assert process.returncode == 0, printed
    return printed


# --- the tables ------------------------------------------------------------------------------


def sqlite_catalog(connection: sqlite3.Connection) -> dict[str, Any]:
    """Tables, columns and indexes of a SQLite file as SQLite sees them."""
    found: dict[str, Any] = {}
    listed = connection.execute("SELECT name, wr FROM pragma_table_list WHERE type = 'table' AND schema = 'main'")
    for table, without_rowid in listed.fetchall():
        if table == "refold_version" or table.startswith("sqlite_"):
            continue
        columns = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (table,)).fetchall()
        indexes = connection.execute('SELECT name, "unique", origin, partial FROM pragma_index_list(?)', (table,))
        found[table] = (without_rowid, columns, sorted(sqlite_index(connection, index) for index in indexes.fetchall()))
    return found


def sqlite_index(connection: sqlite3.Connection, index: tuple[Any, ...]) -> tuple[Any, ...]:
    """An index with its columns and its condition."""
    columns = connection.execute('SELECT cid, "desc", coll, key FROM pragma_index_xinfo(?)', index[:1]).fetchall()
    texts = connection.execute("SELECT sql FROM sqlite_master WHERE name = ? AND sql IS NOT NULL", index[:1]).fetchall()
    return (*index, columns, [sql.partition(" WHERE ")[2] for (sql,) in texts])


def postgres_catalog(connection: psycopg.Connection[Any]) -> list[Any]:
    """Columns, constraints and indexes of a database as PostgreSQL sees them."""
    return [
        connection.execute(query).fetchall()
        for query in (
            "SELECT c.table_name, ordinal_position, column_name, data_type, is_nullable, column_default,"
            " collation_name, identity_generation FROM information_schema.columns c"
            " JOIN information_schema.tables t USING (table_schema, table_name)"
            " WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND table_name <> 'refold_version'"
            " ORDER BY 1, 2",
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE connamespace = 'public'::regnamespace AND conrelid <> 'refold_version'::regclass ORDER BY 1, 2",
            "SELECT tablename, indexname, indexdef FROM pg_indexes"
            " WHERE schemaname = 'public' AND tablename <> 'refold_version' ORDER BY 1, 2",
        )
    ]


def test_sqlite_migrations_add_up_to_the_tables(tmp_path: Path) -> None:
    """A migrated SQLite file has exactly the columns, keys and indexes that tables.py describes."""
    migrated = ensure_sqlite(lambda: connect(tmp_path / "migrated.db"))
    engine = create_engine(f"sqlite:///{tmp_path / 'described.db'}")
    tables.metadata("sqlite").create_all(engine)
    engine.dispose()
    described = connect(tmp_path / "described.db")
    assert sqlite_catalog(migrated) == sqlite_catalog(described)
    assert set(sqlite_catalog(migrated)) == {"names", "runs", "schemas", "keyframes", "events"}
    migrated.close()
    described.close()


def test_postgres_migrations_add_up_to_the_tables(pg_url: str, empty_pg_url: str) -> None:
    """A migrated PostgreSQL database has exactly the columns, keys and indexes that tables.py describes."""
    with psycopg.connect(empty_pg_url) as described, psycopg.connect(pg_url) as migrated:
        described.execute("CREATE TABLE refold_version (version_num text)")
        described.commit()
        engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(empty_pg_url))
        tables.metadata("postgresql").create_all(engine)
        engine.dispose()
        assert postgres_catalog(migrated) == postgres_catalog(described)
        assert len(postgres_catalog(migrated)[2]) == 13


def test_both_databases_have_the_same_columns() -> None:
    """The two spellings of the tables differ in nothing but SQLite's `pos`."""
    ours, theirs = (tables.metadata(backend).tables for backend in ("sqlite", "postgresql"))
    assert set(ours) == set(theirs)
    for name, table in ours.items():
        assert {column.name for column in table.c} - {"pos"} == {column.name for column in theirs[name].c}


def test_head_revision_is_alembics_head() -> None:
    """The revisions the code knows are Alembic's history; each declares its phase, none can be undone."""
    from alembic.script import ScriptDirectory

    history = ScriptDirectory.from_config(migrate._config())
    scripts = list(history.walk_revisions())[::-1]
    assert tuple(script.revision for script in scripts) == REVISIONS
    assert history.get_current_head() == HEAD_REVISION
    for script in scripts:
        assert script.module.PHASE in ("pre", "post")
        with pytest.raises(NoWayBack, match="does not go back"):
            script.module.downgrade()


# --- many at once ----------------------------------------------------------------------------


def test_eight_processes_open_new_sqlite_files(tmp_path: Path) -> None:
    """Eight processes that open the same new files at the same time all get current stores, each made once."""
    files = [tmp_path / f"{number}.db" for number in range(20)]
    processes = [start(AT_THE_SIGN + OPEN_SQLITE, *files) for _ in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    expected = "\n".join([f"1 {HEAD_REVISION}"] * len(files))
    assert [outcome(process) for process in processes] == [expected] * len(processes)
    connection = connect(files[0])
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_twenty_processes_migrate_a_new_database(empty_pg_url: str) -> None:
    """Twenty processes that migrate a brand-new database all succeed, and one of them did the work."""
    processes = [start(MIGRATE_POSTGRES, empty_pg_url) for _ in range(20)]
    assert sorted(outcome(process) for process in processes) == [*[""] * 19, " ".join(REVISIONS)]


def test_sqlite_waits_for_another_process_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that stays locked is a clear error after the wait; freed, it opens."""
    holder, late = connect(tmp_path / "new.db"), connect(tmp_path / "new.db")
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(migrate, "WAIT_S", 0.05)
    with pytest.raises(StoreUnavailable, match="locked"):
        ensure_sqlite(lambda: late)
    holder.execute("ROLLBACK")
    ensure_sqlite(lambda: late)
    holder.close()
    late.close()


def test_postgres_waits_for_another_process_and_no_longer(empty_pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that another process never ends is a clear error after the wait."""
    monkeypatch.setattr(migrate, "WAIT_S", 0.05)
    with psycopg.connect(empty_pg_url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", (migrate.LOCK_ID,))
        with pytest.raises(StoreUnavailable, match="another process has been migrating"):
            migrate_postgres(empty_pg_url)


def test_a_failed_migration_leaves_nothing(tmp_path: Path, empty_pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that dies on the way leaves no table behind, and the next one succeeds."""

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    connection = connect(tmp_path / "new.db")
    with monkeypatch.context() as patch:
        patch.setattr("refold_store.migrations.scripts.statements", lambda *_: ["CREATE TABLE half (x int)", "bad"])
        with pytest.raises(StoreUnavailable, match="syntax error"):
            ensure_sqlite(lambda: connection)
        with pytest.raises(psycopg.errors.SyntaxError):
            migrate_postgres(empty_pg_url)
        patch.setattr(migrate, "_upgrade", dies)
        with pytest.raises(KeyboardInterrupt):
            ensure_sqlite(lambda: connection)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    assert migrate.sqlite_revision(ensure_sqlite(lambda: connection)) == HEAD_REVISION
    assert migrate_postgres(empty_pg_url) == list(REVISIONS)
    connection.close()


# --- what does not fit -----------------------------------------------------------------------


def test_unrelated_sqlite_file_is_left_alone(tmp_path: Path) -> None:
    """A SQLite file of something else is refused by name, and keeps every byte."""
    path = tmp_path / "other.db"
    connection = connect(path)
    connection.execute("CREATE TABLE invoices (id)")
    before = path.read_bytes()
    for attempt in (lambda: ensure_sqlite(lambda: connection), lambda: check_sqlite(connection)):
        with pytest.raises(ConfigError, match="invoices") as caught:
            attempt()
        assert caught.value.where == str(path)
    connection.close()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["other.db"]


@pytest.mark.parametrize("text", [b"hi", b"not a database\n" * 400])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, text: bytes) -> None:
    """A file that is no SQLite database is refused by name, and keeps every byte."""
    path = tmp_path / "notes.txt"
    path.write_bytes(text)
    connection = connect(path)
    with pytest.raises(ConfigError, match=r"notes\.txt.*not a SQLite database"):
        ensure_sqlite(lambda: connection)
    connection.close()
    assert path.read_bytes() == text


def test_read_only_opening_creates_nothing(tmp_path: Path) -> None:
    """Checking an empty file says that it holds no store, and writes nothing."""
    path = tmp_path / "empty.db"
    path.touch()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    with pytest.raises(StoreOlder, match="holds no refold tables"):
        check_sqlite(connection)
    connection.close()
    assert path.read_bytes() == b""


def test_other_revisions_are_named(tmp_path: Path, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store newer than the code, or older than it can work on, is refused with both revisions and the remedy."""
    connection = ensure_sqlite(lambda: connect(tmp_path / "refold.db"))
    connection.execute("UPDATE refold_version SET version_num = '9999'")
    for attempt in (
        lambda: ensure_sqlite(lambda: connection),
        lambda: check_sqlite(connection),
        lambda: check_postgres("9999"),
    ):
        with pytest.raises(StoreNewer, match=rf"9999.*{HEAD_REVISION}.*upgrade refold"):
            attempt()
    connection.close()
    with psycopg.connect(pg_url) as postgres:
        check_postgres(postgres_revision(postgres))
        postgres.execute("UPDATE refold_version SET version_num = '9999'")
    with pytest.raises(StoreNewer, match="9999"):
        migrate_postgres(pg_url)
    monkeypatch.setattr(migrate, "REVISIONS", ("0000", *REVISIONS))
    for old in (None, "0000"):
        with pytest.raises(StoreOlder, match="refold migrate") as caught:
            check_postgres(old)
        assert (caught.value.found, caught.value.expected, caught.value.command) == (
            old,
            HEAD_REVISION,
            "refold migrate",
        )


def test_a_database_that_cannot_be_used_is_named(empty_pg_url: str, pg_server: Any) -> None:
    """Foreign tables of the same name, a wrong encoding, no server and an unknown phase are each a clear error."""
    with psycopg.connect(empty_pg_url) as connection:
        connection.execute("CREATE TABLE events (id int)")
    with pytest.raises(ConfigError, match="something else under a name refold needs"):
        migrate_postgres(empty_pg_url)
    with psycopg.connect(pg_server.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
    with pytest.raises(ConfigError, match="LATIN1"):
        migrate_postgres(pg_server.database_url("latin"))
    with pytest.raises(StoreUnavailable, match="check the URL"):
        migrate_postgres("postgresql:///x?host=/nowhere")
    with pytest.raises(ConfigError, match="unknown migration phase"):
        migrate_postgres(empty_pg_url, "later")


def test_a_role_without_rights_is_told(pg_url: str) -> None:
    """A role that may not read the tables gets an error that names it, and what gives it its rights."""
    with psycopg.connect(pg_url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS powerless")
        admin.execute("CREATE ROLE powerless LOGIN")
    mark = "&" if "?" in pg_url else "?"
    with pytest.raises(StoreUnavailable, match=r"'powerless' may not read.*refold migrate --roles"):
        open_store(f"{pg_url}{mark}user=powerless")


def test_a_parameter_that_is_none_is_told(pg_url: str) -> None:
    """A URL's parameter that the driver does not take is an error of the configuration, opening and migrating."""
    url = pg_url + ("&" if "?" in pg_url else "?") + "connect_timeout=abc"
    for call in (open_store, migrate_postgres):
        with pytest.raises(ConfigError, match="parameter of the URL"):
            call(url)


def test_texts_are_utf8_whatever_is_asked_for(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client encoding, in the URL or the environment, changes nothing."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    url = pg_url + ("&" if "?" in pg_url else "?") + "client_encoding=SQL_ASCII"
    schema = {"keys": {"k": {"owner": "a"}}}
    for place in (url, pg_url):
        with open_store(place, schema) as store:
            store.run("r\u00e9\u20ac").write_state("k", "\u20ac", writer="a")
            assert [info.name for info in store.runs()] == ["r\u00e9\u20ac"]


def test_what_can_be_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a pipe and a URL cut short are named, and make no file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for url, says in (
        ("folder", "is a folder"),
        ("sqlite:///pipe", "no regular file"),
        ("sqlite:x.db", "sqlite:///x.db$"),
        ("file:x.db", "sqlite:///x.db$"),
        ("file:///x.db", "sqlite:////x.db$"),
    ):
        with pytest.raises(ConfigError, match=says):
            open_store(url)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


# --- the next release ------------------------------------------------------------------------


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """A copy of the store package, in a folder with an awkward name, with one pre and one post revision more."""
    source = tmp_path / "100% next"
    package = source / "refold_store"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    revision = package / "revision.py"
    revision.write_text(revision.read_text() + 'REVISIONS = (*REVISIONS, "n1", "n2")\nHEAD_REVISION = "n2"\n')
    first = next((package / "migrations" / "versions").glob(f"{HEAD_REVISION}_*.py")).read_text()
    for name, below, phase in (("n1", HEAD_REVISION, "pre"), ("n2", "n1", "post")):
        lines = [line for line in first.splitlines() if not line.startswith(("revision", "down_revision", "PHASE"))]
        lines += [f"revision = {name!r}", f"down_revision = {below!r}", f"PHASE = {phase!r}", ""]
        (package / "migrations" / "versions" / f"{name}.py").write_text("\n".join(lines))
        for database in ("sqlite", "postgresql"):
            (package / "migrations" / "sql" / f"{name}_{database}.sql").write_text(f"CREATE TABLE {name} (x int);\n")
    return source


def test_an_older_sqlite_file_is_upgraded_when_opened(tmp_path: Path, next_release: Path) -> None:
    """The next release upgrades a file when it opens it, by several processes at once; ours then refuses the file."""
    connection = ensure_sqlite(lambda: connect(tmp_path / "refold.db"))
    connection.execute("INSERT INTO names (name) VALUES ('routing')")
    processes = [start(OPEN_SQLITE, tmp_path / "refold.db", source=next_release) for _ in range(3)]
    assert {outcome(process) for process in processes} == {"1 n2"}
    assert connection.execute("SELECT name FROM names").fetchall() == [("routing",)]
    with pytest.raises(StoreNewer, match="n2"):
        ensure_sqlite(lambda: connection)
    connection.close()


def test_postgres_upgrades_in_phases(pg_url: str, next_release: Path) -> None:
    """The pre step comes first, the post step when asked for; a post step never overtakes the pre step before it."""
    post_first = start(MIGRATE_POSTGRES, pg_url, "post", source=next_release)
    assert "refold migrate --phase pre" in post_first.communicate()[0]
    assert post_first.returncode == 1
    for phase, applied in (("pre", "n1"), ("pre", ""), ("post", "n2"), ("post", "")):
        assert outcome(start(MIGRATE_POSTGRES, pg_url, phase, source=next_release)) == applied


def test_phases_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phase takes the leading revisions of its kind; no phase takes all."""
    monkeypatch.setattr(migrate, "_phases", lambda: {"a": "pre", "b": "pre", "c": "post", "d": "pre"})
    steps = migrate._steps_of_phase
    assert steps(["a", "b", "c", "d"], "pre") == ["a", "b"]
    assert steps(["c", "d"], "post") == ["c"]
    assert steps(["c", "d"], "pre") == []
    assert steps(["a", "b", "c", "d"], None) == ["a", "b", "c", "d"]
    with pytest.raises(SchemaMismatch, match="d, is a pre step"):
        steps(["d"], "post")


def test_a_current_store_loads_nothing_heavy(tmp_path: Path) -> None:
    """Opening a current SQLite store imports neither SQLAlchemy nor Alembic nor psycopg."""
    ensure_sqlite(lambda: connect(tmp_path / "refold.db")).close()
    loaded = "print(*sorted({'sqlalchemy', 'alembic', 'psycopg'} & set(sys.modules)))"
    assert outcome(start(OPEN_SQLITE + loaded, tmp_path / "refold.db")) == f"1 {HEAD_REVISION}"


def test_a_store_of_revision_0002_learns_to_refuse_late_inserts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file made before revision 0003 gets its trigger when it is opened."""
    plain = connect(tmp_path / "s.db")
    with monkeypatch.context() as patch:
        patch.setattr(migrate, "HEAD_REVISION", "0002")
        ensure_sqlite(lambda: plain)
    before = plain.execute("SELECT sql FROM sqlite_master WHERE name = 'events_no_replace'").fetchone()[0]
    ensure_sqlite(lambda: plain)
    after = plain.execute("SELECT sql FROM sqlite_master WHERE name = 'events_no_replace'").fetchone()[0]
    assert sqlite_revision(plain) == HEAD_REVISION
    assert "parent_seq" not in before
    assert "parent_seq" in after
    plain.close()


def test_memory_store_stays_open() -> None:
    """A given connection to :memory: becomes a store and stays the caller's."""
    connection = connect(":memory:")
    assert ensure_sqlite(lambda: connection) is connection
    assert ensure_sqlite(lambda: connection).execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert not connection.in_transaction
    connection.close()

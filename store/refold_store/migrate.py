"""Bring a store's tables to the revision this code knows, or say clearly why not.

Rules of this module
- Importing it is cheap, and so is a store that is current: SQLAlchemy, Alembic and psycopg load when there is work.
- Any number of processes may come at once: one migrates, the others wait and find it done. On SQLite the file's own
  write lock decides, on PostgreSQL an advisory lock that is polled, never queued for (a queued waiter holds a snapshot,
  and `CREATE INDEX CONCURRENTLY` would wait for it for ever).
- All revisions of one call are one transaction. A file that is not ours is left as it is, byte for byte.
- There is no way down: an event log does not go back.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from refold_store.errors import ConfigError, Damaged, SchemaMismatch, StoreNewer, StoreOlder, StoreUnavailable
from refold_store.postgres_url import connect, libpq_url
from refold_store.revision import HEAD_REVISION, OLDEST_USABLE, REVISION_SQL, REVISIONS, VERSION_TABLE
from refold_store.rights import grant

if TYPE_CHECKING:
    import psycopg
    from alembic.config import Config
    from sqlalchemy import Connection

T = TypeVar("T")

WAIT_S: Final = 60.0
"""How long one process waits for another that migrates."""
FIRST_PAUSE_S: Final = 0.002
LONGEST_PAUSE_S: Final = 0.1
LOCK_ID: Final = 0x7265_666F_6C64
"""PostgreSQL's advisory lock of migrations: "refold" in ASCII."""
PHASES: Final = ("pre", "post")
MIGRATE: Final = "refold migrate"
UPGRADE: Final = "pip install --upgrade refold"

_FOLDER: Final = Path(__file__).parent / "migrations"
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


# --- SQLite ----------------------------------------------------------------------------------


def sqlite_revision(connection: sqlite3.Connection) -> str | None:
    """The revision of a SQLite store, or None if the file holds none. Changes nothing."""
    try:
        row = connection.execute(REVISION_SQL).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return None
        raise
    return None if row is None else str(row[0])


def check_sqlite(connection: sqlite3.Connection, path: str | None = None) -> None:
    """Raise unless the file is a store this code can read. Changes nothing: for read-only opening."""
    where = path or _file(connection)
    with _sqlite_errors(where):
        found = _patiently(lambda: sqlite_revision(connection))
        if found is None:
            _refuse_foreign(connection, where)
            raise _older(found, "open it once for writing, which creates the tables", None)
        _refuse_newer(found)
        if not _usable(found):
            raise _older(found, "open it once for writing, which upgrades it", None)


def ensure_sqlite(connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
    """Make a new SQLite file a store, or upgrade an older one, and return the connection that was used.

    `connect` gives a connection with `isolation_level=None` and no open transaction. It may be one the caller already
    holds (":memory:"); it is never closed here. Raises StoreNewer, ConfigError (not ours), StoreUnavailable, Damaged.
    """
    connection = connect()
    where = _file(connection)
    with _sqlite_errors(where):
        found = _patiently(lambda: sqlite_revision(connection))
        if found != HEAD_REVISION:
            _make_current(connection, found, where)
    return connection


def _make_current(connection: sqlite3.Connection, found: str | None, where: str) -> None:
    if found is None:
        _refuse_foreign(connection, where)
    else:
        _refuse_newer(found)
    # WAL first: the switch cannot be made inside a transaction, and it stays with the file.
    _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone())
    with _alchemy("sqlite://", connection) as alchemy:
        _patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        found = sqlite_revision(connection)  # under the lock: another process may have done it
        if found is not None:
            _refuse_newer(found)
        if found != HEAD_REVISION:
            _upgrade(alchemy, HEAD_REVISION)
        alchemy.commit()


def _refuse_foreign(connection: sqlite3.Connection, where: str) -> None:
    """Raise if the file holds something, but no store."""
    names = {name for (name,) in _patiently(lambda: connection.execute("SELECT name FROM sqlite_master").fetchall())}
    if names and VERSION_TABLE not in names:
        some = ", ".join(sorted(names)[:3])
        raise ConfigError(
            f"this SQLite file is not a refold store: it holds {some}, but no table {VERSION_TABLE}; "
            "give the path of a store, or of a new file",
            where=where,
        )


def _file(connection: sqlite3.Connection) -> str:
    """The path of a connection's file, as SQLite has it."""
    return str(connection.execute("PRAGMA database_list").fetchone()[2]) or ":memory:"


def _patiently(step: Callable[[], T]) -> T:
    """Run a step again while another process holds the file: the switch to WAL ignores SQLite's busy timeout."""
    until = time.monotonic() + WAIT_S
    pause = FIRST_PAUSE_S
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


@contextmanager
def _sqlite_errors(where: str) -> Iterator[None]:
    """Say in refold's words what SQLite could not do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise ConfigError(
                "this file is not a SQLite database; give the path of a store, or of a new file", where=where
            ) from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise Damaged(f"{where}: SQLite cannot read it ({error}); restore a backup") from error
        raise StoreUnavailable(f"{where}: the store could not be opened or created: {error}") from error
    except UnicodeDecodeError as error:  # the driver tells of a broken table definition, and quotes it
        raise Damaged(f"{where}: SQLite cannot read its table definitions; restore a backup") from error


# --- PostgreSQL ------------------------------------------------------------------------------


def postgres_revision(connection: psycopg.Connection[Any]) -> str | None:
    """The revision of the store in this database, or None if it holds none."""
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (VERSION_TABLE,)).fetchone()
    if row is None or not row[0]:
        return None
    row = connection.execute(REVISION_SQL).fetchone()
    return None if row is None else str(row[0])


def check_postgres(revision: str | None) -> None:
    """Raise StoreOlder or StoreNewer unless this code can work on that revision."""
    if revision is not None:
        _refuse_newer(revision)
    if revision is None or not _usable(revision):
        raise _older(revision, f"run `{MIGRATE}`", MIGRATE)


def migrate_postgres(url: str, phase: str | None = None) -> list[str]:
    """Bring a PostgreSQL database up to date and return the revisions applied, oldest first.

    `phase`: "pre" applies what is safe while processes of the release before still run, "post" what must wait until
    they are gone, None all of it. Raises StoreNewer, ConfigError, SchemaMismatch, StoreUnavailable.
    """

    if phase not in (None, *PHASES):
        raise ConfigError(f"unknown migration phase {phase!r}: give one of {', '.join(PHASES)}, or none for all")
    with _postgres_errors(), connect(libpq_url(url), autocommit=True) as connection:
        _require_utf8(connection)
        with _migration_lock(connection):
            return _migrate_locked(connection, phase)


def postgres_roles(
    url: str, *, writer: str | None = None, reader: str | None = None, keeper: str | None = None
) -> None:
    """Give existing roles their rights on a migrated store, and take away others they had on its tables.

    writer: select and insert. reader: select. keeper: what erasing and pruning need; the triggers still decide.
    Run it again after a migration. Raises ConfigError (a role that does not exist), StoreOlder, StoreUnavailable.
    """

    roles = {"writer": writer, "reader": reader, "keeper": keeper}
    with _postgres_errors(), connect(libpq_url(url)) as connection:
        check_postgres(postgres_revision(connection))
        for kind, role in roles.items():
            if role is not None:
                grant(connection, kind, role)


def _migrate_locked(connection: psycopg.Connection[Any], phase: str | None) -> list[str]:
    found = postgres_revision(connection)
    if found is not None:
        _refuse_newer(found)
    pending = list(REVISIONS[REVISIONS.index(found) + 1 if found is not None else 0 :])
    steps = _steps_of_phase(pending, phase)
    if steps:
        _upgrade_postgres(connection, steps[-1])
    return steps


def _steps_of_phase(pending: list[str], phase: str | None) -> list[str]:
    """The leading pending revisions of a phase. Order is never broken: a "post" step waits for the "pre" before it."""
    if phase is None or not pending:
        return pending
    phases = _phases()
    steps: list[str] = []
    for revision in pending:
        if phases[revision] != phase:
            break
        steps.append(revision)
    if not steps and phase == "post":
        raise SchemaMismatch(
            f"the next revision, {pending[0]}, is a pre step: run `{MIGRATE} --phase pre` first",
            found=None,
            expected=pending[0],
            command=f"{MIGRATE} --phase pre",
        )
    return steps


def _phases() -> dict[str, str]:
    """The declared PHASE of each revision."""
    from alembic.script import ScriptDirectory

    history = ScriptDirectory.from_config(_config())
    return {script.revision: script.module.PHASE for script in history.walk_revisions()}


def _upgrade_postgres(connection: psycopg.Connection[Any], target: str) -> None:
    connection.autocommit = False  # the lock belongs to the session, the revisions to one transaction
    try:
        with _alchemy("postgresql+psycopg://", connection) as alchemy:
            _upgrade(alchemy, target)
            alchemy.commit()
    finally:
        if not connection.closed:
            connection.rollback()  # nothing is left after a commit
            connection.autocommit = True


@contextmanager
def _postgres_errors() -> Iterator[None]:
    """Say in refold's words what PostgreSQL could not do."""
    import psycopg

    try:
        yield
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"PostgreSQL did not do it: {error}; check the URL and the server") from error
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateFunction) as error:
        raise ConfigError(
            f"this database holds something else under a name refold needs: {error}; give refold a database of its own"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(f"this PostgreSQL user may not do it: {error}; connect as the owner of the tables") from error


def _require_utf8(connection: psycopg.Connection[Any]) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise ConfigError(
            f"the database's encoding is {encoding}, but names and texts are UTF-8; "
            "create it with ENCODING 'UTF8' TEMPLATE template0"
        )


@contextmanager
def _migration_lock(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Hold the database's migration lock, polled."""
    until = time.monotonic() + WAIT_S
    pause = FIRST_PAUSE_S
    while not _try_lock(connection):
        if time.monotonic() > until:
            raise StoreUnavailable(f"another process has been migrating for {WAIT_S:.0f} s; try again when it is done")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock(%s)", (LOCK_ID,))


def _try_lock(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", (LOCK_ID,)).fetchone()
    return bool(row and row[0])


# --- both ------------------------------------------------------------------------------------


def _config() -> Config:
    """Alembic's configuration without an ini file: the scripts lie beside this module."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config


@contextmanager
def _alchemy(url: str, connection: Any) -> Iterator[Connection]:
    """A SQLAlchemy connection over a driver connection, its transaction begun. Rolls back unless committed inside.

    SQLAlchemy probes the driver connection when it first sees it and rolls back: so begin on the driver after that.
    Errors leave as the driver's own.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.pool import StaticPool

    engine = create_engine(url, creator=lambda: connection, poolclass=StaticPool)
    try:
        with engine.connect() as alchemy:
            alchemy.begin()
            yield alchemy
    except DBAPIError as error:
        raise (error.orig or error) from error


def _upgrade(alchemy: Connection, target: str) -> None:
    """Run Alembic up to a revision, inside the open transaction."""
    from alembic import command

    config = _config()
    config.attributes["connection"] = alchemy
    command.upgrade(config, target)


def _usable(revision: str) -> bool:
    return REVISIONS.index(revision) >= REVISIONS.index(OLDEST_USABLE)


def _refuse_newer(found: str) -> None:
    if found not in REVISIONS:
        raise StoreNewer(
            f"the store's tables are at revision {found}, newer than this refold knows ({HEAD_REVISION}); "
            f"upgrade refold: `{UPGRADE}`",
            found=found,
            expected=HEAD_REVISION,
            command=UPGRADE,
        )


def _older(found: str | None, remedy: str, command: str | None) -> StoreOlder:
    state = "holds no refold tables" if found is None else f"is at revision {found}, older than this refold needs"
    return StoreOlder(
        f"the store {state} (expected {HEAD_REVISION}); {remedy}",
        found=found,
        expected=HEAD_REVISION,
        command=command,
    )

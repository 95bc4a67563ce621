"""Making a store and asking whether its surroundings are in order: init, migrate, doctor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from refold_store.revision import REVISIONS

Cli = Callable[..., Any]


def marks(result: Any) -> dict[str, str]:
    """What `doctor --json` looked at, and its marks."""
    return {one["what"]: one["mark"] for one in json.loads(result.stdout)["lines"]}


def test_init_makes_a_file_once(sqlite_url: str, refold_cli: Cli) -> None:
    """`init` makes a store, and leaves one that is there as it is."""
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    assert refold_cli("init", "--store", sqlite_url).stdout == f"store {sqlite_url}: ready, 0 runs\n"
    before = path.read_bytes()
    refold_cli("demo", "--quiet", "--store", sqlite_url)
    assert refold_cli("init", "--store", sqlite_url).stdout.endswith("ready, 1 run\n")
    assert path.read_bytes() != before


def test_init_points_to_migrate_on_postgresql(empty_pg_url: str, refold_cli: Cli) -> None:
    """On PostgreSQL `init` names `refold migrate`, and so does every other command until it has run."""
    assert refold_cli("init", "--store", empty_pg_url).exit_code == 2
    early = refold_cli("runs", "--store", empty_pg_url)
    assert early.exit_code == 5
    assert "`refold migrate`" in early.stderr


def test_migrate_postgresql(empty_pg_url: str, refold_cli: Cli) -> None:
    """`migrate` says what it applied, and that there is nothing left the second time."""
    first = json.loads(refold_cli("migrate", "--json", "--store", empty_pg_url).stdout)
    assert first["applied"] == list(REVISIONS)
    assert first["revision"] == REVISIONS[-1]
    assert refold_cli("migrate", "--store", empty_pg_url).stdout == "nothing to apply\n"
    assert refold_cli("migrate", "--phase", "post", "--store", empty_pg_url).exit_code == 0
    assert refold_cli("runs", "--store", empty_pg_url).exit_code == 0


def test_migrate_gives_roles_their_rights(pg_url: str, refold_cli: Cli) -> None:
    """A role that does not exist, and a kind that does not, are mistakes that say what to do."""
    absent = refold_cli("migrate", "--roles", "writer=nobody_here", "--store", pg_url)
    assert absent.exit_code == 2
    assert "CREATE ROLE" in absent.stderr
    wrong = refold_cli("migrate", "--roles", "owner=x", "--store", pg_url)
    assert wrong.exit_code == 2
    assert "writer, reader, keeper" in wrong.stderr


def test_migrate_on_sqlite(sqlite_url: str, refold_cli: Cli) -> None:
    """A SQLite file is made or upgraded; phases and roles are refused."""
    assert "at revision" in refold_cli("migrate", "--store", sqlite_url).stdout
    assert refold_cli("migrate", "--phase", "pre", "--store", sqlite_url).exit_code == 2


def test_doctor_on_a_good_store(claims_url: str, refold_cli: Cli) -> None:
    """On a good store no line fails; each backend has its own lines."""
    result = refold_cli("doctor", "--json", "--store", claims_url)
    assert result.exit_code == 0
    found = marks(result)
    wanted = {"refold", "python", "store", "tables"}
    if claims_url.startswith("sqlite"):
        wanted |= {"sqlite", "journal mode", "disk"}
    else:
        wanted |= {"postgresql", "server_encoding", "collation", "fsync", "synchronous_commit", "clock"}
    assert set(found) == wanted
    assert "fail" not in found.values()


def test_doctor_warns_of_asynchronous_commit(pg_url: str, refold_cli: Cli) -> None:
    """A database that acknowledges before it has stored is warned of, with the remedy."""
    import psycopg

    with psycopg.connect(pg_url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    result = refold_cli("doctor", "--store", pg_url)
    assert result.exit_code == 0
    assert "warn  synchronous_commit" in result.stdout


def test_doctor_fails_without_a_store_and_without_room(
    tmp_path: Path, refold_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that cannot be opened and a full disk are failures; the other lines still come."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1000))
    result = refold_cli("doctor", "--json", "--store", str(tmp_path / "absent.db"))
    assert result.exit_code == 1
    assert marks(result) == {"refold": "ok", "python": "ok", "store": "fail", "disk": "fail"}


def test_doctor_knows_the_wal_reset_bug() -> None:
    """SQLite up to 3.51.2 is warned of, 3.51.3 is fine."""
    from refold.commands.doctor import _sqlite

    def mark(version: str) -> str:
        return next(_sqlite({"sqlite_version": version, "journal_mode": "wal"})).mark

    assert [mark(version) for version in ("3.30.0", "3.40.1", "3.51.2", "3.51.3", "3.52.0")] == [
        "fail", "warn", "warn", "ok", "ok",
    ]  # fmt: skip


def test_doctor_sees_events_from_the_future(open_new: Callable[..., Any], store_url: str, refold_cli: Cli) -> None:
    """A run written under a clock far ahead is warned of."""
    from refold.demo import ClaimState, free_run, play

    store = open_new(ClaimState, clock=lambda: 4 * 10**15)
    play(free_run(store, "default"), lambda _line: None)
    store.close()
    assert marks(refold_cli("doctor", "--json", "--store", store_url))["recorded times"] == "warn"


def test_passwords_are_not_shown(refold_cli: Cli) -> None:
    """A URL's password is never printed."""
    result = refold_cli("doctor", "--store", "postgresql://me:hunter2@127.0.0.1:1/x")
    assert "me:***@" in result.stdout
    assert "hunter2" not in result.stdout + result.stderr

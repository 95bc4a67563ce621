"""Damaging a store on purpose, for tests: rows changed behind refold's back, with or without digests made to fit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from refold_store.events import Row, chain, commit, genesis, header

COLUMNS = Row._fields
Cells = dict[str, Any]
_TABLES = ("events", "runs", "names", "schemas")


class Forge:
    """A raw connection to a store whose triggers are off."""

    def __init__(self, execute: Callable[[str, tuple[Any, ...]], list[Any]], *, sqlite: bool) -> None:
        self._execute = execute
        self.sqlite = sqlite

    def run(self, sql: str, *args: Any) -> list[Any]:
        """All rows of a statement; parameters are written as `?`."""
        return self._execute(sql if self.sqlite else sql.replace("?", "%s"), args)

    def rows(self, run: int = 1) -> list[Cells]:
        """The rows of a run by column, in seq order."""
        found = self.run(f"SELECT {', '.join(COLUMNS)} FROM events WHERE run = ? ORDER BY seq", run)
        return [dict(zip(COLUMNS, row, strict=True)) for row in found]

    def add(self, cells: Cells) -> None:
        """Insert a row."""
        stored = dict(cells)
        if self.sqlite:
            stored["pos"] = stored.pop("run") << 32 | stored.pop("seq")
        marks = ", ".join("?" * len(stored))
        self.run(f"INSERT INTO events ({', '.join(stored)}) VALUES ({marks})", *stored.values())

    def remove(self, seq: int, run: int = 1) -> None:
        """Delete a row."""
        self.run("DELETE FROM events WHERE run = ? AND seq = ?", run, seq)

    def set(self, seq: int, column: str, value: Any, run: int = 1) -> None:
        """Change one column of a row."""
        self.run(f"UPDATE events SET {column} = ? WHERE run = ? AND seq = ?", value, run, seq)

    def put(self, rows: list[Cells], run: int = 1, *, forge: bool = False) -> None:
        """Replace all rows of a run; `forge` makes digests that fit."""
        self.run("DELETE FROM events WHERE run = ?", run)
        if forge:
            self._sign(rows, run)
        for cells in rows:
            self.add(cells)

    def _sign(self, rows: list[Cells], run: int) -> None:
        [(tenant, name, scope)] = self.run("SELECT tenant, name, scope FROM runs WHERE id = ?", run)
        names: dict[Any, Any] = dict(self.run("SELECT id, name FROM names"))
        digest = genesis(tenant, name, scope)
        for cells in rows:
            shown = {
                word: cells[word] for word in COLUMNS if word not in ("run", "salt", "body", "commitment", "digest")
            }
            for column in ("actor", "owner", "key"):
                shown[column] = None if shown[column] is None else names[shown[column]]
            digest = cells["digest"] = chain(digest, header(**shown), commit(cells["salt"], cells["body"]))

    def name(self, text: str) -> int:
        """The id of a name, made if new."""
        if not self.run("SELECT id FROM names WHERE name = ?", text):
            self.run("INSERT INTO names (name) VALUES (?)", text)
        [(number,)] = self.run("SELECT id FROM names WHERE name = ?", text)
        return int(number)


@contextmanager
def forging(url: str) -> Iterator[Forge]:
    """Open a store behind refold's back."""
    if url.startswith("sqlite:///"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            yield Forge(lambda sql, args: connection.execute(sql, args).fetchall(), sqlite=True)
        finally:
            connection.close()
        return
    with psycopg.connect(url, autocommit=True) as server:
        for table in _TABLES:
            server.execute(f"ALTER TABLE {table} DISABLE TRIGGER ALL".encode())

        def execute(sql: str, args: tuple[Any, ...]) -> list[Any]:
            cursor = server.execute(sql.encode(), args)
            return cursor.fetchall() if cursor.description is not None else []

        yield Forge(execute, sqlite=False)

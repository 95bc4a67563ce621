"""Where a benchmark runs: folders on the RAM disk, fresh databases, the two places, and the counts beside a ratio."""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.board import Board
from bench.measure import TARGET_S, Side, Timings, compare
from bench.registry import Check, Sense

RAM, SYNC_1MS = "RAM", "1 ms sync"
PLACES = {"ram": RAM, "sync1ms": SYNC_1MS}
DELAY_US = {RAM: 0, SYNC_1MS: 1000}
SQLITE, POSTGRES = "sqlite", "postgresql"
COUNTED_OPERATIONS = 200
ROUNDS_LEAST = 5


TRACED: list[sqlite3.Connection] = []
_connect = sqlite3.connect


def connect_traced(*args: Any, **named: Any) -> sqlite3.Connection:
    """Opens a connection and remembers it, so that `Lab.statements` can watch it."""
    made: sqlite3.Connection = _connect(*args, **named)
    TRACED.append(made)
    return made


def watch_all(callback: Callable[[str], object] | None) -> None:
    """Sets or ends the tracing of all connections that are still open."""
    for connection in TRACED[:]:
        try:
            connection.set_trace_callback(callback)
        except sqlite3.ProgrammingError:  # closed meanwhile
            TRACED.remove(connection)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    rounds: int = 21
    scale: int = 100_000
    quick: bool = False
    peers: bool = False
    places: tuple[str, ...] = (RAM, SYNC_1MS)
    backends: tuple[str, ...] = (SQLITE, POSTGRES)


class Lab:
    """What a benchmark is given."""

    def __init__(self, folder: Path, postgres_url: str, client: Board, server: Board, options: Options) -> None:
        self.folder, self.options = folder, options
        self.client, self.server = client, server
        self.closing = ExitStack()
        self._postgres_url = postgres_url
        self._admin = self.closing.enter_context(psycopg.connect(postgres_url, autocommit=True))
        self._numbers = itertools.count(1)

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        """Within the block, a flush costs what it costs at that place."""
        for board in (self.client, self.server):
            board.delay(DELAY_US[name])
        try:
            yield
        finally:
            for board in (self.client, self.server):
                board.delay(0)

    def places(self, *wanted: str) -> list[str]:
        """Those of a benchmark's places that this run was asked for."""
        return [name for name in wanted or (RAM, SYNC_1MS) if name in self.options.places]

    def fresh_file(self, stem: str) -> Path:
        """A path on the RAM disk where nothing is yet."""
        return Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=self.folder)) / "bench.db"

    def database(self, name: str) -> tuple[str, bool]:
        """The URL of the database of that name, and whether it had to be made."""
        found = self._admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
        if not found:
            self._admin.execute(f'CREATE DATABASE "{name}"'.encode())
        return self._postgres_url.replace("/postgres?", f"/{name}?"), not found

    def fresh_database(self, stem: str) -> str:
        """The URL of an empty database."""
        while True:
            url, made = self.database(f"{stem}_{next(self._numbers)}")
            if made:
                return url

    def compare(self, sides: Sequence[Side], *, whole_runs: bool = False, target_s: float = TARGET_S) -> Timings:
        """Runs the rounds at the place in force; fewer of them where each turn walks a whole run."""
        rounds = self.options.rounds
        if whole_runs:
            rounds = max(ROUNDS_LEAST, rounds // 3)
        return compare(sides, rounds=rounds, target_s=target_s)

    def count(self, side: Side, operations: int = COUNTED_OPERATIONS) -> dict[str, float]:
        """Runs some operations outside the rounds: syncs, round trips, WAL bytes and file bytes, each an operation."""
        total = operations * side.unit
        size = side.size() if side.size else 0
        wal, syncs = self._wal_position(), self.client.syncs + self.server.syncs
        trips = self.client.trips
        side.operate(operations)
        trips = self.client.trips - trips
        syncs = self.client.syncs + self.server.syncs - syncs
        found = {
            "syncs": syncs / total,
            "round trips": trips / total,
            "WAL bytes": (self._wal_position() - wal) / total,
        }
        if side.size:
            found["file bytes"] = (side.size() - size) / total
        return found

    def statements(self, work: Callable[[], object]) -> int:
        """How many statements SQLite ran for some work, on all connections of this process; triggers count too."""
        found: list[str] = []
        watch_all(found.append)
        work()
        watch_all(None)
        return len(found)

    def _wal_position(self) -> int:
        row = self._admin.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
        assert row is not None
        return int(row[0])


def ratio_check(timings: Timings, side: str, base: str, aim: float, *, what: str = "", sense: Sense = "<=") -> Check:
    """A ratio with its aim; for `>=` it says how many times faster the side is than the base."""
    found = timings.ratio(side, base) if sense == "<=" else timings.ratio(base, side)
    return Check(what or f"x {base}", found.median, aim, sense, found.low, found.high)

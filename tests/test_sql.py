"""The hot SQL is constant text: it must fit the tables, and seek rather than scan."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields

import psycopg
import pytest
from claims import ClaimState

from refold import Store
from refold_store.backend import Statements
from refold_store.events import Row
from refold_store.postgres_links import Link
from refold_store.postgres_sql import SQL as POSTGRES
from refold_store.sqlite_sql import SQL as SQLITE
from refold_store.tables import metadata

NAMES = [field.name for field in fields(Statements)]
WALKS = {"runs", "runs_all", "names_by_ids", "insert", "put_frame"}
"""Statements that may walk a table: lists of runs, and inserts."""


def test_a_row_has_the_tables_columns() -> None:
    """The inserted row names every stored column of the table, on both backends."""
    for backend, place in (("postgresql", set()), ("sqlite", {"pos"})):
        columns = set(metadata(backend).tables["events"].c.keys())  # type: ignore[arg-type]
        assert columns - place == set(Row._fields)


@pytest.mark.parametrize("name", NAMES)
def test_sqlite_seeks(sqlite_url: str, open_new: Callable[..., Store], name: str) -> None:
    """Each statement compiles against a real file and reaches events by a key or an index."""
    store = open_new(ClaimState, url=sqlite_url)
    sql = getattr(SQLITE, name)
    numbered = [int(n) for n in re.findall(r"\?(\d+)", sql)]
    count = max(numbered) if numbered else sql.count("?")
    plan = store._backend.query(f"EXPLAIN QUERY PLAN {sql}", ["[]" if "json_each(?" in sql else 1] * count)
    if name not in WALKS:
        assert not [step for step in plan if step[3].startswith("SCAN events")], plan


@pytest.mark.parametrize("name", NAMES)
def test_postgres_seeks(pg_url: str, name: str) -> None:
    """Each statement compiles against a real server and can be answered without a scan of events."""
    sql = getattr(POSTGRES, name)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off")
        connection.execute(f"PREPARE hot AS {sql}")
        count = max((int(n) for n in re.findall(r"\$(\d+)", sql)), default=0)
        connection.execute("SET plan_cache_mode = force_generic_plan")
        arguments = f"({', '.join(['NULL'] * count)})" if count else ""
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN EXECUTE hot{arguments}"))
    if name not in WALKS:
        assert "Seq Scan on events" not in plan, plan


def test_a_rollback_costs_no_prepared_statement(pg_url: str) -> None:
    """psycopg deallocates all statements of a session after a rollback; the next lone call prepares its own anew."""
    link = Link(pg_url)
    assert link.found(POSTGRES.newest, (1, 1, 5)) is None
    for _ in range(2):
        link.rows("SELECT 1", ())
    link.connection.execute("BEGIN")
    link.connection.execute("ROLLBACK")
    link.rows("SELECT 1", ())
    assert link.found(POSTGRES.newest, (1, 1, 5)) is None
    link.close()

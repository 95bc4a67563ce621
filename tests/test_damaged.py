"""Rows that were damaged in the database: each command answers, or names the place in one line; no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forge import forging
from sound import SCHEMA, fill, found

from refold import open_store

Cli = Callable[..., Any]
LOOKS = (
    ("log", "r"), ("get", "r", "routing", "--no-record"), ("get", "r", "notes", "--no-record"), ("state", "r"),
    ("history", "r", "routing"), ("history", "r", "notes"), ("events", "r"), ("readers", "r", "routing"), ("runs",),
    ("blame", "r", "routing"), ("whatif", "r"), ("explain", "r", "bob", "routing"), ("impact", "r", "routing@1"),
    ("why", "r", "notes"), ("lint", "r"), ("write", "r", "notes", '["x"]', "--writer", "ann"),
    ("write", "r", "low", "3", "--writer", "ann"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("body", b"{"), ("body", b"\xff"), ("body", b"[]"), ("body", b'"x"'), ("body", b"{}"), ("body", "{}"),
        ("kind", 99), ("refs", ""), ("refs", "[]"), ("refs", '{"based_on":5}'), ("digest", "zz"), ("actor", 77),
    ],
)  # fmt: skip
def test_a_damaged_event_is_told_in_one_line(
    sqlite_url: str, refold_cli: Cli, tmp_path: Path, column: str, value: Any
) -> None:
    """A body that is no JSON object, a kind that is none, refs of another form, a column of another type."""
    with open_store(sqlite_url, SCHEMA) as store:
        fill(store)
    with forging(sqlite_url) as forge:
        forge.run("DELETE FROM keyframes")
        for row in forge.rows():
            if column == "digest" or (row["kind"] in (1, 3) and row["seq"] > 2):
                forge.set(row["seq"], column, value)
    _each_answers(refold_cli, sqlite_url, (*LOOKS, ("export", "r", "-o", str(tmp_path / "r.refold"))))


def test_a_damaged_run_row_or_keyframe_is_told_in_one_line(sqlite_url: str, refold_cli: Cli) -> None:
    """A time that is none in the table of runs, which verify names; a keyframe that is noise."""
    with open_store(sqlite_url, SCHEMA) as store:
        fill(store)
    with forging(sqlite_url) as forge:
        forge.run("UPDATE keyframes SET body = ?", b"\xff")
    _each_answers(refold_cli, sqlite_url, LOOKS)
    with forging(sqlite_url) as forge:
        forge.run("DELETE FROM keyframes")
        forge.run("UPDATE runs SET opened_at = 'zz' WHERE id = 1")
    assert found(sqlite_url) == [(None, "column")]
    _each_answers(refold_cli, sqlite_url, LOOKS)


def _each_answers(cli: Cli, url: str, commands: tuple[tuple[str, ...], ...]) -> None:
    raised = []
    for words in commands:
        try:
            cli(*words, "--store", url)
        except Exception as error:  # a traceback, for who types it
            raised.append((words, repr(error)))
    assert raised == []

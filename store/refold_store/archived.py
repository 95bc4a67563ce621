"""Telling an archived run: it has a head and no schema, and `run.archived` names the file that holds the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from refold_store import jsontext
from refold_store.backend import Backend
from refold_store.errors import RunArchived
from refold_store.events import RUN_ARCHIVED, Row


def archived(backend: Backend, run: int, name: str, *, writer: bool = False) -> RunArchived | None:
    """The error that says where a run's events are, if they were moved out."""
    if backend.declared_at(run, writer=writer):
        return None
    rows = backend.spanning_rows(backend.sql.by_kind, run, (RUN_ARCHIVED,), writer=writer)
    if not rows:
        return None
    row = Row(*rows[-1])
    bundle = str(jsontext.decode((row.refs or "{}").encode()).get("bundle"))
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row.recorded_at)
    by = backend.text_of(row.actor, writer=writer)
    return RunArchived(run=name, bundle=bundle, by=by, at=at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))

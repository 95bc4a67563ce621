"""Reads that were pruned: their roll-ups, as `reads.pruned` keeps them."""

from __future__ import annotations

from typing import NamedTuple

from refold_store.events import PRUNED, Row
from refold_store.jsontext import decode
from refold_store.run import Run


class RolledUp(NamedTuple):
    """Reads of one version by one reader that are gone. `newest` was the newest version when the first one read."""

    key: str
    version: int
    reader: str
    first_seq: int
    last_seq: int
    reads: int
    newest: int


def rolled_up(run: Run) -> list[RolledUp]:
    """Every roll-up of a run, by its first seq."""
    run_id = run._run_id()
    if run_id is None:
        return []
    rows = run._backend.spanning_rows(run._backend.sql.by_kind, run_id, (PRUNED,))
    bodies = [decode(row.body) for row in (Row(*row) for row in rows) if row.body is not None]
    found = [RolledUp(*entry[:7]) for body in bodies for entry in body.get("reads", ())]
    return sorted(found, key=lambda one: (one.first_seq, one.last_seq, one.key))

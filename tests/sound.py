"""A small store in which every kind of event occurs, sound, for tests that damage it."""

from __future__ import annotations

from typing import Any

import pytest
from forge import Cells

from refold import Conflict, NotOwner, Store
from refold_replay.verify import verify

SCHEMA: dict[str, Any] = {
    "keys": {
        "routing": {"owner": "triage", "type": "object", "max_bytes": 100},
        "low": {"owner": "claims", "type": "integer"},
        "high": {"owner": "claims", "type": "integer"},
        "notes": {"owner": "claims", "type": "array", "reducer": "append"},
    },
    "groups": {"claims": ["ann", "bob"]},
    "invariants": {"band": "low <= high"},
}


def fill(store: Store) -> None:
    """A run with every kind of event this store can make, and a second run."""
    run = store.run("r")
    run.open(opened_by="desk", initial={"low": 1})
    run.write_state("routing", {"rules": "ON"}, writer="triage")
    run.read_state("routing", reader="bob")
    run.write_state("routing", {"rules": "QC"}, writer="triage", basis="loss in QC", expected_version=1, request_id="q")
    run.read_many(["routing", "notes"], reader="ann")
    with run.transaction() as tx:
        tx.write_state("low", 2, writer="ann")
        tx.write_state("high", 9, writer="bob")
    for number in range(6):
        run.write_state("notes", [f"{number}" * 2000], writer="ann")
    with pytest.raises(NotOwner):
        run.write_state("low", 3, writer="eve")
    with pytest.raises(Conflict):
        run.delete_state("low", writer="ann", expected_version=9)
    run.append("message.added", actor="bob", body={"text": "done"})
    run.read_state("high", reader="ann")
    run.delete_state("high", writer="bob")
    store.run("other").write_state("low", 5, writer="ann")


def found(url: str, **options: Any) -> list[tuple[int | None, str]]:
    """(seq, damage) of each finding."""
    return [(finding.seq, finding.damage) for finding in verify(url, **options).findings]


def where(rows: list[Cells], kind: int, **cells: Any) -> Cells:
    """The first row of a kind that has these cells."""
    return next(row for row in rows if row["kind"] == kind and all(row[name] == cells[name] for name in cells))

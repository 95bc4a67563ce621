"""Everybody a run knows by name: who acted or was handed a turn in it, and whom its schema names."""

from __future__ import annotations

from typing import Any, Final

from refold_store.errors import ConfigError
from refold_store.events import KIND_ID, PRUNED, Row
from refold_store.jsontext import decode
from refold_store.run import Run

_ACTORS: Final = {
    "sqlite": "SELECT actor FROM events WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2) UNION "
    "SELECT owner FROM events WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2)",
    "postgresql": "SELECT actor FROM events WHERE run = $1 AND seq <= $2 UNION "
    "SELECT owner FROM events WHERE run = $1 AND seq <= $2",
}
"""Who acted, and for whom, up to a seq: ids of names. Parameters: run, last seq."""


def known_names(run: Run) -> set[str]:
    """The names, of the events a fork shares, too. It goes over the whole log: for an answer that is empty."""
    backend, number = run._backend, run._run_id()
    if number is None:
        return set()
    ids = {row[0] for row in backend.spanning(_ACTORS[backend.name], number, ()) if row[0] is not None}
    texts = backend.learn(ids)
    names = {texts[one] for one in ids}
    for body in _bodies(run, number, PRUNED):
        names |= {str(read[2]) for read in body.get("reads", ())}
    names |= {str(body.get("to")) for body in _bodies(run, number, KIND_ID["handoff.made"])}
    try:
        schema = run.schema()
    except ConfigError:
        return names
    names |= {name for group, members in schema.groups.items() for name in (group, *members)}
    return names | {name for key in schema.keys for name in (key.owner, *(key.readers or ()))}


def _bodies(run: Run, number: int, kind: int) -> list[Any]:
    backend = run._backend
    rows = (Row(*row) for row in backend.spanning_rows(backend.sql.by_kind, number, (kind,)))
    return [decode(bytes(row.body)) for row in rows if row.body is not None]

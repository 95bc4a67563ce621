"""Which runs go on from a run: forks that share its past, and those that were given their own copy of it.

Rules of this module
- A fork that shares its past is found by the row of the run; a copy by the `run.forked` in its own log.
- Copies of a tenant are looked up in one statement: one index seek a run.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from refold_replay.stretches import refs_of
from refold_store.events import RUN_FORKED
from refold_store.run import Run

_KIND = f"e.kind = {RUN_FORKED} AND e.kind > 3"
_SQL: Final = {
    "sqlite": (
        "SELECT r.id, r.name, e.refs FROM runs r CROSS JOIN events e "
        f"ON {_KIND} AND e.pos BETWEEN (r.id << 32) AND (r.id << 32 | 4294967295) "
        "WHERE r.tenant = ?1 AND r.scope = 0 AND r.parent IS NULL ORDER BY e.pos"
    ),
    "postgresql": (
        f"SELECT r.id, r.name, e.refs FROM runs r JOIN events e ON e.run = r.id AND {_KIND} "
        "WHERE r.tenant = $1 AND r.scope = 0 AND r.parent IS NULL ORDER BY r.id, e.seq"
    ),
}


class Child(NamedTuple):
    """A run that goes on from a seq of another."""

    at: int
    number: int
    name: str


def copied_forks(run: Run) -> dict[str, list[Child]]:
    """The forks in a run's tenant that hold their own copy of the past, by the name of the run they go on from."""
    found: dict[str, list[Child]] = {}
    for number, name, refs in run._backend.query(_SQL[run._backend.name], (run.tenant,)):
        said = refs_of(refs)
        parent, at = said.get("parent"), said.get("at")
        if said.get("run") == name and isinstance(parent, str) and type(at) is int:
            found.setdefault(parent, []).append(Child(at, number, name))
    return found


def children_of(run: Run, copies: dict[str, list[Child]]) -> list[Child]:
    """The forks made directly from a run, copies included."""
    number = run._run_id()
    shared = [] if number is None else run._backend.children(number)
    return [*(Child(at, child, name) for child, _tenant, name, at in shared), *copies.get(run.name, ())]

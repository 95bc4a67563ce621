"""Which runs go on from a run: forks that share its past, and those that were given their own copy of it.

What an archived run went on from is not known here: its bundle says it.

Rules of this module
- A fork that shares its past is found by the row of the run; a copy by the `run.forked` in its own log.
- Copies of a tenant are looked up in one statement, archived runs in another (`refold_store.descent`).
"""

from __future__ import annotations

from typing import NamedTuple

from refold_replay.stretches import refs_of
from refold_store.descent import archived_names, copied_lines
from refold_store.events import RUN_FORKED, Row
from refold_store.run import Run


class Child(NamedTuple):
    """A run that goes on from a seq of another."""

    at: int
    number: int
    name: str


def copied_forks(run: Run) -> dict[str, list[Child]]:
    """The forks in a run's tenant that hold their own copy of the past, by the name of the run they go on from."""
    found: dict[str, list[Child]] = {}
    for number, line in copied_lines(run._backend, run.tenant, run._backend.query).items():
        fork = line.forks[-1]
        found.setdefault(fork.parent, []).append(Child(fork.at, number, fork.name))
    return found


def archived_runs(run: Run) -> list[str]:
    """The runs of a run's tenant that are archived, oldest first: forks of it may be among them."""
    return archived_names(run._backend, run.tenant)


def ancestors(run: Run) -> set[str]:
    """The runs that a run goes on from, by the `run.forked` events of its log, which a copy holds, too."""
    backend, number = run._backend, run._run_id()
    rows = [] if number is None else backend.spanning_rows(backend.sql.by_kind, number, (RUN_FORKED,))
    return {str(refs_of(Row(*row).refs).get("parent")) for row in rows}


def children_of(run: Run, copies: dict[str, list[Child]]) -> list[Child]:
    """The forks made directly from a run: those that share its past, its copies, and those that share a copy's."""
    backend, number = run._backend, run._run_id()
    copied = copies.get(run.name, [])
    found = [] if number is None else [Child(at, child, name) for child, _tenant, name, at in backend.children(number)]
    for copy in copied:
        shared = backend.children(copy.number)
        found += [Child(at, child, name) for child, _tenant, name, at in shared if at < copy.at]
    return [*found, *copied]

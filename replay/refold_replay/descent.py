"""Which runs go on from a run: forks that share its past, and those that were given their own copy of it.

What an archived run went on from is not known here: its bundle says it.

Rules of this module
- A fork that shares its past is found by the row of the run; a copy by the `run.forked` in its own log.
- Copies of a tenant are looked up in one statement, archived runs in another: one index seek a run each.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from refold_replay.stretches import refs_of
from refold_store.events import RUN_ARCHIVED, RUN_FORKED, SCHEMA_DECLARED, Row
from refold_store.run import Run


def _of_kind(kind: int, *, lacking: int | None = None) -> dict[str, str]:
    """The events of a kind in the runs of a tenant that share no past; of those without an event of another kind."""
    found = {}
    for backend, joined, of_run, ordered in (
        ("sqlite", "CROSS JOIN", "{0}.pos BETWEEN (r.id << 32) AND (r.id << 32 | 4294967295)", "e.pos"),
        ("postgresql", "JOIN", "{0}.run = r.id", "r.id, e.seq"),
    ):
        text = f"SELECT r.id, r.name, e.refs FROM runs r {joined} events e "
        text += f"ON e.kind = {kind} AND e.kind > 3 AND {of_run.format('e')} "
        text += f"WHERE r.tenant = {'?1' if backend == 'sqlite' else '$1'} AND r.scope = 0 AND r.parent IS NULL "
        if lacking is not None:
            other = f"o.kind = {lacking} AND o.kind > 3 AND {of_run.format('o')}"
            text += f"AND NOT EXISTS (SELECT 1 FROM events o WHERE {other}) "
        found[backend] = f"{text}ORDER BY {ordered}"
    return found


_FORKED: Final = _of_kind(RUN_FORKED)
_ARCHIVED: Final = _of_kind(RUN_ARCHIVED, lacking=SCHEMA_DECLARED)


class Child(NamedTuple):
    """A run that goes on from a seq of another."""

    at: int
    number: int
    name: str


def copied_forks(run: Run) -> dict[str, list[Child]]:
    """The forks in a run's tenant that hold their own copy of the past, by the name of the run they go on from."""
    found: dict[str, list[Child]] = {}
    for number, name, refs in run._backend.query(_FORKED[run._backend.name], (run.tenant,)):
        said = refs_of(refs)
        parent, at = said.get("parent"), said.get("at")
        if said.get("run") == name and isinstance(parent, str) and type(at) is int:
            found.setdefault(parent, []).append(Child(at, number, name))
    return found


def archived_runs(run: Run) -> list[str]:
    """The runs of a run's tenant that are archived, oldest first: forks of it may be among them."""
    rows = run._backend.query(_ARCHIVED[run._backend.name], (run.tenant,))
    return list(dict.fromkeys(name for _number, name, _refs in rows))


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

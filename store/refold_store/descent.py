"""Which logs hold copies of the same events: a fork that was given its own past, a bundle of one that was imported.

Rules of this module
- Where to look is told by the `run.forked` of the logs: the name a log began under, and each fork since.
- Whether it is a copy is told by digests: two events of one digest have one past. Names can be used again.
- Read events say nothing here: they may be pruned in one log and not in the other.
- What an archived run went on from is not known here: its bundle says it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any, Final, NamedTuple

from refold_store import jsontext
from refold_store.backend import MAX_SEQ, Backend, RunRow
from refold_store.events import RUN_ARCHIVED, RUN_FORKED, SCHEMA_DECLARED, Row

Ask = Callable[[str, tuple[Any, ...]], list[Any]]
"""`query` of a backend, or `writer_query` inside its transaction."""


def _of_kind(kind: int, *, lacking: int | None = None) -> dict[str, str]:
    """The events of a kind in the runs of a tenant that share no past; of those without an event of another kind."""
    found = {}
    for backend, joined, of_run, ordered in (
        ("sqlite", "CROSS JOIN", "{0}.pos BETWEEN (r.id << 32) AND (r.id << 32 | 4294967295)", "e.pos"),
        ("postgresql", "JOIN", "{0}.run = r.id", "r.id, e.seq"),
    ):
        seq = "e.pos & 4294967295" if backend == "sqlite" else "e.seq"
        text = f"SELECT r.id, r.name, {seq}, e.refs FROM runs r {joined} events e "
        text += f"ON e.kind = {kind} AND e.kind > 3 AND {of_run.format('e')} "
        text += f"WHERE r.tenant = {'?1' if backend == 'sqlite' else '$1'} AND r.scope = 0 AND r.parent IS NULL "
        if lacking is not None:
            other = f"o.kind = {lacking} AND o.kind > 3 AND {of_run.format('o')}"
            text += f"AND NOT EXISTS (SELECT 1 FROM events o WHERE {other}) "
        found[backend] = f"{text}ORDER BY {ordered}"
    return found


_FORKED: Final = _of_kind(RUN_FORKED)
_ARCHIVED: Final = _of_kind(RUN_ARCHIVED, lacking=SCHEMA_DECLARED)
_LASTING: Final = {
    "sqlite": (
        "SELECT pos & 4294967295, digest FROM events WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2) AND kind <> 3 "
        "ORDER BY pos DESC LIMIT 1"
    ),
    "postgresql": "SELECT seq, digest FROM events WHERE run = $1 AND seq <= $2 AND kind <> 3 ORDER BY seq DESC LIMIT 1",
}
"""The newest event up to a seq that no prune removes."""


class Forked(NamedTuple):
    """A `run.forked`: the fork made at `seq` of its log, from seq `at` of a run."""

    seq: int
    name: str
    parent: str
    at: int


class Line(NamedTuple):
    """How a log came to be: the name it began under, and the forks since, oldest first."""

    first: str
    forks: tuple[Forked, ...]

    def goes_on_from(self, other: Line) -> bool:
        """Whether this one was forked from the other, or from a fork of it."""
        return self.first == other.first and self.forks[: len(other.forks)] == other.forks

    def parts_from(self, other: Line) -> int:
        """The last seq that both may share."""
        if self.first != other.first:
            return 0
        pairs = zip(self.forks, other.forks, strict=False)
        both = sum(1 for _same in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return min([line.forks[both].seq - 1 for line in (self, other) if len(line.forks) > both], default=MAX_SEQ)


def copied_lines(backend: Backend, tenant: str, ask: Ask) -> dict[int, Line]:
    """The lines of a tenant's logs that hold their own copy of the past they were forked from."""
    found: dict[int, tuple[str, list[Forked]]] = {}
    for number, name, seq, refs in ask(_FORKED[backend.name], (tenant,)):
        if (forked := _forked(seq, refs)) is not None:
            found.setdefault(number, (name, []))[1].append(forked)
    return {number: _line(name, forks) for number, (name, forks) in found.items() if forks[-1].name == name}


def archived_names(backend: Backend, tenant: str) -> list[str]:
    """The runs of a tenant that are archived, oldest first."""
    rows = backend.query(_ARCHIVED[backend.name], (tenant,))
    return list(dict.fromkeys(name for _number, name, _seq, _refs in rows))


def line_of(backend: Backend, run: int) -> Line:
    """The line of a run, with the past it shares."""
    rows = (Row(*row) for row in backend.spanning_rows(backend.sql.by_kind, run, (RUN_FORKED,)))
    forks = [forked for row in rows if (forked := _forked(row.seq, row.refs)) is not None]
    return _line(RunRow(*backend.query(backend.sql.runs_all, (run - 1, 1))[0]).name, forks)


def shared(backend: Backend, one: int, other: int, upto: int, ask: Ask) -> int:
    """The last seq, `upto` at most, up to which two runs hold the same events; 0 if they share none."""
    low, high, place = 0, upto, upto
    while low < high:  # the first look is most often the last; then the distance halves
        if _lasting(backend, one, place, ask) == _lasting(backend, other, place, ask):
            low = place
        else:
            high = place - 1
        place = (low + high + 1) // 2
    return low


def _lasting(backend: Backend, run: int, upto: int, ask: Ask) -> tuple[int, bytes] | None:
    for piece, _first, last in reversed(backend.pieces(run, upto)):
        if rows := ask(_LASTING[backend.name], (piece, last)):
            return rows[0][0], bytes(rows[0][1])
    return None


def _forked(seq: int, refs: str | None) -> Forked | None:
    """A `run.forked` as its refs tell it; None where they cannot be read."""
    try:
        said = jsontext.decode((refs or "{}").encode())
        return Forked(seq, str(said["run"]), str(said["parent"]), int(said["at"]))
    except (ValueError, LookupError, TypeError):
        return None


def _line(name: str, forks: list[Forked]) -> Line:
    return Line(forks[0].parent if forks else name, tuple(forks))

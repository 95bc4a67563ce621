"""What an erase did, and what may still hold what it erased.

Rules of this module
- Nothing is changed here, and nothing is guessed: what cannot be known is named, with what to do about it.
- Versions and refusals are named where a run says itself that they may repeat a value; copies of the erased events
  where digests say so; bundles where a log says that they were written.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from refold_store.archived import archived
from refold_store.backend import MAX_SEQ, Backend, RunRow
from refold_store.descent import archived_names, copied_lines, line_of, shared
from refold_store.erased import refs_of
from refold_store.events import RUN_ARCHIVED, Event, Row
from refold_store.keeping_sql import KEEPING_SQL
from refold_store.run import SCOPES, Run
from refold_store.store import Store

LISTED_MAX = 50
"""Later versions and dependents that a report lists of each; it counts all."""
NAMED_MAX = 5
"""Archived runs named in one line."""
BUNDLE_HOW = "import the bundle, erase, archive it again, and delete the older file"


@dataclass(frozen=True, slots=True)
class Erased:
    """What was erased in one log. `seq` is that of its `value.erased` (0 in a dry run), `events` counts own rows."""

    tenant: str
    run: str
    scope: str
    seq: int
    until: int
    events: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """What may hold the erased value: a later version, a write that states it rests on it, a refusal (version 0)."""

    run: str
    key: str
    version: int
    seq: int
    why: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A place that this erase does not reach: a copy in another run, a bundle, what all tenants share."""

    run: str
    why: str
    how: str
    """What erases it there."""


@dataclass(slots=True)
class EraseReport:
    """What an erase did, and what it left. `dry_run`: nothing was changed."""

    key: str | None
    version: int | None
    by: str
    reason: str
    dry_run: bool
    logs: list[Erased] = field(default_factory=list)
    events: int = 0
    """Rows erased."""
    values: int = 0
    """Writes among them."""
    keys: dict[str, int] = field(default_factory=dict)
    """How many events of each key."""
    suspects: list[Suspect] = field(default_factory=list)
    """Versions that may still hold it, LISTED_MAX of each kind at most."""
    suspect_count: int = 0
    readers: list[str] = field(default_factory=list)
    """Who had read what was erased: their later writes may hold parts of it."""
    archived: list[str] = field(default_factory=list)
    """Runs whose events are in bundles: nothing of them could be erased."""
    elsewhere: list[Elsewhere] = field(default_factory=list)
    """Where the erased events themselves may still stand."""


@dataclass(frozen=True, slots=True)
class What:
    """What is to be erased, by whom and why."""

    key: str | None
    number: int | None
    version: int | None
    by: str
    reason: str
    run: str | None = None
    """The run that was named; None: all of a tenant's."""


@dataclass(slots=True)
class Plan:
    """What one transaction erases: up to which seq of each log, and which rows there are."""

    until: dict[int, int]
    first: dict[int, int] = field(default_factory=dict)
    """The first row to erase among each log's own."""
    rows: dict[int, int] = field(default_factory=dict)
    values: int = 0
    keys: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    """Events and first seq, by key."""


# --- what may still hold it ----------------------------------------------------------------------


def list_suspects(run: Run, plan: Plan, what: What, report: EraseReport) -> None:
    """Later versions of the key, writes that state they rest on it, and who had read it."""
    backend, run_id = run._backend, run._run_id()
    assert run_id is not None
    assert what.key is not None
    mine = [(log, first, last) for log, first, last in backend.pieces(run_id) if log in plan.first]
    start = min((plan.first[log] for log, _first, last in mine if plan.first[log] <= last), default=MAX_SEQ)
    if start == MAX_SEQ:
        return
    for seq, version in backend.spanning(backend.sql.versions, run_id, (what.number,)):
        if what.version is not None and version > what.version:
            _add(report, Suspect(run.name, what.key, version, seq, "a later version of the key"))
    line = {log for log, _first, _last in backend.pieces(run_id)}
    for fork in plan.until.keys() - line:
        for seq, version in backend.query(backend.sql.versions, (fork, what.number, MAX_SEQ)):
            if seq > plan.until[fork] if what.version is None else version > what.version:
                why = "a later version in a fork"
                _add(report, Suspect(row_of(backend, fork).name, what.key, version, seq, why))
    for event in run.events(("state.written", "state.refused"), after=start):
        if event.kind == "state.refused":
            if (shown := _shows(event, what)) is not None:
                _add(report, Suspect(run.name, event.key or "", 0, event.seq, shown))
            continue
        for key, version in event.refs.get("based_on", ()):
            if key == what.key and what.version in (None, version) and event.key != what.key:
                _add(
                    report,
                    Suspect(run.name, event.key or "", event.version or 0, event.seq, f"rests on {key}@{version}"),
                )
                break
    for one in run.readers(what.key, version=what.version):
        if one.reader not in report.readers:
            report.readers.append(one.reader)


def _shows(event: Event, what: What) -> str | None:
    """Why a refused write may hold what was erased: it stays when one version goes; rules quote what they judge."""
    if event.key == what.key:
        return "a refused write of the key" if what.version is not None and not event.erased else None
    quoted = event.body.get("reason") == "invariant" and f"{what.key}=" in str(event.body.get("message"))
    return "its refusal quotes the key's value" if quoted else None


def _add(report: EraseReport, suspect: Suspect) -> None:
    report.suspect_count += 1
    if report.suspect_count <= LISTED_MAX:
        report.suspects.append(suspect)


# --- where the erased events themselves still stand ----------------------------------------------


def row_of(backend: Backend, log: int) -> RunRow:
    """The line of a log in `runs`."""
    return RunRow(*backend.query(backend.sql.runs_all, (log - 1, 1))[0])


def list_copies(run: Run, plan: Plan, what: What, report: EraseReport) -> None:
    """The runs that an erased run was copied from, other copies of those, and bundles that were written before."""
    backend, run_id = run._backend, run._run_id()
    assert run_id is not None
    line, start = line_of(backend, run_id), min(plan.first.values(), default=MAX_SEQ)
    others = copied_lines(backend, run.tenant, backend.query)
    names = [line.first, *(fork.name for fork in line.forks)]
    for name, fork in zip(names, line.forks, strict=False):
        number = backend.find_run(run.tenant, 0, name)
        if number is not None and archived(backend, number, name) is None:
            others[number] = line_of(backend, number)
        elif start < fork.seq:
            where = "not in this store" if number is None else "archived"
            why = f"{run.name!r} was copied from it, and it is {where}"
            report.elsewhere.append(Elsewhere(name, why, BUNDLE_HOW if number else "erase it where it is"))
    for number, other in sorted(others.items()):
        until = shared(backend, run_id, number, line.parts_from(other), backend.query)
        if until > plan.until.get(number, 0) and (count := _count(backend, number, until, what)):
            name = row_of(backend, number).name
            why = f"holds a copy, made for another run, of {count} of these events, up to seq {until}"
            report.elsewhere.append(Elsewhere(name, why, _command(run, name, what)))
    if plan.rows:
        _list_bundles(run, plan, start, report)


def _list_bundles(run: Run, plan: Plan, start: int, report: EraseReport) -> None:
    backend, met = run._backend, set()
    for log in sorted(plan.until):
        for row in (Row(*row) for row in backend.query(backend.sql.by_kind, (log, RUN_ARCHIVED))):
            bundle, until = refs_of(row).get("bundle"), refs_of(row).get("until", 0)
            if bundle not in met and until >= start:
                met.add(bundle)
                why = f"its bundle {bundle}, written when it was archived, holds what is erased now"
                report.elsewhere.append(Elsewhere(row_of(backend, log).name, why, "delete the file"))
    if away := archived_names(backend, run.tenant):
        left = len(away) - NAMED_MAX
        names = ", ".join(away[:NAMED_MAX]) + (f" and {left:,} more" if left > 0 else "")
        why = f"archived, and not looked at; forks of {run.name!r} with their own copy may be among them"
        report.elsewhere.append(Elsewhere(names, why, BUNDLE_HOW))


def list_global(store: Store, tenant: str, what: What, report: EraseReport) -> None:
    """The keys that all tenants share: the record of a write there does not say whose run made it."""
    everyone = Run(store, "", "", SCOPES["global"])
    if (number := everyone._run_id()) is None:
        return
    sql = KEEPING_SQL[store._backend.name].survey
    keys = [row[0] for row in store._backend.query(sql, (number, MAX_SEQ, what.number, None)) if row[0] is not None]
    names = store._backend.learn(keys)
    for name in sorted(names[key] for key in keys):
        why = "a key that all tenants share: its record does not say whose runs wrote it"
        how = f"`refold erase RUN {shlex.quote(name)}`, RUN being any run that declares it, erases it for all tenants"
        report.elsewhere.append(Elsewhere(name, why, how))


def _count(backend: Backend, log: int, until: int, what: What) -> int:
    rows = backend.query(KEEPING_SQL[backend.name].survey, (log, until, what.number, what.version))
    return sum(row[1] for row in rows)


def _command(run: Run, name: str, what: What) -> str:
    """The command that erases the same in another run."""
    words = ["refold", "erase", name]
    if what.key is not None:
        words.append(what.key if what.version is None else f"{what.key}@{what.version}")
    words += ["--reason", what.reason, *(() if run.tenant == "default" else ("--tenant", run.tenant))]
    return f"`{shlex.join(words)}`"

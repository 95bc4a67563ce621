"""Erasing: a value gone for good, on the record, with the log still whole.

Rules of this module
- One transaction appends `value.erased` to every log that shows a covered row, and puts the rows' commitments in the
  place of salt and body. Runs that share rows (a run, its forks) change together; families of runs one after the other.
- A row lies in one log and is shown by its forks: each of them says that it was erased, so that each verifies alone.
- Erasing what is erased already records nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from refold_store import jsontext
from refold_store.archived import archived
from refold_store.backend import MAX_SEQ, Backend, RunRow
from refold_store.erased import check_archived, refs_of
from refold_store.errors import ConfigError, NoSuchVersion, ReadOnlyStore
from refold_store.events import ERASED, Draft, Event, Row
from refold_store.keeping_sql import KEEPING_SQL
from refold_store.listing import SCOPE_NAMES, list_runs
from refold_store.looking import key_for_reading
from refold_store.names import check_name
from refold_store.run import SCOPES, Run
from refold_store.store import PAGE, Store
from refold_store.together import Ledger, reach, together

LISTED_MAX = 50
"""Later versions and dependents that a report lists of each; it counts all."""

Progress = Callable[[int, int, str], None]


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


@dataclass(frozen=True, slots=True)
class _What:
    key: str | None
    number: int | None
    version: int | None
    by: str
    reason: str


def erase(
    store: Store,
    run: str | None = None,
    *,
    tenant: str = "default",
    key: str | None = None,
    version: int | None = None,
    by: str,
    reason: str,
    everything_of_tenant: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> EraseReport:
    """Erase a run's values for good: all of them, those of a `key`, or one `version` of it. `by` is who, `reason` why.

    Without a run, `everything_of_tenant=True` means all runs of the tenant, and what its runs share; with `key` that
    key in each. Values that forks share are gone in all of them. Raises NoSuchRun, UnknownKey, NoSuchVersion,
    RunArchived, ReadOnlyStore.
    """
    _check(store, run, key, version, by, reason, everything_of_tenant, dry_run)
    backend = store._backend
    number = None if key is None else backend.id_of(key)
    what = _What(key, number, version, check_name("actor", by), reason)
    report = EraseReport(key, version, by, reason, dry_run)
    store.flush()
    families = _families(store, tenant, report) if run is None else [_target(store, run, tenant, what)]
    for done, family in enumerate(families):
        if key is None or number is not None:
            _erase_family(store, family, what, report)
        if progress is not None:
            progress(done + 1, len(families), family[-1].name)
    return report


def _check(
    store: Store, run: str | None, key: str | None, version: int | None, by: str, reason: str, all_: bool, dry: bool
) -> None:
    if store.read_only and not dry:
        raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to erase")
    if (run is None) is not all_:
        raise ConfigError("erase one run, by its name, or with everything_of_tenant=True all of a tenant; not both")
    if version is not None and (key is None or run is None):
        raise ConfigError("a version is of one key of one run: name both")
    if not reason.strip():
        raise ConfigError("say why it is erased: reason='...'; it stays on the record")


def _target(store: Store, name: str, tenant: str, what: _What) -> list[Run]:
    """The run that holds what is to be erased: a key of a scope lies in the scope's run."""
    run = store.run(name, tenant)
    run.info()
    check_archived(run)
    if what.key is None:
        return [run]
    declared = key_for_reading(run, what.key)
    home = run if declared.scope == "run" else run._home(declared)
    run_id = home._run_id()
    if what.version is not None:
        newest = None if what.number is None or run_id is None else store._backend.newest(run_id, what.number)
        if newest is None or not 1 <= what.version <= newest.version:
            raise NoSuchVersion(key=what.key, version=what.version, newest=newest.version if newest else 0)
    return [home]


def _families(store: Store, tenant: str, report: EraseReport) -> list[list[Run]]:
    """The runs of a tenant, those that share rows together, and the run of what they share."""
    found: dict[int, list[Run]] = {}
    after = 0
    while page := list_runs(store, tenant, after, PAGE):
        for after, info in page:  # noqa: B007  # the last one begins the next page
            run = Run(store, info.name, info.tenant, SCOPES[info.scope])
            number = run._run_id()
            assert number is not None
            if archived(store._backend, number, run.name) is not None:
                report.archived.append(run.name)
            else:
                found.setdefault(store._backend.pieces(number)[0][0], []).append(run)
    shared = Run(store, "", tenant, SCOPES["tenant"])
    return [*found.values(), *([[shared]] if shared._run_id() is not None else [])]


# --- one family of runs --------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """What one transaction erases: up to which seq of each log, and which rows there are."""

    until: dict[int, int]
    first: dict[int, int] = field(default_factory=dict)
    """The first row to erase among each log's own."""
    rows: dict[int, int] = field(default_factory=dict)
    values: int = 0
    keys: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    """Events and first seq, by key."""


def _erase_family(store: Store, family: list[Run], what: _What, report: EraseReport) -> None:
    backend = store._backend
    targets = [number for run in family if (number := run._run_id()) is not None]
    if report.dry_run:
        plan = _planned(store, targets, what, backend.query)
        named = [(_named(backend, log), until) for log, until in _shown(backend, plan)]
        logs = [replace(one, until=min(one.until, until)) for one, until in named]
    else:
        concerned = _reach(store, targets)
        plan, logs = together(store, concerned, [what.by], lambda ledger: _apply(ledger, targets, what))
    report.events += sum(plan.rows.values())
    report.values += plan.values
    names = backend.learn(key for key in plan.keys if key is not None)
    for number, (count, _first) in plan.keys.items():
        if number is not None:
            report.keys[names[number]] = report.keys.get(names[number], 0) + count
    report.logs += [replace(log, events=plan.rows.get(_id(backend, log), 0)) for log in logs]
    if logs and what.key is not None:
        for run in family:
            _list_suspects(run, plan, what, report)


def _apply(ledger: Ledger, targets: list[int], what: _What) -> tuple[_Plan, list[Erased]]:
    """The one transaction: the events, then the rows, then the keyframes that were made from them."""
    backend = ledger.backend
    sql = KEEPING_SQL[backend.name]
    plan = _planned(ledger.store, targets, what, backend.writer_query)
    logs = []
    for log, until in _shown(backend, plan):
        until = min(until, ledger.head(log).seq)
        refs, body = jsontext.encode({"until": until}).decode(), jsontext.encode({"reason": what.reason})
        seq = ledger.add(log, Draft(ERASED, what.by, key=what.key, version=what.version, refs=refs, body=body))
        logs.append(replace(_named(backend, log), seq=seq, until=until))
    ledger.append()
    for log in plan.rows:
        backend.change(sql.erase, (log, plan.until[log], what.number, what.version))
    for log in plan.until:
        for key, (_count, first) in plan.keys.items():
            if key is not None:
                backend.change(sql.drop_frames, (log, key, first))
    return plan, logs


def _reach(store: Store, targets: list[int]) -> dict[int, int]:
    """The logs that make up the targets, and all forks that share their rows."""
    until: dict[int, int] = {}
    for run in targets:
        for log, _first, last in store._backend.pieces(run):
            until[log] = max(until.get(log, 0), last)
    return reach(store, until)


def _planned(store: Store, targets: list[int], what: _What, ask: Callable[..., list[Any]]) -> _Plan:
    backend = store._backend
    plan = _Plan(_reach(store, targets))
    survey = KEEPING_SQL[backend.name].survey
    for log, until in plan.until.items():
        for key, count, values, first in ask(survey, (log, until, what.number, what.version)):
            plan.first[log] = min(first, plan.first.get(log, MAX_SEQ))
            plan.rows[log] = plan.rows.get(log, 0) + count
            plan.values += values
            before = plan.keys.get(key, (0, MAX_SEQ))
            plan.keys[key] = before[0] + count, min(before[1], first)
    return plan


def _shown(backend: Backend, plan: _Plan) -> Iterator[tuple[int, int]]:
    """(log, last seq) of the logs that show a row to erase, their own or an ancestor's."""
    for log, until in sorted(plan.until.items()):
        if any(piece in plan.first and plan.first[piece] <= last for piece, _, last in backend.pieces(log, until)):
            yield log, until


def _named(backend: Backend, log: int) -> Erased:
    row = RunRow(*backend.query(backend.sql.runs_all, (log - 1, 1))[0])
    return Erased(row.tenant, row.name, SCOPE_NAMES[row.scope], 0, row.head, 0)


def _id(backend: Backend, log: Erased) -> int:
    found = backend.find_run(log.tenant, SCOPES[log.scope], log.run)
    assert found is not None
    return found


# --- what may still hold it ----------------------------------------------------------------------


def _list_suspects(run: Run, plan: _Plan, what: _What, report: EraseReport) -> None:
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
            if what.version is None or version > what.version:
                why = "a later version in a fork"
                _add(report, Suspect(_named(backend, fork).run, what.key, version, seq, why))
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


def _shows(event: Event, what: _What) -> str | None:
    """Why a refused write may hold what was erased: it stays when one version goes; rules quote what they judge."""
    if event.key == what.key:
        return "a refused write of the key" if what.version is not None and not event.erased else None
    quoted = event.body.get("reason") == "invariant" and f"{what.key}=" in str(event.body.get("message"))
    return "its refusal quotes the key's value" if quoted else None


def _add(report: EraseReport, suspect: Suspect) -> None:
    report.suspect_count += 1
    if report.suspect_count <= LISTED_MAX:
        report.suspects.append(suspect)


# --- forks made later ----------------------------------------------------------------------------


def inherited_drafts(backend: Backend, run: int, seq: int) -> list[Draft]:
    """The `value.erased` that a fork of a run at a seq needs: of rows up to it, said behind it."""
    asked = KEEPING_SQL[backend.name].erased
    found = []
    for row in (Row(*row) for row in backend.writer_query(backend.sql.by_kind, (run, ERASED))):
        until = min(refs_of(row).get("until", 0), seq)
        if row.seq > seq and any(
            backend.writer_query(asked, (log, last, row.key, row.version))[0][0] is not None
            for log, _first, last in backend.pieces(run, until, writer=True)
        ):
            refs = jsontext.encode({"until": until}).decode()
            key, actor = backend.text_of(row.key, writer=True), backend.text_of(row.actor, writer=True)
            found.append(Draft(ERASED, actor, key=key, version=row.version, refs=refs, body=row.body))
    return found

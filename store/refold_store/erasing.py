"""Erasing: a value gone for good, on the record, with the log still whole.

Rules of this module
- One transaction appends `value.erased` to every log that shows a covered row, and puts the rows' commitments in the
  place of salt and body. Runs that share rows (a run, its forks) change together; families of runs one after the other.
- Forks with a copy of the rows, and their forks, change in the same transaction: a copy is no way out. Of what holds a
  copy and is no fork of it (the run it was copied from, say) the report tells.
- A row lies in one log and is shown by its forks: each of them says that it was erased, so that each verifies alone.
- Erasing what is erased already records nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from refold_store import jsontext
from refold_store.archived import archived
from refold_store.backend import MAX_SEQ, Backend
from refold_store.descent import Ask, copied_lines, line_of, shared
from refold_store.erased import check_archived, refs_of
from refold_store.errors import ConfigError, NoSuchVersion, ReadOnlyStore
from refold_store.events import ERASED, Draft, Row
from refold_store.keeping_sql import KEEPING_SQL
from refold_store.listing import SCOPE_NAMES, list_runs
from refold_store.looking import key_for_reading
from refold_store.names import check_name
from refold_store.remains import (
    Erased,
    EraseReport,
    Plan,
    What,
    list_copies,
    list_global,
    list_suspects,
    row_of,
)
from refold_store.run import SCOPES, Run
from refold_store.store import PAGE, Store
from refold_store.together import Ledger, reach, together

Progress = Callable[[int, int, str], None]


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
    key in each. Values that forks share, or hold a copy of, are gone in all of them; `elsewhere` of the report names
    where they may stand yet. Raises NoSuchRun, UnknownKey, NoSuchVersion,
    RunArchived, ReadOnlyStore.
    """
    _check(store, run, key, version, by, reason, everything_of_tenant, dry_run)
    backend = store._backend
    number = None if key is None else backend.id_of(key)
    what = What(key, number, version, check_name("actor", by), reason, run)
    report = EraseReport(key, version, by, reason, dry_run)
    store.flush()
    families = _families(store, tenant, report) if run is None else [_target(store, run, tenant, what)]
    for done, family in enumerate(families):
        if key is None or number is not None:
            _erase_family(store, family, what, report)
        if progress is not None:
            progress(done + 1, len(families), family[-1].name)
    if run is None and (key is None or number is not None):
        list_global(store, tenant, what, report)
    return report


def _check(
    store: Store, run: str | None, key: str | None, version: int | None, by: str, reason: str, all_: bool, dry: bool
) -> None:
    if store.read_only and not dry:
        raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to erase")
    if (run is None) is not all_:
        raise ConfigError("erase one run, by its name, or with everything_of_tenant=True all of a tenant; not both")
    if version is not None and type(version) is not int:
        raise ConfigError(f"a version is a whole number, not {version!r}")
    if version is not None and (key is None or run is None):
        raise ConfigError("a version is of one key of one run: name both")
    if not reason.strip():
        raise ConfigError("say why it is erased: reason='...'; it stays on the record")


def _target(store: Store, name: str, tenant: str, what: What) -> list[Run]:
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


def _erase_family(store: Store, family: list[Run], what: What, report: EraseReport) -> None:
    backend = store._backend
    if report.dry_run:
        plan = _planned(store, family, what, backend.query)
        named = [(_named(backend, log), until) for log, until in _shown(backend, plan)]
        logs = [replace(one, until=min(one.until, until)) for one, until in named]
    else:
        concerned = _reach(store, family, what, backend.query)
        plan, logs = together(store, concerned, [what.by], lambda ledger: _apply(ledger, family, what))
    report.events += sum(plan.rows.values())
    report.values += plan.values
    names = backend.learn(key for key in plan.keys if key is not None)
    for number, (count, _first) in plan.keys.items():
        if number is not None:
            report.keys[names[number]] = report.keys.get(names[number], 0) + count
    report.logs += [replace(log, events=plan.rows.get(_id(backend, log), 0)) for log in logs]
    for run in family:
        if logs and what.key is not None:
            list_suspects(run, plan, what, report)
        if what.run is not None and run._run_id() is not None and not run.scope:
            list_copies(run, plan, what, report)


def _apply(ledger: Ledger, family: list[Run], what: What) -> tuple[Plan, list[Erased]]:
    """The one transaction: the events, then the rows, then the keyframes that were made from them."""
    backend = ledger.backend
    sql = KEEPING_SQL[backend.name]
    plan = _planned(ledger.store, family, what, backend.writer_query)
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


def _reach(store: Store, family: list[Run], what: What, ask: Ask) -> dict[int, int]:
    """The logs that make up a family, all forks that share their rows, and forks with a copy of them."""
    until: dict[int, int] = {}
    for run in family:
        for log, _first, last in () if (number := run._run_id()) is None else store._backend.pieces(number):
            until[log] = max(until.get(log, 0), last)
    until = reach(store, until)
    if what.run is None or family[0].scope:
        return until  # all runs of the tenant have their turn; the run of a scope has no forks
    return reach(store, until | _copied(store._backend, family[0].tenant, until, ask))


def _copied(backend: Backend, tenant: str, until: dict[int, int], ask: Ask) -> dict[int, int]:
    """Up to which seq forks of the given logs hold their own copy of those rows."""
    found: dict[int, int] = {}
    copies = copied_lines(backend, tenant, ask)
    lines = {log: line_of(backend, log) for log in until} if copies else {}
    for copy, line in copies.items():
        for log, other in lines.items():
            if log != copy and line.goes_on_from(other):
                upto = shared(backend, log, copy, min(line.parts_from(other), until[log]), ask)
                found[copy] = max(upto, found.get(copy, 0), until.get(copy, 0))
    return found


def _planned(store: Store, family: list[Run], what: What, ask: Ask) -> Plan:
    backend = store._backend
    plan = Plan(_reach(store, family, what, ask))
    survey = KEEPING_SQL[backend.name].survey
    for log, until in plan.until.items():
        for key, count, values, first in ask(survey, (log, until, what.number, what.version)):
            plan.first[log] = min(first, plan.first.get(log, MAX_SEQ))
            plan.rows[log] = plan.rows.get(log, 0) + count
            plan.values += values
            before = plan.keys.get(key, (0, MAX_SEQ))
            plan.keys[key] = before[0] + count, min(before[1], first)
    return plan


def _shown(backend: Backend, plan: Plan) -> Iterator[tuple[int, int]]:
    """(log, last seq) of the logs that show a row to erase, their own or an ancestor's."""
    for log, until in sorted(plan.until.items()):
        if any(piece in plan.first and plan.first[piece] <= last for piece, _, last in backend.pieces(log, until)):
            yield log, until


def _named(backend: Backend, log: int) -> Erased:
    row = row_of(backend, log)
    return Erased(row.tenant, row.name, SCOPE_NAMES[row.scope], 0, row.head, 0)


def _id(backend: Backend, log: Erased) -> int:
    found = backend.find_run(log.tenant, SCOPES[log.scope], log.run)
    assert found is not None
    return found


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

"""Listing what a store holds: events with their names, runs, a live tail."""

from __future__ import annotations

import difflib
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refold_store.backend import RunRow
from refold_store.erased import check_archived
from refold_store.errors import Damaged, NoSuchRun
from refold_store.events import PRUNED, Event, Row, new_row
from refold_store.reads import ReadRecord, RunInfo, as_time

if TYPE_CHECKING:
    from refold_store.run import Run
    from refold_store.store import Store

NO_ID = -1
"""Stands for a key whose name is not interned: a read of many keys may list it all the same."""
EVENTS_BATCH = 500
"""Events fetched at once; a stretch that is known to be no longer, by one query."""
NEAR_MAX = 500
"""Run names compared for "did you mean"."""
SCOPE_NAMES = ("run", "tenant", "global")


def event_of(run: Run, row: Row) -> Event:
    """A stored row as an event of its run."""
    return Event(run.tenant, run.name, row, run._backend.text_of)


def stream_events(run: Run, wanted: set[int] | None, after: int, until: int, limit: int) -> Iterator[Event]:
    """The events of these kinds (None: all) after a seq up to another, at most `limit`, in seq order."""
    run._flush()
    run_id = run._run_id()
    if run_id is None:
        return
    backend, name = run._backend, run._backend.text_of
    rows: Iterable[Any]
    if until - after <= EVENTS_BATCH:
        rows = backend.spanning(backend.sql.events, run_id, (after,), until, after=after)
    else:
        rows = backend.streaming(backend.sql.events, run_id, (after,), until, EVENTS_BATCH, after=after)
    for raw in rows:
        row = new_row(Row, raw)
        if wanted is None or row.kind in wanted:
            if limit <= 0:
                return
            limit -= 1
            yield Event(run.tenant, run.name, row, name)


def follow(run: Run, after: int, poll_s: float) -> Iterator[Event]:
    """Events after a seq, as they come; ends never."""
    while True:
        for event in run.events(after=after):
            after = event.seq
            yield event
        time.sleep(poll_s)


def readers_of(run: Run, key: str, version: int | None) -> list[ReadRecord]:
    """Who read a key (or one version of it), in the order of the log."""
    run_id, number = run._run_id(), run._backend.id_of(key)
    if run_id is None:
        return []
    if number is None:
        number = NO_ID
    sql = run._backend.sql
    found = []
    rows = run._backend.spanning_rows(sql.reads_of_key, run_id, (number,))
    rows += run._backend.spanning_rows(sql.reads_of_many, run_id, ())
    # After the reads: a version that one of them saw must not be missing here.
    seqs = [row[0] for row in run._backend.spanning(sql.versions, run_id, (number,))]
    for row in sorted(rows, key=lambda row: row[1]):
        event = event_of(run, Row(*row))
        seen = event.seen_seq or 0
        for name, saw in event.refs.get("keys", ((event.key, event.version),)):
            if name == key and (version is None or saw == version):
                newest = max(bisect_right(seqs, seen), saw) if "scope" in event.refs else bisect_right(seqs, seen)
                trace = None if event.trace_id is None else event.trace_id.hex()
                at = as_time(event.recorded_at)
                found.append(
                    ReadRecord(event.seq, event.actor or "", key, saw, seen, newest, at, trace, last_seq=event.seq)
                )
    rolled = _rolled_up(run, run_id, key, version)
    if not found and not rolled:
        check_archived(run)
    return sorted([*rolled, *found], key=lambda record: record.seq) if rolled else found


def _rolled_up(run: Run, run_id: int, key: str, version: int | None) -> list[ReadRecord]:
    """The pruned reads of a key: those of one reader, of one version, with one newest version then, as one record."""
    found: dict[tuple[int, str, int], ReadRecord] = {}
    for row in (Row(*row) for row in run._backend.spanning_rows(run._backend.sql.by_kind, run_id, (PRUNED,))):
        for name, saw, reader, first, last, count, newest, at in event_of(run, row).body.get("reads", ()):
            if name == key and version in (None, saw):
                one = found.get((saw, reader, newest))
                if one is None:
                    found[saw, reader, newest] = ReadRecord(
                        first, reader, key, saw, first - 1, newest, as_time(at), None, count, last
                    )
                else:
                    found[saw, reader, newest] = replace(one, count=one.count + count, last_seq=max(last, one.last_seq))
    return list(found.values())


def list_runs(store: Store, tenant: str | None, after: int, limit: int) -> list[tuple[int, RunInfo]]:
    """(number, info) of runs in the order they were opened."""
    sql = store._backend.sql
    if tenant is None:
        rows = store._backend.query(sql.runs_all, (after, limit))
    else:
        rows = store._backend.query(sql.runs, (tenant, after, limit))
    return [(row.id, _info(row)) for row in (RunRow(*row) for row in rows)]


def _info(row: RunRow) -> RunInfo:
    try:
        opened_at, last_at = as_time(row.opened_at), as_time(row.last_at)
    except TypeError as error:
        raise Damaged(f"run {row.name!r} has a time that is none; run `refold verify`", run=row.name) from error
    scope = SCOPE_NAMES[row.scope]
    return RunInfo(row.tenant, row.name, row.head, opened_at, last_at, scope, row.parent, row.parent_seq)


def run_info(run: Run) -> RunInfo:
    """The line of one run. Raises NoSuchRun with near names."""
    run_id = run._run_id()
    if run_id is not None:
        rows = run._backend.query(run._backend.sql.runs_all, (run_id - 1, 1))
        if rows and rows[0][0] == run_id:
            return _info(RunRow(*rows[0]))
    known = [info.name for _number, info in list_runs(run.store, run.tenant, 0, NEAR_MAX)]
    raise NoSuchRun(run=run.name, tenant=run.tenant, near=difflib.get_close_matches(run.name, known, 3, 0.5))

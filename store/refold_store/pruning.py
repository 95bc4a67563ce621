"""Pruning: old read events give way to a roll-up, so that "who read version v" stays answerable.

Rules of this module
- A roll-up is exact: for each key, version, reader and newest version at that time, how many reads there were, and
  between which seqs. What is lost is each read's own time, trace and `seen_seq`.
- One transaction appends `reads.pruned`, with the digest at the end of each gap, and removes the reads. A long run is
  done in batches of BATCH reads, each complete in itself.
- A fork that shows removed reads gets a roll-up of its own. A read that a fork goes on from stays.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from refold_store import jsontext
from refold_store.backend import Backend
from refold_store.erased import check_archived, refs_of
from refold_store.errors import ConfigError, Damaged, ReadOnlyStore
from refold_store.events import PRUNED, Draft, Row
from refold_store.keeping_sql import KEEPING_SQL
from refold_store.moments import resolve
from refold_store.names import check_name
from refold_store.run import Run
from refold_store.store import Store
from refold_store.together import Ledger, reach, together

BATCH = 20_000
"""Reads of one transaction: bounds its memory, and the size of one event."""
SEQS_MAX = 1_000_000
"""Seqs of versions remembered while a batch is rolled up."""

_AGE = re.compile(r"[0-9]+(\.[0-9]+)?(ms|s|m|h|d)")

_FIRST = datetime(1, 1, 1, tzinfo=UTC)

Progress = Callable[[int, int, str], None]


class _Seen(NamedTuple):
    """A read event as the roll-up needs it."""

    seq: int
    key: int | None
    version: int | None
    actor: int | None
    seen_seq: int | None
    recorded_at: int
    refs: str | None
    digest: bytes


@dataclass(slots=True)
class Pruned:
    """What was pruned of one run: reads up to `until`, by so many events of its own log."""

    tenant: str
    run: str
    until: int
    reads: int = 0
    records: int = 0
    """Lines of the roll-up that stand for them."""
    events: int = 0
    """`reads.pruned` events, those in forks included."""


@dataclass(slots=True)
class PruneReport:
    """What a prune did. `dry_run`: nothing was changed, `records` and `events` are 0."""

    by: str
    dry_run: bool
    runs: list[Pruned] = field(default_factory=list)

    @property
    def reads(self) -> int:
        """Read events removed."""
        return sum(one.reads for one in self.runs)


def prune(
    target: Store | Run,
    *,
    before: int | str | datetime | None = None,
    older_than: str | timedelta | None = None,
    by: str,
    tenant: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PruneReport:
    """Roll up the reads of a run, or of all runs of a store (or `tenant`), up to a moment or older than e.g. "90d".

    The moment's own seq is included. A fork's inherited reads are its ancestor's: prune that. Raises NoSuchRun,
    NoSuchMoment, RunArchived, ReadOnlyStore.
    """
    store = target.store if isinstance(target, Run) else target
    if (before is None) is (older_than is None):
        raise ConfigError("say how far: before=MOMENT or older_than='90d'; one of them")
    if store.read_only and not dry_run:
        raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to prune")
    report = PruneReport(check_name("actor", by), dry_run)
    store.flush()
    if isinstance(target, Run):
        target.info()
        check_archived(target)
        runs = [target]
    else:
        runs = [store.run(info.name, info.tenant) for info in store.runs(tenant)]
    for done, run in enumerate(runs):
        until = resolve(run, _moment(run, before, older_than)).seq
        found = Pruned(run.tenant, run.name, until)
        _prune_run(run, found, report)
        if found.reads or isinstance(target, Run):
            report.runs.append(found)
        if progress is not None:
            progress(done + 1, len(runs), run.name)
    return report


def _moment(run: Run, before: int | str | datetime | None, older_than: str | timedelta | None) -> int | str | datetime:
    if before is not None:
        return before
    assert older_than is not None
    return aged(run, older_than)


def aged(run: Run, older_than: str | timedelta) -> str | datetime:
    """The moment so long ago: "90d", "12h", or a timedelta."""
    if isinstance(older_than, timedelta):
        now = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=run.now_us())
        return now - max(timedelta(0), min(older_than, now - _FIRST))
    if _AGE.fullmatch(str(older_than)) is None:
        raise ConfigError(f"{older_than!r} is not an age; write 90d, 12h, 30m or 45s")
    return f"-{older_than}"


def _prune_run(run: Run, found: Pruned, report: PruneReport) -> None:
    store, number = run.store, run._run_id()
    assert number is not None
    after = 0
    while after < found.until:
        if report.dry_run:
            kept = _fork_points(store._backend, number)
            rows = _reads(store._backend, number, after, found.until, store._backend.query)
            found.reads += sum(row.seq not in kept for row in rows)
            after = rows[-1].seq if rows else found.until
        else:
            concerned = reach(store, {number: found.until})
            work = partial(_apply, number=number, after=after, until=found.until, by=report.by)
            done = together(store, concerned, [report.by], work)
            after = done.until
            found.reads, found.records = found.reads + done.reads, found.records + done.records
            found.events += done.events


def _apply(ledger: Ledger, *, number: int, after: int, until: int, by: str) -> Pruned:
    """One batch: the events, then the rows. Returns what it did, and the seq it came to."""
    backend = ledger.backend
    done = Pruned("", "", until)
    rows = _reads(backend, number, after, until, backend.writer_query)
    if not rows:
        return done
    done.until = last = rows[-1].seq
    kept = _fork_points(backend, number)
    gone = [row for row in rows if row.seq not in kept]
    if not gone:
        return done
    for log, shared in sorted(reach(ledger.store, {number: last}).items()):
        shown = [row for row in gone if row.seq <= shared]
        if shown:
            reads = _rolled(backend, number, shown)
            body = jsontext.encode({"ranges": _ranges(backend, number, shown), "reads": reads})
            ledger.add(log, Draft(PRUNED, by, refs=jsontext.encode({"until": shared}).decode(), body=body))
            done.events += 1
            done.records += len(reads) if log == number else 0
    ledger.append()
    backend.change(KEEPING_SQL[backend.name].prune, (number, last, str(sorted(kept))))
    done.reads = len(gone)
    return done


def _reads(backend: Backend, run: int, after: int, until: int, ask: Callable[..., list[Any]]) -> list[_Seen]:
    return [_Seen(*row) for row in ask(KEEPING_SQL[backend.name].reads, (run, after, until, BATCH))]


def _fork_points(backend: Backend, run: int) -> set[int]:
    """Seqs that forks go on from: their digests chain from these rows."""
    return {at for _child, _tenant, _name, at in backend.children(run)}


# --- the roll-up ---------------------------------------------------------------------------------


def _ranges(backend: Backend, run: int, rows: list[_Seen]) -> list[list[Any]]:
    """[first seq, last seq, digest of the event before, digest of the last] of each stretch of consecutive seqs.

    Both digests: with the last one alone, what stands before a gap could be changed, and nothing behind it would tell.
    """
    found: list[list[Any]] = []
    for row in rows:
        if found and found[-1][1] == row.seq - 1:
            found[-1][1], found[-1][3] = row.seq, bytes(row.digest).hex()
        else:
            found.append([row.seq, row.seq, _digest_at(backend, run, row.seq - 1), bytes(row.digest).hex()])
    return found


def _digest_at(backend: Backend, run: int, seq: int) -> str:
    """The digest of an event; of a read that was pruned before: as its `reads.pruned` has it."""
    rows = backend.writer_query(backend.sql.at_seq, (run, seq))
    if rows and rows[0][0] == seq:
        return bytes(rows[0][4]).hex()
    for row in (Row(*row) for row in backend.writer_query(backend.sql.by_kind, (run, PRUNED))):
        for _first, last, _before, digest in jsontext.decode(row.body or b"{}").get("ranges", ()):
            if last == seq:
                return str(digest)
    raise Damaged(f"event {seq} is missing; run `refold verify`", seq=seq)


def _rolled(backend: Backend, run: int, rows: list[_Seen]) -> list[list[Any]]:
    """[key, version, reader, first seq, last seq, count, newest, first recorded_at] in the order of the first seqs."""
    keys = {row.key for row in rows if row.key is not None}
    names = backend.learn({*keys, *(row.actor for row in rows if row.actor is not None)}, writer=True)
    seqs = _Versions(backend, run)
    found: dict[tuple[str, int, str, int], list[Any]] = {}
    for row in rows:
        refs = {} if row.refs is None else jsontext.decode(row.refs.encode())
        reader = "" if row.actor is None else names[row.actor]
        seen: Iterable[Any] = [(names[row.key], row.version)] if row.key is not None else refs.get("keys", ())
        for key, version in seen:
            newest = seqs.newest(key, row.seen_seq or 0)
            if "scope" in refs:
                newest = max(newest, version)
            entry = found.get((key, version, reader, newest))
            if entry is None:
                found[key, version, reader, newest] = [
                    key, version, reader, row.seq, row.seq, 1, newest, row.recorded_at
                ]  # fmt: skip
            else:
                entry[4], entry[5] = row.seq, entry[5] + 1
    return list(found.values())


class _Versions:
    """Where the versions of keys begin, looked up once."""

    def __init__(self, backend: Backend, run: int) -> None:
        self._backend, self._run = backend, run
        self._seqs: dict[str, list[int]] = {}
        self._held = 0

    def newest(self, key: str, seq: int) -> int:
        """The newest version of a key at a seq."""
        found = self._seqs.get(key)
        if found is None:
            number = self._backend.look_up(key)
            sql = self._backend.sql.versions
            rows = [] if number is None else self._backend.spanning(sql, self._run, (number,), writer=True)
            found = [row[0] for row in rows]
            self._held += len(found)
            if self._held > SEQS_MAX:
                self._seqs, self._held = {}, len(found)
            self._seqs[key] = found
        return bisect_right(found, seq)


# --- forks made later ----------------------------------------------------------------------------


def inherited_drafts(backend: Backend, run: int, seq: int) -> list[Draft]:
    """The `reads.pruned` that a fork of a run at a seq needs: of reads up to it, rolled up behind it.

    How many reads of a line lie before the seq is not known: such a line stands for the first of them alone.
    """
    found = []
    for row in (Row(*row) for row in backend.writer_query(backend.sql.by_kind, (run, PRUNED))):
        if row.seq <= seq or row.body is None:
            continue
        said = jsontext.decode(row.body)
        ranges = [one for one in said["ranges"] if one[1] <= seq]
        if ranges:
            reads = [_cut(one, seq) for one in said["reads"] if one[3] <= seq]
            refs = jsontext.encode({"until": min(refs_of(row)["until"], seq)}).decode()
            body = jsontext.encode({"ranges": ranges, "reads": reads})
            found.append(Draft(PRUNED, backend.text_of(row.actor, writer=True), refs=refs, body=body))
    return found


def _cut(entry: list[Any], seq: int) -> list[Any]:
    key, version, reader, first, last, _count, newest, at = entry
    return entry if last <= seq else [key, version, reader, first, first, 1, newest, at]

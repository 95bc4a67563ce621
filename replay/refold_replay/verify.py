"""Verify: a store checked against itself, to the byte; every place where it contradicts itself is named.

Two levels. "digest": digests, dense seqs and versions, growing times. "full": also owner, type, invariants and
transactions of each write, the versions reads name, keyframes against folds, schemas against their fingerprints.

Rules of this module
- It reads only, in one pass over each stretch of a run; nothing is held but the newest version of each key.
- Several processes share the work when there is much of it; they speak over pipes, so any program may call this.
- A log cut off at its end is whole in itself, and so is an old copy: only an anchor kept outside shows it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from typing import Literal

from refold_replay.anchored import compare
from refold_replay.anchoring import Anchor, Head, Proof
from refold_replay.findings import Finding, Findings, VerifyReport
from refold_replay.passages import verify_passages
from refold_replay.sources import Progress
from refold_replay.stretches import Source, Stretch, verify_frames, verify_stretch
from refold_replay.workers import verify_apart
from refold_store.errors import ConfigError, Damaged, NoSuchRun, RefoldError
from refold_store.store import Store, open_store

Level = Literal["digest", "full"]
WORKERS_FROM = 200_000
"""Events from which on several processes pay for their start."""
WORKERS_MAX = 8
"""Processes at most: beyond it the database is the bound."""
IN_MEMORY = ("sqlite://", "sqlite:///:memory:", ":memory:")
"""Stores no other process can open."""


def verify(
    store: str | os.PathLike[str] | Store,
    runs: Iterable[str | tuple[str, str]] | None = None,
    *,
    tenant: str | None = None,
    level: Level = "full",
    anchor: Anchor | Proof | Iterable[Anchor | Proof] | None = None,
    public_key: bytes | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> VerifyReport:
    """Check a store, or some runs of it: names, or (tenant, name). `workers=None` uses more processes for much work.

    `anchor`: also hold them against one or more anchors; with `public_key` these must be signed with its private part.
    Raises NoSuchRun for a run that is not there. Damage is not raised: it is in the report.
    """
    if level not in ("digest", "full"):
        raise ConfigError(f"there is no level {level!r}; use 'digest' or 'full'")
    if not isinstance(store, Store):
        try:
            with open_store(store, read_only=True, create=False) as opened:
                return verify(
                    opened, runs, tenant=tenant, level=level, anchor=anchor, public_key=public_key, progress=progress,
                    workers=workers,
                )  # fmt: skip
        except Damaged as error:
            return unreadable(error, level)
    started = time.perf_counter()
    store.flush()
    source, report = Source(store._backend), VerifyReport(level)
    try:
        listed = _listed(source)
    except Damaged as error:
        return unreadable(error, level)
    anchors = _anchors(anchor)
    places = None if runs is None else [(tenant or "default", one) if isinstance(one, str) else one for one in runs]
    wanted = _wanting(places, tenant)
    known = {(head.tenant, head.run) for one in anchors for head in one.heads if wanted(head)}
    chosen = _chosen(listed, places, tenant, known)
    stretches: list[Stretch] = []
    for run in chosen:
        report.findings += _guarded(run, partial(_cut, source, run, level, stretches))
    report.runs = len(chosen)
    total = sum(stretch.last - stretch.first + 1 for stretch in stretches)  # pruned seqs, too
    for stretch, (count, findings) in _verified(store, source, stretches, total, workers):
        report.events += count
        report.findings += findings
        if progress is not None:
            progress(report.events, total, stretch.name)
    for run in chosen:
        if level == "full":
            report.findings += _guarded(run, partial(verify_frames, source, Stretch(*run[:4], 1, 0, level)))
        report.findings += _guarded(run, partial(_passages, source, run))
    if runs is None:
        report.findings += _guarded(NO_RUN, partial(_strays, source, listed, level))
    for one in anchors:
        report.findings += _guarded(NO_RUN, partial(compare, source, _ids(listed), one, report, wanted, public_key))
    report.findings.sort(key=lambda found: (str(found.tenant), str(found.run), found.seq is None, found.seq or 0))
    report.seconds = time.perf_counter() - started
    return report


def unreadable(error: Damaged, level: Level) -> VerifyReport:
    """The report on a store that cannot even be opened, a file that was cut in half, say."""
    return VerifyReport(level, findings=[Finding("", "", None, "unreadable", str(error))])


Listed = tuple[int, str, str, int, int | None, int | None]
NO_RUN: Listed = (0, "", "", 0, None, None)


def _guarded(run: Listed, step: Callable[[], list[Finding]]) -> list[Finding]:
    """What a step finds. What a damaged row may raise has no bound: that is a finding, too."""
    try:
        return step()
    except Exception as error:
        message = str(error) if isinstance(error, RefoldError) else f"{type(error).__name__}: {error}"
        return [Finding(str(run[1]), str(run[2]), None, "unreadable", message)]


def _cut(source: Source, run: Listed, level: Level, stretches: list[Stretch]) -> list[Finding]:
    stretches += source.stretches(*run, level)
    return []


def _passages(source: Source, run: Listed) -> list[Finding]:
    """The events of a run that are about other logs, or about what is gone."""
    passages = Findings(run[1], run[2])
    verify_passages(source, passages, run[0], run[2], run[4], run[5])
    return passages.found


def _listed(source: Source) -> list[Listed]:
    """(id, tenant, name, scope, parent, its seq) of every run."""
    found: list[Listed] = [tuple(row) for row in source.backend.query(source.scans.runs, ())]
    for run in found:
        source.backend.met(run[0], run[4])
    return found


def _ids(listed: list[Listed]) -> dict[tuple[str, int, str], int]:
    return {(run[1], run[3], run[2]): run[0] for run in listed}


def _chosen(
    listed: list[Listed], places: list[tuple[str, str]] | None, tenant: str | None, known: set[tuple[str, str]]
) -> list[Listed]:
    """The runs to verify. One that only an anchor knows is left out here: the comparison names it."""
    if places is None:
        return [run for run in listed if tenant is None or run[1] == tenant]
    by_name = {(run[1], run[2]): run for run in listed if run[3] == 0}
    for place in places:
        if place not in by_name and place not in known:
            raise NoSuchRun(run=place[1], tenant=place[0])
    return [by_name[place] for place in places if place in by_name]


def _anchors(given: Anchor | Proof | Iterable[Anchor | Proof] | None) -> list[Anchor | Proof]:
    if given is None:
        return []
    return [given] if isinstance(given, (Anchor, Proof)) else list(given)


def _wanting(places: list[tuple[str, str]] | None, tenant: str | None) -> Callable[[Head], bool]:
    """Which heads of an anchor are asked about."""
    if places is not None:
        asked = set(places)
        return lambda head: head.scope == 0 and (head.tenant, head.run) in asked
    return lambda head: tenant is None or head.tenant == tenant


def _verified(
    store: Store, source: Source, stretches: list[Stretch], total: int, workers: int | None
) -> Iterator[tuple[Stretch, tuple[int, list[Finding]]]]:
    """Each stretch with what it gave, in this process or in several."""
    if workers is None:
        workers = min(os.cpu_count() or 1, WORKERS_MAX) if total >= WORKERS_FROM else 1
    if workers > 1 and len(stretches) > 1 and store.url not in IN_MEMORY:
        yield from verify_apart(store.url, stretches, min(workers, len(stretches)))
        return
    for stretch in stretches:
        yield stretch, verify_stretch(source, stretch)


# --- beside the runs -------------------------------------------------------------------------


def _strays(source: Source, listed: list[Listed], level: Level) -> list[Finding]:
    """Rows that belong to no run, schemas under a wrong fingerprint, keyframes without an event, ids used twice."""
    findings = Findings("", "")
    known = {run[0]: run for run in listed}
    at = -1
    while rows := source.backend.query(source.scans.next_run, (at,)):
        at = rows[0][0]
        if at not in known:
            known |= {run[0]: run for run in _listed(source)}  # it may have been opened a moment ago
        if at not in known:
            findings.add(None, "orphan", f"events of run number {at}, which table runs does not hold")
    for fingerprint, declaration in source.backend.query(source.scans.schemas, ()):
        if sha256(bytes(declaration)).hexdigest() != fingerprint:
            findings.add(None, "schema", f"schema {fingerprint}: the declaration does not give this fingerprint")
    found = findings.found
    for run, opened_at in source.backend.query(source.scans.odd_runs, ()):
        tenant, name = known[run][1:3] if run in known else ("", f"number {run}")
        found.append(Finding(tenant, name, None, "column", f"table runs says it was opened at {opened_at!r}, no time"))
    for run, request_id, seq in source.backend.query(source.scans.requests_twice, ()):
        tenant, name = known[run][1:3] if run in known else ("", f"number {run}")
        found.append(Finding(tenant, name, seq, "request", f"request id {request_id!r} is bound twice"))
    for run, _key, seq, version in source.backend.query(source.scans.loose_frames, ()) if level == "full" else ():
        tenant, name = known[run][1:3] if run in known else ("", f"number {run}")
        message = f"a keyframe of version {version} stands beside no such write; delete it"
        found.append(Finding(tenant, name, seq, "keyframe", message))
    if level == "full" and source.scans.file:
        for (said,) in source.backend.query(source.scans.file, ()):
            if said != "ok":
                found.append(Finding("", "", None, "file", f"SQLite's own check: {said}; REINDEX mends indexes"))
    return found

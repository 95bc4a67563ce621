"""Verify: a store checked against itself, to the byte; every place where it contradicts itself is named.

Two levels. "digest": digests, dense seqs and versions, growing times. "full": also owner, type, invariants and
transactions of each write, the versions reads name, keyframes against folds, schemas against their fingerprints.

Rules of this module
- It reads only, in one pass over each stretch of a run; nothing is held but the newest version of each key.
- Several processes share the work when there is much of it; they speak over pipes, so any program may call this.
- A log cut off at its end is whole in itself: only an anchor kept outside (`heads`, then `expect=`) shows it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Literal

from refold_replay.findings import Anchor, Finding, Findings, VerifyReport
from refold_replay.passages import verify_passages
from refold_replay.sources import Progress
from refold_replay.stretches import Source, Stretch, verify_frames, verify_stretch
from refold_replay.workers import verify_apart
from refold_store.errors import ConfigError, NoSuchRun, RefoldError
from refold_store.store import Store, open_store

Level = Literal["digest", "full"]
WORKERS_FROM = 200_000
"""Events from which on several processes pay for their start."""
WORKERS_MAX = 8
"""Processes at most: beyond it the database is the bound."""
IN_MEMORY = ("sqlite://", "sqlite:///:memory:", ":memory:")
"""Stores no other process can open."""
_SCOPES = {1: "\0tenant", 2: "\0global"}
"""How `heads` names the run of a scope: no run can have a NUL in its name."""


def verify(
    store: str | os.PathLike[str] | Store,
    runs: Iterable[str | tuple[str, str]] | None = None,
    *,
    tenant: str | None = None,
    level: Level = "full",
    expect: Anchor | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> VerifyReport:
    """Check a store, or some runs of it: names, or (tenant, name). `workers=None` uses more processes for much work.

    Raises NoSuchRun for a run that is not there. Damage is not raised: it is in the report.
    """
    if not isinstance(store, Store):
        with open_store(store, read_only=True, create=False) as opened:
            return verify(
                opened, runs, tenant=tenant, level=level, expect=expect, progress=progress, workers=workers
            )  # fmt: skip
    if level not in ("digest", "full"):
        raise ConfigError(f"there is no level {level!r}; use 'digest' or 'full'")
    started = time.perf_counter()
    store.flush()
    source, report = Source(store._backend), VerifyReport(level)
    listed = _listed(source)
    chosen = _chosen(listed, runs, tenant)
    stretches: list[Stretch] = []
    for run in chosen:
        try:
            stretches += source.stretches(*run, level)
        except RefoldError as error:
            report.findings.append(_unreadable(run, error))
    report.runs = len(chosen)
    total = sum(stretch.last - stretch.first + 1 for stretch in stretches)  # pruned seqs, too
    for stretch, (count, findings) in _verified(store, source, stretches, total, workers):
        report.events += count
        report.findings += findings
        if progress is not None:
            progress(report.events, total, stretch.name)
    if level == "full":
        for run in chosen:
            try:
                report.findings += verify_frames(source, Stretch(*run[:4], 1, 0, level))
                passages = Findings(run[1], run[2])
                verify_passages(source, passages, run[0], run[2], run[4], run[5])
                report.findings += passages.found
            except RefoldError as error:
                report.findings.append(_unreadable(run, error))
    if runs is None:
        try:
            report.findings += _strays(source, listed, level)
        except RefoldError as error:
            report.findings.append(_unreadable((0, "", "", 0, None, None), error))
    if expect is not None:
        report.findings += _against(source, listed, expect)
    report.findings.sort(key=lambda found: (found.tenant, found.run, found.seq is None, found.seq or 0))
    report.seconds = time.perf_counter() - started
    return report


def heads(store: str | os.PathLike[str] | Store) -> dict[tuple[str, str], tuple[int, str]]:
    """(tenant, run) to (newest seq, its digest in hex). Kept outside the store, it shows a log that was cut off."""
    if not isinstance(store, Store):
        with open_store(store, read_only=True, create=False) as opened:
            return heads(opened)
    store.flush()
    found = {}
    for number, tenant, name, scope, _parent, _at in _listed(Source(store._backend)):
        head = store._backend.head(number)
        if head is not None:
            found[tenant, _SCOPES.get(scope, name)] = head[0], bytes(head[1]).hex()
    return found


Listed = tuple[int, str, str, int, int | None, int | None]


def _unreadable(run: Listed, error: RefoldError) -> Finding:
    return Finding(run[1], run[2], None, "unreadable", str(error))


def _listed(source: Source) -> list[Listed]:
    """(id, tenant, name, scope, parent, its seq) of every run."""
    found: list[Listed] = [tuple(row) for row in source.backend.query(source.scans.runs, ())]
    for run in found:
        source.backend.met(run[0], run[4])
    return found


def _chosen(listed: list[Listed], runs: Iterable[str | tuple[str, str]] | None, tenant: str | None) -> list[Listed]:
    if runs is None:
        return [run for run in listed if tenant is None or run[1] == tenant]
    by_name = {(run[1], run[2]): run for run in listed if run[3] == 0}
    found = []
    for one in runs:
        place = (tenant or "default", one) if isinstance(one, str) else one
        if place not in by_name:
            raise NoSuchRun(run=place[1], tenant=place[0])
        found.append(by_name[place])
    return found


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
    for run, request_id, seq in source.backend.query(source.scans.requests_twice, ()):
        tenant, name = known[run][1:3] if run in known else ("", f"number {run}")
        found.append(Finding(tenant, name, seq, "request", f"request id {request_id!r} is bound twice"))
    for run, _key, seq, version in source.backend.query(source.scans.loose_frames, ()) if level == "full" else ():
        tenant, name = known[run][1:3] if run in known else ("", f"number {run}")
        message = f"a keyframe of version {version} stands beside no such write; delete it"
        found.append(Finding(tenant, name, seq, "keyframe", message))
    return found


def _against(source: Source, listed: list[Listed], expect: Anchor) -> list[Finding]:
    """The ends of runs as they were once, against the log now."""
    ids = {(run[1], _SCOPES.get(run[3], run[2])): run[0] for run in listed}
    found = []
    for (tenant, name), (seq, digest) in expect.items():
        run = ids.get((tenant, name))
        rows = [] if run is None else source.backend.query(source.scans.digest_at, (run, seq))
        if run is None:
            found.append(Finding(tenant, name, None, "truncated", "the anchor knows this run, the store does not"))
        elif not rows:
            head = source.backend.head(run)
            end = 0 if head is None else head[0]
            message = f"the log ends at seq {end}, the anchor knows it up to {seq}"
            found.append(Finding(tenant, name, end + 1, "truncated", message))
        elif bytes(rows[0][0]).hex() != digest:
            found.append(Finding(tenant, name, seq, "digest", "the digest is not the one the anchor holds"))
    return found

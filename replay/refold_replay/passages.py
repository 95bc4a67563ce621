"""Where a log passes from one run to another, and what it says of reads that are gone: forks, archives, roll-ups.

Rules of this module
- A log begins under a name, and each `run.forked` gives it the next: the last must be the run's own.
- A roll-up tells of at least as many reads as it says were removed, each of a version that was there.
"""

from __future__ import annotations

from typing import Any

from refold_replay.findings import Findings
from refold_replay.stretches import Source, refs_of
from refold_store.errors import RefoldError
from refold_store.events import PRUNED, RUN_ARCHIVED, RUN_FORKED, Row
from refold_store.forking import name_at
from refold_store.heads import declared_schemas
from refold_store.jsontext import decode


def verify_passages(
    source: Source, findings: Findings, run: int, name: str, parent: int | None, at: int | None
) -> None:
    """Check the events of a run that are about other logs, or about what is gone from it."""
    backend = source.backend
    rows = {kind: [Row(*row) for row in backend.query(backend.sql.by_kind, (run, kind))]
            for kind in (RUN_FORKED, RUN_ARCHIVED, PRUNED)}  # fmt: skip
    try:
        _forks(source, findings, rows[RUN_FORKED], run, name, parent, at)
        for row in rows[RUN_ARCHIVED]:
            if refs_of(row.refs).get("until") != row.seq - 1:
                findings.add(row.seq, "archive", "run.archived does not stand right behind what it says was archived")
        for row in rows[PRUNED]:
            _roll_up(source, findings, run, row, [fork.seq for fork in rows[RUN_FORKED]])
    except RefoldError as error:
        findings.add(None, "unreadable", str(error))


def _forks(
    source: Source, findings: Findings, rows: list[Row], run: int, name: str, parent: int | None, at: int | None
) -> None:
    known: str | None = None
    if parent is not None:
        found = any(one[0] == parent for one in source.backend.query(source.scans.runs, ()))
        if not found or at is None or parent >= run:
            wrong = "comes after it" if found and at is not None else "is not there"
            findings.add(None, "fork", f"table runs names run number {parent} as its ancestor, which {wrong}")
            return
        place = source.backend.at_seq(parent, at)
        if place is None or place.seq != at:
            findings.add(at, "density", "the event that the fork goes on from is missing")
        known = name_at(source.backend, parent, at)
        if not rows or rows[0].seq != at + 1:
            findings.add(at + 1, "fork", "a fork has run.forked as its first own event")
    for row in rows:
        refs = refs_of(row.refs)
        if refs.get("at") != row.seq - 1:
            findings.add(row.seq, "fork", f"run.forked names moment {refs.get('at')}, but stands behind {row.seq - 1}")
        if known is not None and refs.get("parent") != known:
            findings.add(row.seq, "fork", f"run.forked names {refs.get('parent')!r}, the log before it is of {known!r}")
        known = refs.get("run")
    if rows and known != name:
        findings.add(rows[-1].seq, "fork", f"run.forked made run {known!r}; it stands in the log of {name!r}")


def _roll_up(source: Source, findings: Findings, run: int, row: Row, forks: list[int]) -> None:
    newest: dict[str, int] = {}
    try:
        body: dict[str, Any] = decode(bytes(row.body or b"{}"))
        removed = sum(last - first + 1 for first, last, *_digests in body["ranges"])
        told = sum(entry[5] for entry in body["reads"])
        for key, version, *_rest in body["reads"]:
            newest[key] = max(version, newest.get(key, 0))
        inherited = any(first < fork < row.seq for first, *_rest in body["ranges"] for fork in forks)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        findings.add(row.seq, "pruning", f"reads.pruned cannot be read ({type(error).__name__}: {error})")
        return
    if told < removed and not inherited:  # a fork made inside a line of the roll-up knows its first read only
        findings.add(row.seq, "pruning", f"reads.pruned removed {removed} reads, its roll-up tells of {told}")
    for key, version in sorted(newest.items()):
        number = source.backend.id_of(key)
        found = None if number is None else source.backend.newest(run, number, row.seq)
        if version > (0 if found is None else found.version) and not _elsewhere(source, run, key):
            findings.add(
                row.seq, "pruning", f"the roll-up tells of version {version} of {key!r}, which was never there"
            )


def _elsewhere(source: Source, run: int, key: str) -> bool:
    """Whether a key lives in the run of a scope."""
    for _seq, fingerprint in declared_schemas(source.backend, run):
        schema = source.schema_of(fingerprint)
        if key in schema and schema.key(key).scope != "run":
            return True
    return False

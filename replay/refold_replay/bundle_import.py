"""Import of a bundle: everything is checked before the store is touched, then the run comes in one transaction.

Rules of this module
- The checks are those of verify, on the lines: digests, order, versions, owners, types, transactions, reads.
- Tenant and run are those of the bundle: its digests begin with them. A run that is there already is never changed;
  one that was archived gets its events back.
- A bundle without its sensitive bodies is marked: `run.imported` is appended and says up to where they may be missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import file_digest
from itertools import islice
from pathlib import Path

from refold_replay.allowances import SAYING, Allowances
from refold_replay.bundle import SIGNED, Line
from refold_replay.bundle_checking import Checks, as_row
from refold_replay.bundle_reader import LINE_MAX, BundleReader
from refold_store import jsontext
from refold_store.archived import archived
from refold_store.backend import MAX_SEQ
from refold_store.errors import BundleInvalid, ReadOnlyStore, TransactionInvalid
from refold_store.events import PRUNED, RUN_ARCHIVED, RUN_IMPORTED, Draft, Row
from refold_store.heads import RunHead
from refold_store.names import check_name
from refold_store.run import Run
from refold_store.store import Store

BATCH = 1000
"""Rows inserted by one statement."""
SEQ_HEADROOM = 1 << 24
"""Seqs that a run which comes in must have left below the largest: a roll-up can claim any number in a few bytes, and
a run is there to go on."""
CHANGED = "the file was changed while it was imported; nothing was imported"
TELL_EVERY = 1000
"""Events between two reports of progress."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What a bundle holds, and what became of it. `outcome`: imported, unchanged, restored, or checked."""

    path: str
    tenant: str
    run: str
    outcome: str
    events: int
    until: int
    digest: str
    redacted: bool
    public_key: str | None
    """The key it is signed with, in hex; the signature was checked."""
    lacking: int = 0
    """Events whose bodies the bundle may hold and the run does not: a redacted bundle of it was imported before."""


def check_bundle(
    path: str | os.PathLike[str],
    *,
    public_key: bytes | None = None,
    line_max: int = LINE_MAX,
    progress: Progress | None = None,
) -> BundleReport:
    """Check a bundle without any store. `public_key` (32 bytes): it must be signed with the key this belongs to.

    Raises BundleInvalid with the line; ConfigError if it is signed and the extra `sign` is missing.
    """
    return _checked(path, public_key, line_max, progress)[0]


def import_bundle(
    store: Store,
    path: str | os.PathLike[str],
    *,
    by: str = "import",
    public_key: bytes | None = None,
    dry_run: bool = False,
    line_max: int = LINE_MAX,
    progress: Progress | None = None,
) -> BundleReport:
    """Bring the run of a bundle into a store: whole, or not at all. `by` is who imports, for a redacted one.

    A run that is there with the same events is "unchanged", one that was archived is "restored". Raises BundleInvalid,
    TransactionInvalid (the store has another run of this name), ReadOnlyStore.
    """
    if store.read_only and not dry_run:
        raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to import")
    check_name("actor", by)
    checked, checks = _checked(path, public_key, line_max, progress)
    store.flush()
    run = Run(store, checked.run, checked.tenant, _opened(path, line_max).manifest.scope)
    found = run._run_id()
    outcome = "imported" if found is None else _compared(run, found, checked, line_max)
    if outcome == "unchanged" and not checked.redacted and found is not None:
        return replace(checked, outcome=outcome, lacking=_lacking(run, found, checked.until))
    if outcome == "imported" and checked.until > MAX_SEQ - SEQ_HEADROOM:
        raise BundleInvalid(
            f"{checked.path}: its newest event is seq {checked.until}; a run that comes in beyond seq "
            f"{MAX_SEQ - SEQ_HEADROOM} has no room to go on",
            line=1,
        )
    if dry_run or outcome == "unchanged":
        return replace(checked, outcome=outcome)
    with store._committer.alone():
        store._backend.intern([*checks.names, by])
        reader = _opened(path, line_max)
        for fingerprint, declaration in reader.schemas.items():
            store._backend.put_schema(fingerprint, declaration)
        if outcome == "restored":
            assert found is not None
            store._backend.restore_rows(found, _batches(store, reader, checks, found, None))
        else:
            _bring_in(store, reader, checks, by)
        run._head.forget()
    return replace(checked, outcome=outcome)


def _checked(
    path: str | os.PathLike[str], public_key: bytes | None, line_max: int, progress: Progress | None
) -> tuple[BundleReport, Checks]:
    """The report of a sound bundle, and what its import needs to know of it."""
    reader = _opened(path, line_max)
    checks = Checks(reader)
    for count, line in enumerate(reader.events(), 1):
        checks.take(line)
        if progress is not None and count % TELL_EVERY == 0:
            progress(line.seq, reader.manifest.until, reader.manifest.run)
    checks.end()
    _check_signature(reader, public_key)
    return _report(reader, "checked"), checks


def _opened(path: str | os.PathLike[str], line_max: int) -> BundleReader:
    try:
        return BundleReader(Path(path), line_max=line_max)
    except OSError as error:
        raise BundleInvalid(f"cannot read {os.fspath(path)!r}: {error.strerror or error}", line=0) from error


def _report(reader: BundleReader, outcome: str) -> BundleReport:
    manifest, end = reader.manifest, reader.end
    assert end is not None
    return BundleReport(
        str(reader.path), manifest.tenant, manifest.run, outcome, end.events, manifest.until, manifest.digest.hex(),
        manifest.redacted, None if end.public_key is None else end.public_key.hex(),
    )  # fmt: skip


def _check_signature(reader: BundleReader, public_key: bytes | None) -> None:
    end = reader.end
    assert end is not None
    if end.public_key is None or end.signature is None:
        if public_key is not None:
            raise reader.fail("the bundle is not signed, and a signature of the given key is expected")
        return
    from refold_replay import signing  # needs the extra `sign`

    if public_key is not None and public_key != end.public_key:
        raise reader.fail("the bundle is signed with another key")
    if not signing.verify(end.public_key, SIGNED + end.sha256, end.signature):
        raise reader.fail("the signature is not one of this bundle")


# --- bringing in ---------------------------------------------------------------------------------


def _compared(run: Run, number: int, checked: BundleReport, line_max: int) -> str:
    """What to do with a bundle of a run that is there. Raises TransactionInvalid if they differ."""
    backend = run._backend
    if archived(backend, number, run.name) is not None:
        refs = jsontext.decode(
            (Row(*backend.query(backend.sql.by_kind, (number, RUN_ARCHIVED))[-1]).refs or "").encode()
        )
        if (refs.get("until"), refs.get("digest")) != (checked.until, checked.digest):
            raise TransactionInvalid(
                f"run {run.name!r} was archived into {refs.get('bundle')!r}; this bundle is another one"
            )
        if checked.redacted and _file_digest(checked.path) != refs.get("sha256"):
            # The archive's own file lacks what the run lacked, once imported without it; another one may lack more.
            raise TransactionInvalid(
                f"this bundle lacks sensitive values that run {run.name!r} may have had when it was archived; "
                f"import the file that `archive` wrote: {refs.get('bundle')!r}, SHA-256 {refs.get('sha256')}"
            )
        return "restored"
    place = backend.at_seq(number, checked.until)
    if place is not None and place.seq == checked.until and bytes(place.digest).hex() == checked.digest:
        return "unchanged"
    head, pruned = backend.head(number), _allowed(run, number, (PRUNED,))
    if any(gap.last == checked.until and gap.digest.hex() == checked.digest for gap in pruned.gaps.values()):
        return "unchanged"
    if pruned.inside(checked.until) is not None:
        holds = f"without the reads around seq {checked.until}, pruned since: nothing tells whether it is the same"
    elif head is not None and head[0] < checked.until and _digest_at(checked, head[0], line_max) == bytes(head[1]):
        holds = f"up to seq {head[0]}, and the bundle goes on to seq {checked.until}"
    else:
        holds = "with other events"
    raise TransactionInvalid(
        f"run {run.name!r} of tenant {run.tenant!r} is in this store {holds}; nothing was imported "
        "(a bundle cannot take another name: its digests begin with it)"
    )


def _allowed(run: Run, number: int, kinds: Iterable[int] = SAYING) -> Allowances:
    """What the log of a run that is there says may be missing."""
    found = Allowances()
    for kind in kinds:
        for row in run._backend.spanning_rows(run._backend.sql.by_kind, number, (kind,)):
            found.add(Row(*row))
    return found


def _lacking(run: Run, number: int, until: int) -> int:
    """How many events have no body because the run came from a redacted bundle."""
    allowed = _allowed(run, number)
    rows = (event.row for event in run.events(until=min(until, allowed.redacted)) if event.erased)
    return sum(allowed.erased_by(row.seq, row.kind, row.key, row.version) is None for row in rows)


def _file_digest(path: str) -> str:
    with Path(path).open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _digest_at(checked: BundleReport, seq: int, line_max: int) -> bytes | None:
    reader = _opened(checked.path, line_max)
    gap = next((gap for gap in reader.manifest.allowed.gaps.values() if gap.last == seq), None)
    return gap.digest if gap is not None else next((line.digest for line in reader.events() if line.seq == seq), None)


def _bring_in(store: Store, reader: BundleReader, checks: Checks, by: str) -> None:
    manifest = reader.manifest
    last = None
    if manifest.redacted:
        last = Draft(RUN_IMPORTED, by, refs=jsontext.encode({"redacted": manifest.until}).decode(), body=b"{}")
    store._backend.open_whole(
        manifest.tenant, manifest.scope, manifest.run, checks.opened_at,
        lambda number: _batches(store, reader, checks, number, last),
    )  # fmt: skip


def _batches(
    store: Store, reader: BundleReader, checks: Checks, number: int, last: Draft | None
) -> Iterator[list[Row]]:
    """The rows of a bundle as rows of a run, and behind them `last`. They are those that were checked."""
    manifest, ids = reader.manifest, store._backend.ids
    lines = reader.events()
    newest: Line | None = None

    def id_of(name: str | None) -> int | None:
        try:
            return None if name is None else ids[name]
        except KeyError as error:
            raise reader.fail(CHANGED, error) from error

    while batch := list(islice(lines, BATCH)):
        yield [as_row(line, number, id_of) for line in batch]
        newest = batch[-1]
    assert reader.end is not None
    if reader.end.sha256 != checks.sha256:
        raise reader.fail(CHANGED)
    if last is not None and newest is not None:
        head = RunHead(
            manifest.tenant, manifest.run, manifest.scope, number, seq=manifest.until, digest=manifest.digest,
            recorded_at=newest.recorded_at,
        )  # fmt: skip
        rows: list[Row] = []
        store._sealer.seal(head, last, None, store._sealer.now(None), rows)
        yield rows

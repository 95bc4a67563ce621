"""Archiving: a run's events move out into a bundle; one event stays and names it.

Rules of this module
- The bundle is written and read back first, then the events go (`refold_store.archiving`).
- If the run went on meanwhile, nothing goes, and the bundle is written anew.
- A file that is there may be some run's only copy: none is replaced. The bundle of an archiving that was cut off before
  the events went is taken if it holds just what would be written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import file_digest
from pathlib import Path

from refold_replay.bundle_import import check_bundle
from refold_replay.bundle_reader import SUFFIX
from refold_replay.exporting import export, file_name, up_to_date
from refold_replay.replacing import check_place
from refold_store.archived import archived
from refold_store.archiving import check_leaving, move_out
from refold_store.errors import BundleInvalid, ConfigError, StoreUnavailable, TransactionInvalid
from refold_store.moments import resolve
from refold_store.names import check_name
from refold_store.pruning import aged
from refold_store.run import Run
from refold_store.store import Store

TRIES_MAX = 5
"""Bundles written anew because the run went on; one that is written to all the time is no run to archive."""

Progress = Callable[[int, int, str], None]
Pack = Callable[[Run, Path], object]
"""Writes a run into a file and reads it back. Raises if the file does not hold the run."""


@dataclass(frozen=True, slots=True)
class Archived:
    """A run whose events are in the file `path` now. `seq` is that of `run.archived`; a dry run has none."""

    tenant: str
    run: str
    path: str
    sha256: str | None
    events: int
    until: int
    seq: int | None


@dataclass(slots=True)
class ArchiveReport:
    """The runs that were archived, and those left as they are, with the reason."""

    archived: list[Archived] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def archive(
    run: Run,
    directory: str | os.PathLike[str],
    *,
    by: str,
    reason: str | None = None,
    with_forks: bool = False,
    dry_run: bool = False,
    pack: Pack | None = None,
) -> Archived:
    """Move a run's events into a bundle in `directory`. `by` is who, `reason` why.

    Raises NoSuchRun, RunArchived, TransactionInvalid (it has forks), ConfigError (another file has the bundle's name),
    ReadOnlyStore, StoreUnavailable (the folder cannot be made).
    """
    check_name("actor", by)
    if not dry_run:
        _make_folder(Path(directory))
    until = check_leaving(run, with_forks=with_forks, dry_run=True)
    path = Path(directory) / _file_name(run, until)
    check_place(path, lambda found: up_to_date(run, found), f"bundle of just what run {run.name!r} holds")
    if dry_run:
        return Archived(run.tenant, run.name, str(path), None, sum(1 for _event in run.events()), until, None)
    for _try in range(TRIES_MAX):
        until = check_leaving(run, with_forks=with_forks, dry_run=False)
        path = Path(directory) / _file_name(run, until)
        was_there = path.exists()
        (pack or bundle)(run, path)
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        done = move_out(run, until=until, bundle=path.name, sha256=digest, by=by, reason=reason)
        if done is not None:
            return Archived(run.tenant, run.name, str(path), digest, done.events, until, done.seq)
        if not was_there:
            path.unlink()
    raise TransactionInvalid(f"run {run.name!r} goes on being written to; archive it when it is over")


def archive_old(
    store: Store,
    directory: str | os.PathLike[str],
    *,
    older_than: str | timedelta,
    by: str,
    tenant: str = "default",
    reason: str | None = None,
    with_forks: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    pack: Pack | None = None,
) -> ArchiveReport:
    """Archive every run of a tenant whose last event is older than e.g. "365d". Runs with forks are left."""
    report = ArchiveReport()
    infos = store.runs(tenant)[::-1]  # forks before what they go on from
    for done, info in enumerate(infos):
        run = store.run(info.name, info.tenant)
        number = run._run_id()
        assert number is not None
        old = resolve(run, aged(run, older_than)).seq == info.head_seq
        if old and archived(store._backend, number, run.name) is None:
            try:
                report.archived.append(
                    archive(run, directory, by=by, reason=reason, with_forks=with_forks, dry_run=dry_run, pack=pack)
                )
            except (TransactionInvalid, ConfigError) as error:
                report.skipped[info.name] = str(error)
        if progress is not None:
            progress(done + 1, len(infos), info.name)
    return report


def bundle(run: Run, path: Path) -> None:
    """The run as a bundle, read back and checked."""
    exported = export(run, path, keep=True)
    if check_bundle(path).digest != exported.digest:
        raise BundleInvalid(f"{path} does not hold what was written; check the disk", line=0)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"cannot make the folder {str(folder)!r}: {error.strerror}") from error


def _file_name(run: Run, until: int) -> str:
    """A name for the bundle: of tenant, run and seq."""
    return file_name(run.name if run.tenant == "default" else f"{run.tenant}/{run.name}", f"-{until}{SUFFIX}")

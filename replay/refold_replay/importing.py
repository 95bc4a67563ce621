"""Import: recorded runs from event files into a store, each run whole or not at all.

Rules of this module
- One run is one request to the committer and one transaction; nothing of a run with an error is stored.
- A run that is there already is left alone: "unchanged" if it came from these very lines, an error if not.
- `run.imported` says when, from which file, and the digests of lines and seed. The runs' own times become `clock`.
- A dry run does the same on a store in memory.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from refold_replay.infer import infer_schema
from refold_replay.script import IMPORTER, Script
from refold_replay.seeds import NO_SEED, Seed, read_seed
from refold_replay.sources import LineError, Overview, Progress, SourceRun, look_over, read_runs
from refold_store.declare import compile_schema
from refold_store.errors import NameInvalid, Refused, StoreUnavailable, TransactionInvalid
from refold_store.events import RUN_IMPORTED, Draft
from refold_store.jsontext import encode
from refold_store.names import check_name
from refold_store.reads import as_time
from refold_store.requests import Request
from refold_store.run import Run
from refold_store.schema import Schema
from refold_store.store import Store, open_store

Status = Literal["imported", "unchanged", "failed"]
DIFFERENT_MAX = 1000
"""Reads that show another value, named one by one: a whole file of them must not fill the memory."""


@dataclass(frozen=True, slots=True)
class RunImport:
    """What became of one run."""

    run: str
    status: Status
    events: int
    """Lines in the file."""
    file: str
    line: int


@dataclass(slots=True)
class ImportReport:
    """What an import did."""

    dry_run: bool = False
    inferred: bool = False
    schema: Schema | None = None
    schema_text: str | None = None
    """The inferred schema as YAML."""
    runs: list[RunImport] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    """Events stored by kind, in the runs imported now."""
    refusals: int = 0
    reads_compared: int = 0
    reads_different: list[LineError] = field(default_factory=list)
    """Full reads that show another value than the version they name holds: kept as they are, and told here."""
    notes: list[str] = field(default_factory=list)

    @property
    def imported(self) -> list[str]:
        """The runs stored now."""
        return self._with("imported")

    @property
    def unchanged(self) -> list[str]:
        """The runs that were there already, from the same lines."""
        return self._with("unchanged")

    @property
    def failed(self) -> list[str]:
        """The runs of which nothing was stored."""
        return self._with("failed")

    @property
    def events(self) -> int:
        """Events stored now."""
        return sum(self.kinds.values())

    @property
    def ok(self) -> bool:
        """Whether every run of the files is in the store."""
        return not self.errors and not self.failed

    def _with(self, status: Status) -> list[str]:
        return [run.run for run in self.runs if run.status == status]


def import_files(
    store: str | os.PathLike[str] | Store,
    files: Sequence[str | Path],
    *,
    seed: str | Path | None = None,
    schema: Any = None,
    tenant: str = "default",
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Import recorded runs. Without a schema one is drawn up from the files, used and recorded.

    Raises ConfigError if a file, the seed or the schema cannot be read; what is wrong with lines is in the report.
    """
    check_name("tenant", tenant)
    overview = look_over(files)
    seeds = NO_SEED if seed is None else read_seed(seed)
    report = ImportReport(dry_run=dry_run, inferred=schema is None)
    if schema is None:
        inferred = infer_schema(files, seed=seeds)
        report.schema, report.schema_text = inferred.schema, inferred.text
    else:
        report.schema = compile_schema(schema)
    with ExitStack() as opened:
        target = _Target(store, dry_run, opened)
        importer = _Importer(target, report, report.schema, seeds, tenant)
        importer.run(files, overview, progress)
    return report


class _Target:
    """Where runs are looked for, and where they go: a store, or beside it one in memory for a dry run."""

    def __init__(self, store: str | os.PathLike[str] | Store, dry_run: bool, opened: ExitStack) -> None:
        self._dry = opened.enter_context(open_store("sqlite://")) if dry_run else None
        self.real: Store | None
        if isinstance(store, Store):
            self.real = store
        elif dry_run:
            try:
                self.real = opened.enter_context(open_store(store, read_only=True, create=False))
            except StoreUnavailable:
                self.real = None  # a dry run makes no file
        else:
            self.real = opened.enter_context(open_store(store))
        if self.real is not None:
            self.real.flush()

    @property
    def store(self) -> Store:
        """The store that takes the runs."""
        found = self._dry or self.real
        assert found is not None
        return found


class _Importer:
    def __init__(self, target: _Target, report: ImportReport, schema: Schema, seed: Seed, tenant: str) -> None:
        self.target = target
        self.report = report
        self.schema = schema
        self.seed = seed
        self.tenant = tenant

    def run(self, files: Sequence[str | Path], overview: Overview, progress: Progress | None) -> None:
        """Import the runs of the files, one after the other."""
        done = 0
        for source in self._checked(files, overview):
            status = self._import(source)
            self.report.runs.append(RunImport(source.name, status, source.count, source.file, source.line))
            self.report.errors += source.errors
            done += source.count
            if progress is not None:
                progress(done, overview.lines, source.name)

    def _checked(self, files: Sequence[str | Path], overview: Overview) -> Iterator[SourceRun]:
        """The runs; one whose lines do not stand together carries that as its errors, and comes once."""
        told: set[str] = set()
        for source in read_runs(files):
            if source.name in overview.repeated:
                if source.name in told:
                    continue
                told.add(source.name)
                source.errors += overview.repeated[source.name]
            yield source

    def _import(self, source: SourceRun) -> Status:
        try:
            check_name("run", source.name)
        except NameInvalid as error:
            source.fault(source.line, str(error))
        if source.errors:
            for _ in source.lines:
                pass
            return "failed"
        with _collector_paused():
            script = Script(source, self.schema, self.seed, inferred=self.report.inferred)
            status = self._earlier(script)
            if status is None and not script.errors:
                status = self._store(script)
        return status if status is not None else "failed"

    def _earlier(self, script: Script) -> Status | None:
        """What to say of a run that is there already; None if it is new."""
        source = script.source
        run = None if self.target.real is None else self.target.real.run(source.name, self.tenant)
        if run is None or not run.head_seq():
            return None
        imported = next(run.events(kinds=["run.imported"], limit=1), None)
        if imported is None:
            message = f"run {source.name!r} exists and was not imported; nothing was changed"
        elif imported.body.get("lines_sha256") != source.sha256:
            message = (
                f"run {source.name!r} was imported before from other lines ({imported.body.get('file')}); "
                "a log never changes: import it under another tenant, or rename the run"
            )
        elif imported.body.get("seed_sha256") != self._seed_digest(script):
            message = f"run {source.name!r} was imported before with another seed; nothing was changed"
        else:
            source.errors.clear()
            self._note_schema(run)
            return "unchanged"
        source.fault(source.line, message)
        return "failed"

    def _note_schema(self, run: Run) -> None:
        declared = next(run.events(kinds=["schema.declared"], limit=1), None)
        held = "" if declared is None else str(declared.body.get("fingerprint"))
        if not self.report.inferred and held != self.schema.fingerprint:
            self.report.notes.append(f"run {run.name!r} stays under schema {held[:12]}, under which it was imported")

    def _seed_digest(self, script: Script) -> str | None:
        return self.seed.digest(script.seeded) if script.seeded else None

    def _store(self, script: Script) -> Status:
        source, run = script.source, self.target.store.run(script.source.name, self.tenant)
        request = Request(
            run._head,
            self.schema,
            script.items,
            opener=IMPORTER,
            opening=(self._imported(script),),
            new_run=True,
            clock=script.first_clock,
        )
        try:
            made = run._committer.submit(request)
        except (Refused, TransactionInvalid) as error:
            if isinstance(error, TransactionInvalid) and (met := self._earlier(script)) is not None:
                return met  # another import stored the run meanwhile
            units = len(request.results)
            at = (
                script.unit_lines[units]
                if isinstance(error, Refused) and units < len(script.unit_lines)
                else source.line
            )
            source.fault(at, str(error))
            return "failed"
        assert len(made) == len(script.unit_lines)
        self._count(script)
        return "imported"

    def _imported(self, script: Script) -> Draft:
        source = script.source
        body: dict[str, Any] = {
            "imported_at": _iso(self.target.store),
            "file": _storable(os.path.basename(source.file)),
            "line": source.line,
            "lines": source.count,
            "lines_sha256": source.sha256,
            "schema": "inferred" if self.report.inferred else "given",
        }
        if script.seeded:
            body["seed_file"] = _storable(os.path.basename(self.seed.file))
            body["seed_sha256"] = self._seed_digest(script)
        return Draft(RUN_IMPORTED, IMPORTER, body=encode(body), clock=script.first_clock)

    def _count(self, script: Script) -> None:
        report = self.report
        report.kinds.update(script.kinds)
        report.kinds.update(("run.opened", "schema.declared", "run.imported"))
        report.refusals += script.refusals
        report.reads_compared += script.reads_compared
        report.reads_different += script.reads_different[: DIFFERENT_MAX - len(report.reads_different)]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A run in memory is many small objects without cycles: looking through them again and again took a third."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _iso(store: Store) -> str:
    """Now, by the store's clock."""
    return as_time(store._sealer.now(None)).isoformat().replace("+00:00", "Z")


def _storable(name: str) -> str:
    """A file name as text that has an exact form: bytes that are no UTF-8 are escaped."""
    return name.encode(errors="backslashreplace").decode()


__all__ = ["ImportReport", "LineError", "RunImport", "import_files"]

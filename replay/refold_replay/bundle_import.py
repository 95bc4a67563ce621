"""Import of a bundle: everything is checked before the store is touched, then the run comes in one transaction.

Rules of this module
- The checks are those of verify, on the lines: digests, order, versions, owners, types, transactions, reads.
- Tenant and run are those of the bundle: its digests begin with them. A run that is there already is never changed;
  one that was archived gets its events back.
- A bundle without its sensitive bodies is marked: `run.imported` is appended and says up to where they may be missing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from refold_replay.allowances import Allowances
from refold_replay.bundle import SIGNED, Line
from refold_replay.bundle_reader import LINE_MAX, BundleReader
from refold_replay.findings import Findings
from refold_replay.linking import Chain
from refold_replay.rules import Rules
from refold_store import jsontext
from refold_store.archived import archived
from refold_store.errors import BundleInvalid, Damaged, ReadOnlyStore, RefoldError, TransactionInvalid
from refold_store.events import RUN_ARCHIVED, RUN_FORKED, RUN_IMPORTED, Draft, Row, genesis
from refold_store.heads import RunHead
from refold_store.names import check_name
from refold_store.run import Run
from refold_store.schema import Schema
from refold_store.store import Store

BATCH = 1000
"""Rows inserted by one statement."""
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
    checked, names = _checked(path, public_key, line_max, progress)
    store.flush()
    run = Run(store, checked.run, checked.tenant, _opened(path, line_max).manifest.scope)
    found = run._run_id()
    outcome = "imported" if found is None else _compared(run, found, checked)
    if dry_run or outcome == "unchanged":
        return _outcome(checked, outcome)
    with store._committer.alone():
        store._backend.intern([*names, by])
        reader = _opened(path, line_max)
        for fingerprint, declaration in reader.schemas.items():
            store._backend.put_schema(fingerprint, declaration)
        if outcome == "restored":
            assert found is not None
            store._backend.restore_rows(found, _batches(store, reader, found, None))
        else:
            _bring_in(store, reader, by)
        run._head.forget()
    return _outcome(checked, outcome)


def _checked(
    path: str | os.PathLike[str], public_key: bytes | None, line_max: int, progress: Progress | None
) -> tuple[BundleReport, list[str]]:
    """The report of a sound bundle, and the names it holds."""
    reader = _opened(path, line_max)
    checks = _Checks(reader)
    for count, line in enumerate(reader.events(), 1):
        checks.take(line)
        if progress is not None and count % TELL_EVERY == 0:
            progress(line.seq, reader.manifest.until, reader.manifest.run)
    checks.end()
    _check_signature(reader, public_key)
    return _report(reader, "checked"), checks.names


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


def _outcome(report: BundleReport, outcome: str) -> BundleReport:
    return BundleReport(
        report.path, report.tenant, report.run, outcome, report.events, report.until, report.digest, report.redacted,
        report.public_key,
    )  # fmt: skip


# --- checking ------------------------------------------------------------------------------------


class _Nothing:
    """The past of a log that is read from its first event on."""

    def seq_of(self, key: str, version: int) -> int | None:
        return None

    def value(self, key: str) -> Any:
        raise KeyError(key)


class _Checks:
    """The checks of verify, fed with the lines of a bundle. Names stand for their own ids."""

    def __init__(self, reader: BundleReader) -> None:
        self.reader, self.manifest = reader, reader.manifest
        self._found = Findings(self.manifest.tenant, self.manifest.run)
        self._said = Allowances()
        self.names: list[str] = []
        """Every name met, at its id."""
        self._ids: dict[str, int] = {}
        self._last = 0
        self._name = self.manifest.genesis
        self._schemas = {one: Schema.from_declaration(self._declaration(text)) for one, text in reader.schemas.items()}
        start = genesis(self.manifest.tenant, self.manifest.genesis, self.manifest.scope)
        self._chain = Chain(
            self._found, self._text_of, seq=0, digest=start, recorded_at=0, versions={},
            allowed=_numbered(self.manifest.allowed, self._id),
        )  # fmt: skip
        self._rules = Rules(
            self._found, _Nothing(), text_of=self._text_of, schema_of=self._schema_of, schema=None, first=1, base=0,
            allowed=self._chain.allowed,
        )  # fmt: skip
        self._rows: deque[Any] = deque()
        self._links = self._chain.links(self._each())

    def take(self, line: Line) -> None:
        """Check one event. Raises BundleInvalid."""
        if line.seq <= self._last:
            raise self.reader.fail(f"event {line.seq} stands behind event {self._last}")
        self._last = line.seq
        self._rows.append(self._row(line))
        try:
            self._rules.judge(next(self._links))
        except (RefoldError, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            raise self.reader.fail(f"event {line.seq} cannot be judged: {error}", error) from error
        if self._chain.erased:
            raise self.reader.fail(f"event {line.seq} has no body, and nothing behind it says why")
        self._complain()
        self._passage(line)

    def end(self) -> None:
        """Check what only the whole shows. Raises BundleInvalid."""
        fail, manifest = self.reader.fail, self.manifest
        self._rules.end(self._last)
        self._rows.append(None)
        next(self._links, None)
        if self._last < manifest.until:
            self._chain.cross(self._last, manifest.until + 1, self._chain.digest)
        self._complain()
        if self._last > manifest.until or (self._last == manifest.until and self._chain.digest != manifest.digest):
            raise fail("the newest event is not the one the manifest names")
        if self._name != manifest.run:
            raise fail(f"the log is of run {self._name!r}, the manifest says {manifest.run!r}")
        self._said.redacted = max(self._said.redacted, manifest.until if manifest.redacted else 0)
        if _sorted(self._said) != _sorted(manifest.allowed):
            raise fail("the manifest tells of other erased or pruned events than the log")

    def _complain(self) -> None:
        if self._found.found:
            raise self.reader.fail(f"{self._found.found[0].damage}: {self._found.found[0].message}")

    def _passage(self, line: Line) -> None:
        """Forks give the log its next name; erasures and prunings are what the manifest said."""
        if line.kind == RUN_FORKED:
            refs = jsontext.decode((line.refs or "{}").encode())
            if refs.get("parent") != self._name or refs.get("at") != line.seq - 1:
                raise self.reader.fail(f"event {line.seq} forks {refs.get('parent')!r} at {refs.get('at')!r} here")
            self._name = str(refs.get("run"))
        try:
            self._said.add(_as_row(line, 0, lambda name: None if name is None else self._id(name)), self._text_of)
        except (ValueError, TypeError, KeyError, RefoldError) as error:
            raise self.reader.fail(f"event {line.seq} cannot be read: {error}", error) from error

    def _each(self) -> Iterator[Any]:
        while (row := self._rows.popleft()) is not None:
            yield row

    def _row(self, line: Line) -> tuple[Any, ...]:
        """An event as verify scans it: numbers first, -1 for none."""
        numbers = (line.txn, line.turn, line.version, line.seen_seq)
        actor, owner, key = (None if name is None else self._id(name) for name in (line.actor, line.owner, line.key))
        return (
            line.seq, *(-1 if number is None else number for number in numbers), line.recorded_at,
            -1 if line.clock is None else line.clock, -1 if line.trace_flags is None else line.trace_flags,
            line.kind, actor, owner, key, line.request_id, line.refs, line.trace_id, line.span_id, line.salt,
            line.body, line.commitment, line.digest,
        )  # fmt: skip

    def _id(self, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found

    def _text_of(self, number: int | None) -> str | None:
        return None if number is None else self.names[number]

    def _declaration(self, text: bytes) -> Any:
        try:
            return jsontext.parse(text)
        except RefoldError as error:
            raise self.reader.fail(f"a schema cannot be read: {error}", error) from error

    def _schema_of(self, fingerprint: str) -> Schema:
        found = self._schemas.get(fingerprint)
        if found is None:
            raise Damaged(f"the bundle does not hold schema {fingerprint}")
        return found


def _numbered(allowed: Allowances, number: Callable[[str], int]) -> Allowances:
    """The same with numbers for the names of keys."""
    found = Allowances(gaps=allowed.gaps, redacted=allowed.redacted)
    for (key, version), erasures in allowed.erasures.items():
        at = number(key) if isinstance(key, str) else None
        found.erasures[at, version] = [type(one)(one.seq, one.until, at, one.version) for one in erasures]
    return found


def _sorted(allowed: Allowances) -> tuple[Any, ...]:
    erasures = [one for found in allowed.erasures.values() for one in found]
    return sorted(erasures, key=lambda one: one.seq), allowed.gaps, allowed.redacted


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


def _compared(run: Run, number: int, checked: BundleReport) -> str:
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
        if checked.redacted:
            raise TransactionInvalid(f"run {run.name!r} was archived whole; this bundle lacks its sensitive values")
        return "restored"
    place = backend.at_seq(number, checked.until)
    if place is not None and place.seq == checked.until and bytes(place.digest).hex() == checked.digest:
        return "unchanged"
    raise TransactionInvalid(
        f"run {run.name!r} of tenant {run.tenant!r} is in this store with other events; nothing was imported "
        "(a bundle cannot take another name: its digests begin with it)"
    )


def _bring_in(store: Store, reader: BundleReader, by: str) -> None:
    manifest = reader.manifest
    opened_at = next(iter(_opened(reader.path, LINE_MAX).events())).recorded_at
    last = None
    if manifest.redacted:
        last = Draft(RUN_IMPORTED, by, refs=jsontext.encode({"redacted": manifest.until}).decode(), body=b"{}")
    store._backend.open_whole(
        manifest.tenant, manifest.scope, manifest.run, opened_at,
        lambda number: _batches(store, reader, number, last),
    )  # fmt: skip


def _batches(store: Store, reader: BundleReader, number: int, last: Draft | None) -> Iterator[list[Row]]:
    """The rows of a bundle as rows of a run, and behind them `last`."""
    manifest, ids = reader.manifest, store._backend.ids
    lines = reader.events()
    newest: Line | None = None

    def id_of(name: str | None) -> int | None:
        return None if name is None else ids[name]

    while batch := list(islice(lines, BATCH)):
        yield [_as_row(line, number, id_of) for line in batch]
        newest = batch[-1]
    if last is not None and newest is not None:
        head = RunHead(
            manifest.tenant, manifest.run, manifest.scope, number, seq=manifest.until, digest=manifest.digest,
            recorded_at=newest.recorded_at,
        )  # fmt: skip
        rows: list[Row] = []
        store._sealer.seal(head, last, None, store._sealer.now(None), rows)
        yield rows


def _as_row(line: Line, number: int, id_of: Callable[[str | None], int | None]) -> Row:
    return Row(
        number, line.seq, line.kind, id_of(line.actor), id_of(line.owner), line.txn, line.turn, id_of(line.key),
        line.version, line.seen_seq, line.recorded_at, line.clock, line.request_id, line.refs, line.salt, line.body,
        line.commitment, line.digest, line.trace_id, line.span_id, line.trace_flags,
    )  # fmt: skip

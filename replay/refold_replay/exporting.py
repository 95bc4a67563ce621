"""Export: a run as one file that verifies by itself.

Rules of this module
- Streaming: memory does not grow with the run. The file is written beside its final name, in gzip members of MEMBER
  lines, and takes the name when it is complete and on the disk: under that name stands a whole bundle or nothing.
- An export that was interrupted goes on behind its last complete member, if the run is still where it was.
- The same run gives the same bytes, but for a signature.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from refold_replay.allowances import SAYING, Allowances
from refold_replay.bundle import (
    SIGNED,
    Line,
    Manifest,
    end_line,
    event_line,
    manifest_line,
    packed,
    schema_line,
)
from refold_replay.bundle_reader import SUFFIX
from refold_replay.sensitive import Sensitive
from refold_store.erased import check_archived
from refold_store.errors import ConfigError, NoSuchRun, StoreUnavailable
from refold_store.events import RUN_FORKED, SCHEMA_DECLARED, Event, Row, commit
from refold_store.jsontext import decode
from refold_store.run import Run

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MEMBER = 10_000
"""Lines of one gzip member: what an interrupted export loses at most."""
NAME_MAX = 200
"""Bytes of a run's name in a file's name: below what file systems take."""
READ_BYTES = 1 << 20
"""Bytes unpacked at once."""

Progress = Callable[[int, int, str], None]


def file_name(name: str, ending: str = SUFFIX) -> str:
    """A name for a bundle's file: any run's name fits any file system, and leads out of no folder."""
    safe = quote(name, safe="")
    if len(safe) > NAME_MAX or not safe.strip("."):
        safe = f"{safe[: NAME_MAX - 40].strip('.')}-{sha256(name.encode()).hexdigest()[:32]}"
    return safe + ending


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written: the file, its size in bytes and SHA-256, and what it holds."""

    path: str
    run: str
    tenant: str
    until: int
    digest: str
    events: int
    schemas: int
    redacted: int
    """Events whose body gave way to its commitment, because they name a sensitive key."""
    size: int
    sha256: str
    public_key: str | None
    resumed: bool


def export(
    run: Run,
    path: str | os.PathLike[str],
    *,
    redact: bool = False,
    key: Ed25519PrivateKey | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write a run into a bundle at `path`, over a bundle that is there. A fork brings the past it shares.

    `redact`: what names a sensitive key goes without its body; its commitment stays, so that all still verifies.
    `key` signs it. Raises NoSuchRun, RunArchived, ConfigError (what is sensitive cannot be taken out),
    StoreUnavailable (the file cannot be written).
    """
    run.store.flush()
    info = run.info()
    check_archived(run)
    writer = _Writer(run, Path(path), redact=redact, until=info.head_seq)
    try:
        return writer.write(key, progress)
    except OSError as error:
        raise StoreUnavailable(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error


class _Writer:
    def __init__(self, run: Run, path: Path, *, redact: bool, until: int) -> None:
        self.run, self.path, self.redact, self.until = run, path, redact, until
        self.part = path.with_name(path.name + ".part")
        self.sensitive = Sensitive(run)
        self.hash = sha256()
        self.events = self.schemas = self.redacted = 0
        self.last = 0
        """The newest seq written."""

    def write(self, key: Ed25519PrivateKey | None, progress: Progress | None) -> ExportReport:
        head = self._head()
        resumed = self._resume(head)
        with self.part.open("r+b" if resumed else "wb") as file:
            file.seek(0, os.SEEK_END)
            if not resumed:
                self._put(file, head)
            self._events(file, progress)
            digest, public, signature = self.hash.digest(), None, None
            if key is not None:
                from refold_replay import signing  # needs the extra `sign`

                public, signature = signing.public_of(key), signing.sign(key, SIGNED + digest)
            file.write(packed(end_line(self.events, digest, public, signature)))
            file.flush()
            os.fsync(file.fileno())
        size, content = self.part.stat().st_size, self.part.open("rb")
        with content:
            whole = _digest_of(content)
        os.replace(self.part, self.path)
        _sync_folder(self.path.parent)
        return ExportReport(
            str(self.path), self.run.name, self.run.tenant, self.until, self.digest.hex(), self.events, self.schemas,
            self.redacted, size, whole, None if public is None else public.hex(), resumed,
        )  # fmt: skip

    def _put(self, file: IO[bytes], lines: list[bytes]) -> None:
        data = b"".join(lines)
        self.hash.update(data)
        file.write(packed(data))

    def _head(self) -> list[bytes]:
        """The lines before the events."""
        run, backend = self.run, self.run._backend
        number = run._run_id()
        if number is None:
            raise NoSuchRun(run=run.name, tenant=run.tenant)
        place = backend.at_seq(number, self.until)
        assert place is not None
        self.digest = bytes(place.digest)
        allowed = Allowances()
        for kind in SAYING:
            for row in backend.spanning_rows(backend.sql.by_kind, number, (kind,)):
                allowed.add(Row(*row), backend.text_of)
        forked = backend.spanning_rows(backend.sql.by_kind, number, (RUN_FORKED,))
        began = run.name if not forked else str(decode(Row(*forked[0]).refs.encode())["parent"])  # type: ignore[union-attr]
        redacted = self.redact or allowed.redacted > 0
        manifest = Manifest(run.tenant, run.name, run.scope, began, self.until, self.digest, redacted, allowed)
        lines = [manifest_line(manifest)]
        for fingerprint in self._fingerprints(number):
            rows = backend.query(backend.sql.schema_get, (fingerprint,))
            if rows:
                lines.append(schema_line(fingerprint, bytes(rows[0][0])))
        self.schemas = len(lines) - 1
        return lines

    def _fingerprints(self, number: int) -> list[str]:
        backend = self.run._backend
        rows = backend.spanning_rows(backend.sql.by_kind, number, (SCHEMA_DECLARED,))
        bodies = [decode(bytes(row.body)) for row in (Row(*row) for row in rows) if row.body is not None]
        return list(dict.fromkeys(str(body["fingerprint"]) for body in bodies))

    # --- events --------------------------------------------------------------------------------

    def _events(self, file: IO[bytes], progress: Progress | None) -> None:
        lines: list[bytes] = []
        for event in self.run.events(after=self.last, until=self.until):
            lines.append(event_line(self._line(event)))
            self.events += 1
            if len(lines) >= MEMBER:
                self._put(file, lines)
                lines = []
                if progress is not None:
                    progress(event.seq, self.until, self.run.name)
        if lines:
            self._put(file, lines)
        if progress is not None:
            progress(self.until, self.until, self.run.name)

    def _line(self, event: Event) -> Line:
        row = event.row
        salt, body, commitment = row.salt, row.body, row.commitment
        if self.redact and commitment is None and body is not None and self.sensitive.named(event):
            hidden = self.sensitive.left_in_refs(event)
            if hidden:
                raise ConfigError(
                    f"event {event.seq} keeps what is sensitive in refs.{hidden}, which its digest covers: "
                    "it cannot be taken out; export without redaction, or do not hand this run on"
                )
            salt, body, commitment = None, None, commit(bytes(row.salt or b""), body)
            self.redacted += 1
        return Line(
            row.seq, row.kind, event.actor, event.owner, row.txn, row.turn, event.key, row.version, row.seen_seq,
            row.recorded_at, row.clock, row.request_id, row.refs, salt, body, commitment, bytes(row.digest),
            row.trace_id, row.span_id, row.trace_flags,
        )  # fmt: skip

    # --- going on ------------------------------------------------------------------------------

    def _resume(self, head: list[bytes]) -> bool:
        """Take over the complete members of an interrupted export. False if there are none, or the run has moved."""
        if not self.part.exists():
            return False
        whole = 0
        first = True
        last: Any = None
        for data, end in _members(self.part):
            if first and data != b"".join(head):
                return False
            lines = data.splitlines(keepends=True)
            if not first:
                last = decode(lines[-1])
                if "seq" not in last:  # the end was written, the rename was not
                    break
                self.events += len(lines)
                self.redacted += sum(b'"commitment":' in line for line in lines) if self.redact else 0
                self.last = last["seq"]
            self.hash.update(data)
            first, whole = False, end
        if not whole:
            return False
        with self.part.open("r+b") as file:
            file.truncate(whole)
        return True


def _members(path: Path) -> Iterator[tuple[bytes, int]]:
    """(content, where it ends in the file) of each complete gzip member."""
    with path.open("rb") as file:
        at, waiting = 0, b""
        while True:
            unpack, content = zlib.decompressobj(31), b""
            while not unpack.eof:
                waiting = waiting or file.read(READ_BYTES)
                if not waiting:
                    return
                try:
                    content += unpack.decompress(waiting)
                except zlib.error:
                    return
                at += len(waiting) - len(unpack.unused_data)
                waiting = unpack.unused_data
            yield content, at


def _digest_of(file: IO[bytes]) -> str:
    found = sha256()
    while data := file.read(READ_BYTES):
        found.update(data)
    return found.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

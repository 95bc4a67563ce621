"""Export: a run as one file that verifies by itself.

Rules of this module
- Streaming: memory does not grow with the run. The file is written beside its final name, in gzip members of MEMBER
  lines, and takes the name when it is complete and on the disk: under that name stands a whole bundle or nothing.
- An export that was interrupted goes on behind the last member that holds what would be written there: what is left of
  it is compared, never believed. Two exports into one file at once: the second is refused.
- The same run gives the same bytes, but for a signature.
- It replaces nothing but an empty file or a bundle of the same run; with `keep` not even that one.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import quote

from refold_replay.allowances import KEPT_KINDS, SAYING, Allowances
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
from refold_replay.bundle_reader import SUFFIX, BundleReader
from refold_replay.replacing import GZIP, check_place_of_bundle, holds_lines, refusal
from refold_replay.sensitive import Sensitive
from refold_store.erased import check_archived
from refold_store.errors import ConfigError, NoSuchRun, RefoldError, StoreUnavailable
from refold_store.events import ERASED, PRUNED, RUN_FORKED, SCHEMA_DECLARED, Event, Row, commit
from refold_store.jsontext import decode
from refold_store.run import Run

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MEMBER = 10_000
"""Lines of one gzip member: what an interrupted export loses at most."""
MEMBER_BYTES = 16 << 20
"""A member ends after so many bytes of lines, too: they are held until it is written."""
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
    keep: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write a run into a bundle at `path`, over a bundle of the run that is there. A fork brings the past it shares.

    `redact`: what names a sensitive key goes without its body; its commitment stays, so that all still verifies.
    `key` signs it. `keep`: a bundle that is there stays if it holds the same lines, and is refused otherwise.
    Raises NoSuchRun, RunArchived, ConfigError (what is sensitive cannot be taken out, or another file is there),
    StoreUnavailable (the file cannot be written).
    """
    run.store.flush()
    info = run.info()
    check_archived(run)
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreUnavailable(f"{os.fspath(path)!r} is no file: a bundle does not replace it; choose another name")
    try:
        check_place_of_bundle(path, run.tenant, run.name, run.scope)
        writer = _Writer(run, Path(path), redact=redact, keep=keep, until=info.head_seq)
        return writer.write(key, progress)
    except OSError as error:
        raise StoreUnavailable(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error


def up_to_date(
    run: Run, path: str | os.PathLike[str], *, redact: bool = False, key: Ed25519PrivateKey | None = None
) -> bool:
    """Whether a bundle at `path` holds all of a run as it is now, redacted or not as wished, signed if by `key`."""
    try:
        reader = BundleReader(Path(path))
        told = reader.manifest
        head = run._backend.head(run._run_id() or 0)
        if head is None or (told.tenant, told.run, told.scope) != (run.tenant, run.name, run.scope):
            return False
        if (told.until, told.digest) != (head[0], bytes(head[1])) or told.redacted < redact:
            return False
        if told.redacted > redact and not any("redacted" in event.refs for event in run.events(["run.imported"])):
            return False
        if key is None:
            return True
        from refold_replay import signing  # needs the extra `sign`

        for _event in reader.events():
            pass  # the signature stands at the end
        return reader.end is not None and reader.end.public_key == signing.public_of(key)
    except (RefoldError, OSError):
        return False


class _Writer:
    def __init__(self, run: Run, path: Path, *, redact: bool, keep: bool, until: int) -> None:
        self.run, self.path, self.redact, self.keep, self.until = run, path, redact, keep, until
        self.part = path.with_name(path.name + ".part")
        self.sensitive = Sensitive(run)
        self.hash = sha256()
        self.events = self.schemas = self.redacted = 0

    def write(self, key: Ed25519PrivateKey | None, progress: Progress | None) -> ExportReport:
        with _Part(self.part) as part:
            self._put(part, self._head())
            self._events(part, progress)
            digest, public, signature = self.hash.digest(), None, None
            if key is not None:
                from refold_replay import signing  # needs the extra `sign`

                public, signature = signing.public_of(key), signing.sign(key, SIGNED + digest)
            part.put(end_line(self.events, digest, public, signature))
            size, whole = part.done()
            self._take_place(digest)
        _sync_folder(self.path.parent)
        return ExportReport(
            str(self.path), self.run.name, self.run.tenant, self.until, self.digest.hex(), self.events, self.schemas,
            self.redacted, size, whole, None if public is None else public.hex(), part.resumed,
        )  # fmt: skip

    def _take_place(self, digest: bytes) -> None:
        """Give the finished file its name. The part is this export's alone, so no other one does so meanwhile."""
        if self.keep and self.path.exists() and self.path.stat().st_size:
            os.unlink(self.part)
            if not holds_lines(self.path, digest):
                raise refusal(self.path, f"bundle of just what run {self.run.name!r} holds")
            return
        check_place_of_bundle(self.path, self.run.tenant, self.run.name, self.run.scope)
        os.replace(self.part, self.path)

    def _put(self, part: _Part, lines: list[bytes]) -> None:
        data = b"".join(lines)
        self.hash.update(data)
        part.put(data)

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
            for row in self._of_kind(number, kind):
                if row.seq <= self.until:
                    allowed.add(row, backend.text_of)
        forked = self._of_kind(number, RUN_FORKED)
        began = run.name if not forked else str(decode((forked[0].refs or "{}").encode())["parent"])
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
        rows = self._of_kind(number, SCHEMA_DECLARED)
        bodies = [decode(bytes(row.body)) for row in rows if row.body is not None and row.seq <= self.until]
        return list(dict.fromkeys(str(body["fingerprint"]) for body in bodies))

    def _of_kind(self, number: int, kind: int) -> list[Row]:
        backend = self.run._backend
        return [Row(*row) for row in backend.spanning_rows(backend.sql.by_kind, number, (kind,))]

    # --- events --------------------------------------------------------------------------------

    def _events(self, part: _Part, progress: Progress | None) -> None:
        lines: list[bytes] = []
        held = last = 0
        for event in self.run.events(until=self.until):
            lines.append(event_line(self._line(event)))
            self.events += 1
            held, last = held + len(lines[-1]), event.seq
            if len(lines) >= MEMBER or held >= MEMBER_BYTES:
                self._put(part, lines)
                lines, held = [], 0
                if progress is not None:
                    progress(event.seq, self.until, self.run.name)
        if lines:
            self._put(part, lines)
        self._check_still(last)
        if progress is not None:
            progress(self.until, self.until, self.run.name)

    def _check_still(self, last: int) -> None:
        """That nothing was taken out of the run meanwhile: the manifest would not tell of it."""
        number = self.run._run_id() or 0
        taken = [row for kind in (ERASED, PRUNED) for row in self._of_kind(number, kind) if row.seq > self.until]
        if taken or last != self.until:
            raise StoreUnavailable(
                f"run {self.run.name!r} changed while it was exported: values were erased, reads pruned, or it was "
                "archived; export it again"
            )

    def _line(self, event: Event) -> Line:
        row = event.row
        salt, body, commitment = row.salt, row.body, row.commitment
        may = self.redact and commitment is None and body is not None and row.kind not in KEPT_KINDS
        if body is not None and may and self.sensitive.named(event):
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


class _Part:
    """The file as it grows. What an interrupted export left in it stays as far as it is what would be written."""

    def __init__(self, path: Path) -> None:
        self.file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            _lock(self.file)
            if not os.path.samestat(os.fstat(self.file.fileno()), os.stat(path)):
                raise BlockingIOError  # another export has finished just now, and this is its bundle
        except (BlockingIOError, FileNotFoundError):
            self.file.close()
            raise StoreUnavailable(f"another export writes {str(path)!r}; wait for it, or name another file") from None
        start = self.file.read(len(GZIP))
        if start != GZIP[: len(start)]:
            self.file.close()
            raise refusal(path, "bundle that an interrupted export left")
        self._taking = True
        self._kept = 0
        """Bytes that were taken over."""

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_error: object) -> None:
        self.file.close()

    @property
    def resumed(self) -> bool:
        """Whether anything was taken over."""
        return self._kept > 0

    def put(self, data: bytes) -> None:
        """Add a gzip member, unless it stands here already."""
        end = _member_end(self.file, self._kept, data) if self._taking else 0
        if end:
            self._kept = end
            return
        self._cut()
        self.file.write(packed(data))

    def done(self) -> tuple[int, str]:
        """Bring all of it to the disk. Returns size and SHA-256."""
        self._cut()
        self.file.flush()
        os.fsync(self.file.fileno())
        size = self.file.tell()
        self.file.seek(0)
        return size, _digest_of(self.file)

    def _cut(self) -> None:
        """Cut off what is not taken over."""
        if self._taking:
            self._taking = False
            self.file.seek(self._kept)
            self.file.truncate()


def _lock(file: IO[bytes]) -> None:
    """Take the file for this export alone. Raises BlockingIOError if another one has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # a file system without locks: the second export is not noticed there
        return


def _member_end(file: IO[bytes], at: int, data: bytes) -> int:
    """Where a gzip member that starts at a place and holds just this ends; 0 if none stands there whole."""
    file.seek(at)
    unpack, waiting, got = zlib.decompressobj(31), b"", 0
    while not unpack.eof:
        waiting = waiting or file.read(READ_BYTES)
        if not waiting:
            return 0
        try:
            piece = unpack.decompress(waiting, READ_BYTES)
        except zlib.error:
            return 0
        waiting = unpack.unconsumed_tail
        if piece != data[got : got + len(piece)]:
            return 0
        got += len(piece)
    return file.tell() - len(unpack.unused_data) if got == len(data) else 0


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

"""The links of a log: digests, dense seqs, dense versions, growing times. One tight pass, the first level of verify.

Rules of this module
- Every digest is made again from the stored bytes and from names as text; the previous digest is the stored one, so
  that each altered row is named, and not all rows after it.
- The header comes in the parts `events` gives; the names' part is made once for all rows that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any

from refold_replay.allowances import Allowances
from refold_replay.findings import Findings
from refold_store.errors import Damaged
from refold_store.events import KINDS, NO_REST, pack_names, pack_numbers, pack_rest

Row = tuple[Any, ...]
SALT_BYTES = 16
"""Salt and body are hashed as one text: only its length says where the salt ends."""
ERASED_MAX = 100
"""Rows without a body remembered: their first places tell what happened."""
_FRONTS_MAX = 100_000
"""Second parts of headers remembered."""


class Chain:
    """Where a pass stands: the last seq, digest and time, and the newest version of each key."""

    __slots__ = ("_fronts", "_text_of", "allowed", "count", "digest", "erased", "findings", "gaps", "recorded_at",
                 "seq", "versions")  # fmt: skip

    def __init__(
        self,
        findings: Findings,
        text_of: Callable[[int | None], str | None],
        *,
        seq: int,
        digest: bytes | None,
        recorded_at: int,
        versions: dict[int, int],
        allowed: Allowances | None = None,
    ) -> None:
        self.findings = findings
        self.seq = seq
        self.count = 0
        """Rows seen."""
        self.digest = digest
        """The digest before the first row; None if that row is missing."""
        self.recorded_at = recorded_at
        self.versions = versions
        """Key id to newest version."""
        self.erased: list[Row] = []
        """Rows whose body gave way to its commitment, and nothing in the log says why; ERASED_MAX at most."""
        self.allowed = allowed or Allowances()
        self.gaps: set[int] = set()
        """Where gaps begin that the log itself explains."""
        self._text_of = text_of
        self._fronts: dict[tuple[Any, ...], bytes] = {}

    def links(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Pass rows through, in seq order, each checked against the one before it."""
        digest = self.digest
        last, last_at = self.seq, self.recorded_at
        versions, fronts = self.versions, self._fronts
        pack, sha, findings = pack_numbers, sha256, self.findings
        count = 0
        for row in rows:
            count += 1
            (
                seq, txn, turn, version, seen_seq, recorded_at, clock, flags, kind, actor, owner, key,
                request_id, refs, trace_id, span_id, salt, body, commitment, stored,
            ) = row  # fmt: skip
            try:
                if seq != last + 1:
                    digest = self.cross(last, seq, digest)
                if recorded_at <= last_at:
                    self._time(seq, recorded_at, last_at)
                if kind <= 2:
                    if version != versions.get(key, 0) + 1:
                        self._version(row)
                    versions[key] = version
                if txn < -1 or turn < -1 or version < -1 or seen_seq < -1 or clock < -1 or flags < -1:
                    findings.add(seq, "column", "a number of an event is never negative")
                front = fronts.get((kind, actor, owner, key))
                if front is None:
                    front = self._front(kind, actor, owner, key)
                if refs is None and request_id is None and trace_id is None and span_id is None:
                    rest = NO_REST
                else:
                    rest = pack_rest(request_id, refs, trace_id, span_id)
                if commitment is None:
                    if len(salt) != SALT_BYTES or body == b"":
                        findings.add(seq, "column", f"a salt has {SALT_BYTES} bytes, and a body at least two")
                    committed = sha(salt if body is None else salt + body).digest()
                else:
                    committed = self._commitment(row)
                if digest is not None:
                    head = pack(seq, txn, turn, version, seen_seq, recorded_at, clock, flags)
                    if sha(digest + head + front + rest + committed).digest() != stored:
                        stored = self._broken(seq, stored)
            except Exception as error:  # a column of another type, a name that is gone: name the row, go on
                self._unfit(seq, error)
                recorded_at = recorded_at if type(recorded_at) is int else last_at
                stored = stored if type(stored) is bytes else None
            digest, last, last_at = stored, seq, recorded_at
            yield row
        self.digest, self.seq, self.recorded_at, self.count = digest, last, last_at, count

    def _front(self, kind: int, actor: int | None, owner: int | None, key: int | None) -> bytes:
        if not 0 < kind < len(KINDS):
            raise Damaged(f"there is no kind of event number {kind}")
        made = pack_names(kind, self._text_of(actor), self._text_of(owner), self._text_of(key))
        if len(self._fronts) < _FRONTS_MAX:
            self._fronts[kind, actor, owner, key] = made
        return made

    # --- what may be wrong -------------------------------------------------------------------

    def cross(self, last: int, seq: int, digest: bytes | None) -> bytes | None:
        """The digest before `seq`, which does not follow `last`: known if the log says that reads were pruned."""
        gap = self.allowed.across(last + 1, seq, digest)
        if gap is not None:
            self.gaps.update(first for first in self.allowed.gaps if last < first < seq)
            return gap.digest
        self._gap(last, seq)
        return None

    def _gap(self, last: int, seq: int) -> None:
        if seq > last + 1:
            missing = f"event {last + 1} is" if seq == last + 2 else f"events {last + 1} to {seq - 1} are"
            self.findings.add(last + 1, "density", f"{missing} missing")
        else:
            self.findings.add(seq, "density", f"comes after {last}")

    def _time(self, seq: int, recorded_at: int, last_at: int) -> None:
        self.findings.add(seq, "time", f"recorded_at {recorded_at} is not after the {last_at} of the event before")

    def _version(self, row: Row) -> None:
        seq, version, key = row[0], row[3], row[11]
        expected = self.versions.get(key, 0) + 1
        self.findings.add(seq, "version", f"key {self._name(key)} gets version {version}, but {expected} comes next")

    def _commitment(self, row: Row) -> bytes:
        """A row whose body was erased keeps its commitment."""
        seq, salt, body, commitment = row[0], row[16], row[17], row[18]
        if salt is not None or body is not None:
            self.findings.add(seq, "body", "has a commitment beside salt or body; it stands in their place")
        if len(self.erased) < ERASED_MAX and not self.allowed.erased(seq, row[8], row[11], row[3]):
            self.erased.append(row)
        return bytes(commitment)

    def _broken(self, seq: int, stored: object) -> object:
        """Returns what the next row's digest may be held against."""
        message = "the stored bytes do not give the stored digest: this row, or the one before it, was changed"
        self.findings.add(seq, "digest", message)
        return stored if type(stored) is bytes else None

    def _unfit(self, seq: Any, error: Exception) -> None:
        if isinstance(error, Damaged):
            self.findings.add(seq, "name" if "name" in str(error) else "column", str(error))
        else:
            self.findings.add(seq, "column", f"a column holds what it cannot hold ({type(error).__name__}: {error})")

    def _name(self, key: int | None) -> str:
        try:
            return repr(self._text_of(key))
        except Exception:  # the name is gone: its id will do
            return f"number {key}"

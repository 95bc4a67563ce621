"""What the log says about erased content: by whom, when, why; and which updates a folded value lacks.

Rules of this module
- An erased row has its commitment in place of salt and body. The `value.erased` behind it in the same log says who
  erased it; a row that a redacted bundle brought says so by its `run.imported`.
- An erased update folds as if it had not been; an erased whole value leaves nothing to fold onto.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from refold_store.archived import archived
from refold_store.errors import ValueErased
from refold_store.events import DELETED, ERASED, RUN_IMPORTED, Row, document
from refold_store.fold import WHOLE
from refold_store.reads import Read, as_time

if TYPE_CHECKING:
    from refold_store.backend import Backend, Found
    from refold_store.run import Run


@dataclass(frozen=True, slots=True)
class Erasure:
    """Who erased something, when and why. `redacted`: it never came in, a bundle without it was imported."""

    by: str
    at: datetime
    reason: str | None
    seq: int
    redacted: bool = False

    def __str__(self) -> str:
        how = "left out of the bundle, imported by" if self.redacted else "erased by"
        return f"{how} {self.by} at {_text(self.at)}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Gap:
    """A version whose update a folded value lacks."""

    version: int
    seq: int
    erasure: Erasure | None


def refs_of(row: Row) -> dict[str, Any]:
    """What an event refers to, decoded."""
    found: dict[str, Any] = {} if row.refs is None else document(row.refs.encode())
    return found


def erasure_of(backend: Backend, run: int, key: int | None, version: int | None, seq: int) -> Erasure | None:
    """What erased the event at a seq: the first `value.erased` behind it that covers it."""
    for row in _rows(backend, run, ERASED):
        until = refs_of(row).get("until", 0)
        if row.seq > seq and until >= seq and row.key in (None, key) and row.version in (None, version):
            reason = None if row.body is None else document(row.body).get("reason")
            return Erasure(backend.text_of(row.actor) or "", as_time(row.recorded_at), reason, row.seq)
    for row in _rows(backend, run, RUN_IMPORTED):
        if row.seq > seq and refs_of(row).get("redacted", 0) >= seq:
            return Erasure(backend.text_of(row.actor) or "", as_time(row.recorded_at), None, row.seq, redacted=True)
    return None


def error_of(run: Run, key: str, found: Found) -> ValueErased:
    """The error that says a version was erased."""
    run_id = run._run_id()
    said = None if run_id is None else erasure_of(run._backend, run_id, found.key, found.version, found.seq)
    how = "was erased" if said is None else f"was {said}"
    return ValueErased(
        f"version {found.version} of {key!r} {how}",
        key=key,
        version=found.version,
        by=None if said is None else said.by,
        at=None if said is None else _text(said.at),
        reason=None if said is None else said.reason,
    )


def own_erasure(read: Read) -> Erasure | None:
    """What erased the very version of a read; its value may be readable all the same, from the updates before."""
    found, run_id = read._found, read._run._run_id()
    if found is None or found.body is not None or run_id is None:
        return None
    return erasure_of(read._run._backend, run_id, found.key, found.version, found.seq)


def without(read: Read) -> list[Gap]:
    """The erased updates that the value of a read lacks, oldest first: of a key that stores updates."""
    from refold_store.keeping_sql import KEEPING_SQL  # a read that nobody asks this of needs none of it

    found, run = read._found, read._run
    run_id = run._run_id()
    if found is None or found.kind == DELETED or run_id is None or (found.body or b"").startswith(WHOLE):
        return []
    backend = run._backend
    if not _rows(backend, run_id, ERASED) and not _rows(backend, run_id, RUN_IMPORTED):
        return []
    asked = KEEPING_SQL[backend.name].gaps
    if not backend.spanning(asked, run_id, (found.key,), found.seq):
        return []
    gaps: list[Gap] = []
    for seq, version, kind, body in backend.since(run_id, found.key, 0, found.seq):
        if kind == DELETED or (body is not None and "value" in document(body)):
            gaps = []
        elif body is None:
            gaps.append(Gap(version, seq, erasure_of(backend, run_id, found.key, version, seq)))
    return gaps


def check_archived(run: Run) -> None:
    """Raises RunArchived if a run's events were moved out: it has a head, and no schema."""
    run_id = run._run_id()
    if run_id is not None and (error := archived(run._backend, run_id, run.name)) is not None:
        raise error


def _rows(backend: Backend, run: int, kind: int) -> list[Row]:
    """A run's events of one kind, its ancestors' included."""
    return [Row(*row) for row in backend.spanning_rows(backend.sql.by_kind, run, (kind,))]


def _text(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

"""The appender turns requests into rows and gets them into the log, whatever other processes do meanwhile.

Rules of this module
- A head is a guess, proven by the insert at `seq + 1`. When another process got in between, heads are read again;
  from the second try on under the run's lock.
- A refusal never rests on an outdated guess: the head is read again before it counts.
- One caller's refusal, conflict or error never fails its neighbours; it becomes that request's `error`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from refold_store import jsontext
from refold_store.backend import Backend
from refold_store.batching import groups_of, known, names_of, repeats
from refold_store.errors import Damaged, RefoldError, Refused, SchemaChanged, StoreUnavailable, TransactionInvalid
from refold_store.events import RUN_OPENED, SCHEMA_DECLARED, WRITTEN, Draft, Row, Trace
from refold_store.fold import body_text
from refold_store.heads import CONTENDED_COMMITS, Heads, RunHead
from refold_store.keeping import HeadMoved
from refold_store.keyframes import Changes, advance, settle
from refold_store.plan import Change, plan_unit, refs_text, refusal
from refold_store.repeating import earlier
from refold_store.requests import Op, Request, Resume, TurnStart, Unit, Written
from refold_store.schema import Schema
from refold_store.sealer import Sealer
from refold_store.turn_errors import InterruptInvalid, TurnInvalid

TRIES_MAX = 1000
"""Rounds of one commit against other processes; each of them stored something, so it ends long before."""


class Appender:
    """Commits batches of requests. Used under the committer's lock."""

    def __init__(
        self, backend: Backend, heads: Heads, sealer: Sealer, note: Callable[[RunHead, Schema, Draft], None]
    ) -> None:
        self.backend = backend
        self.heads = heads
        self.sealer = sealer
        self._note = note
        self._stored_schemas: set[str] = set()
        self._refusals: list[tuple[RunHead, Schema, Draft]] = []
        self._epoch = backend.epoch

    def write_one(self, head: RunHead, schema: Schema, op: Op, turn: int | None, trace: Trace) -> Written | None:
        """Append one whole value on a head that is known and undisputed. None if anything is not as plain as that."""
        at = head.keys.get(op.name)
        prepared, ids = op.prepared, self.backend.ids
        if (
            at is None
            or head.contended
            or self.backend.epoch != self._epoch
            or not head.loaded
            or head.fingerprint != schema.fingerprint
            or schema.invariants
            or op.writer not in ids
            or op.key.owner not in ids
            or (op.expected is not None and op.expected != at.version)
            or op.based_on is not None
            or prepared is None
        ):
            return None
        body = body_text(basis=op.basis, update=None, value=prepared.value_text)
        version = at.version + 1
        draft = Draft(
            WRITTEN, op.writer, op.key.owner, op.name, version, None, turn, None, refs_text(op, None), body, None, trace
        )
        rows: list[Row] = []
        try:
            self.sealer.seal(head, draft, None, self.sealer.now(None), rows)
            self.backend.append(rows, durable=True)
        except HeadMoved:
            head.forget()
            head.contended = CONTENDED_COMMITS
            return None
        except BaseException:
            head.forget()
            raise
        at.version, at.seq, at.absent, at.writer, at.text = version, head.seq, False, op.writer, None
        if at.since_bytes > 0:
            at.frame_bytes, at.since_bytes = 0, -1
        return Written(op.name, version, head.seq, head.name)

    def commit(self, requests: Sequence[Request], *, durable: bool) -> None:
        """Give every request its results or its error."""
        todo = list(requests)
        for _try in range(TRIES_MAX):
            again: list[Request] = []
            self._check_epoch()
            for group, exclusive in groups_of(todo):
                again += self._safely(group, durable=durable, exclusive=exclusive)
            if not again:
                return
            todo = again
        for request in todo:
            request.error = Damaged("a commit lost every round against other writers; run `refold verify`")

    def _safely(self, group: list[Request], *, durable: bool, exclusive: bool) -> list[Request]:
        """One attempt. A group that fails for another reason than the database is tried one by one."""
        try:
            for request in group:
                self._make_ready(request)
            return self._attempt(group, durable=durable, exclusive=exclusive)
        except BaseException as error:
            if not isinstance(error, Exception):
                for request in group:
                    request.error = error
                raise
            if self.backend.epoch != self._epoch and not isinstance(error, StoreUnavailable):
                return group
            if len(group) == 1 or isinstance(error, StoreUnavailable):
                for request in group:
                    request.error = error
                return []
        again: list[Request] = []
        for request in group:
            again += self._safely([request], durable=durable, exclusive=exclusive)
        return again

    def _check_epoch(self) -> None:
        """After a lost connection nothing remembered is sure any more: a crash may have taken what no sync covered."""
        if self.backend.epoch != self._epoch:
            self._epoch = self.backend.epoch
            self._stored_schemas.clear()
            self.heads.forget_all()

    def _make_ready(self, request: Request) -> None:
        """Names, run and schema get their rows before the commit, so that a rollback cannot take them back."""
        head, ids = request.head, self.backend.ids
        for item in request.items:
            if isinstance(item, Unit):
                for op in item.ops:
                    if op.name not in ids or op.writer not in ids or op.key.owner not in ids:
                        self.backend.intern(names_of(request))
                if not all(known(draft, ids) for draft in item.tail):
                    self.backend.intern(names_of(request))
            elif not known(item, ids):
                self.backend.intern(names_of(request))
        for draft in request.carried:
            if not known(draft, ids):
                self.backend.intern(names_of(request))
        if not head.loaded:
            self.heads.load(head)
        if request.opener is not None and not head.seq:
            self.backend.intern(names_of(request))
            if head.id is None:
                opened_at = self.sealer.now(request.clock)
                head.id = self.backend.create_run(head.tenant, head.scope, head.name, opened_at)
                if self.backend.parent_of(head.id, writer=True) is not None:
                    self.heads.load(head)  # forked by another process a moment ago
        schema = request.schema
        if schema.fingerprint != head.fingerprint and schema.fingerprint not in self._stored_schemas:
            self.backend.put_schema(schema.fingerprint, schema.declaration_text)
            self._stored_schemas.add(schema.fingerprint)

    def _attempt(self, requests: list[Request], *, durable: bool, exclusive: bool) -> list[Request]:
        """One transaction. Returns the requests that must be tried again."""
        heads = [requests[0].head] if len(requests) == 1 else list({id(r.head): r.head for r in requests}.values())
        rows: list[Row] = []
        changes: Changes = []
        later: list[Request] = []
        self._refusals = []
        stored = False
        try:
            if exclusive:
                with self.backend.exclusive([head.id for head in heads if head.id is not None]):
                    for head in heads:
                        self.heads.load(head)
                    later = self._build(requests, rows, changes)
                    self._append(rows, durable=durable)
            else:
                later = self._build(requests, rows, changes)
                self._append(rows, durable=durable)
            stored = True
        except HeadMoved:
            for head in heads:
                head.contended = CONTENDED_COMMITS
            return requests
        finally:
            for head in heads:
                head.fresh = False
                if not stored:
                    head.forget()
                elif head.contended:
                    head.contended -= 1
        for request in requests:
            dropped = request.new_run and isinstance(request.error, Refused)
            if not dropped and not any(request is one for one in later):
                request.carried = []
        for refused in self._refusals:
            self._note(*refused)
        if self.backend.epoch == self._epoch:
            settle(self.backend, changes)
        for head in heads:
            head.trim()
        return later

    def _append(self, rows: list[Row], *, durable: bool) -> None:
        if self.backend.epoch != self._epoch:
            raise HeadMoved
        if rows:
            self.backend.append(rows, durable=durable)

    def _build(self, requests: list[Request], rows: list[Row], changes: Changes) -> list[Request]:
        later: list[Request] = []
        seen: set[tuple[int, str]] = set()
        for request in requests:
            if repeats(request, seen):
                later.append(request)
            else:
                self._apply(request, rows, changes)
        return later

    def _apply(self, request: Request, rows: list[Row], changes: Changes) -> None:
        """Turn one request into rows on its run's head; a refusal becomes its error."""
        head, seal = request.head, self.sealer.seal
        request.error, request.results = None, []
        if not head.loaded:
            self.heads.load(head)
        now = self.sealer.now(request.clock)
        rows_before, changes_before = len(rows), len(changes)
        was_open = head.seq > 0
        if not was_open:
            if request.opener is None:
                if any(isinstance(item, Resume) for item in request.items):
                    request.error = InterruptInvalid(run=head.name, missing=[], unknown=[], expired=[])
                return
            self._open(request, request.opener, now, rows)
        for draft in request.carried:
            seal(head, draft, None, now, rows)
        if was_open and (request.new_run or (request.opens and not self._may_open(request))):
            what = "exists already; nothing was written" if request.new_run else "is already open; write to it instead"
            request.error = TransactionInvalid(f"run {head.name!r} {what}")
            return
        for item in request.items:
            if isinstance(item, (TurnStart, Resume)):
                if not self._turned(request, item, now, rows):
                    return
            elif isinstance(item, Draft):
                seal(head, item, None, now, rows)
            elif not self._unit(request, item, now, rows, changes):
                if request.new_run:
                    del rows[rows_before:], changes[changes_before:]
                    head.forget()
                return

    def _turned(self, request: Request, item: TurnStart | Resume, now: int, rows: list[Row]) -> bool:
        """Begin a turn, or answer its interrupts. False if that may not be."""
        head = request.head
        try:
            if isinstance(item, TurnStart):
                drafts = _turns().begin(self.backend, head, item)
            else:
                answered = _turns().resume(self.backend, head, item, now)
                drafts = [] if answered is None else [answered]
        except RefoldError as error:
            if self._may_be_outdated(head, rows):
                self.heads.load(head)
                return self._turned(request, item, now, rows)
            request.error = error
            return False
        for draft in drafts:
            self.sealer.seal(head, draft, None, now, rows)
        return True

    def _may_be_outdated(self, head: RunHead, rows: list[Row]) -> bool:
        """Whether the head is a guess that may be read again: not in this commit yet, and no row rests on it."""
        return not head.fresh and not any(row[0] == head.id for row in rows)

    def _may_open(self, request: Request) -> bool:
        """Whether initial values can still come: their opener was refused before, and nothing is written yet."""
        head = request.head
        if not request.items or head.id is None or self.heads.written(head):
            return False
        first = Row(*self.backend.writer_query(self.backend.sql.events, (head.id, 0, 1))[0])
        return self.backend.text_of(first.actor, writer=True) == request.opener

    def _open(self, request: Request, opener: str, now: int, rows: list[Row]) -> None:
        head = request.head
        self.sealer.seal(head, Draft(RUN_OPENED, opener, body=b"{}", clock=request.clock), None, now, rows)
        self._declare(request, opener, now, rows)
        for draft in request.opening:
            self.sealer.seal(head, draft, None, now, rows)

    def _declare(self, request: Request, actor: str, now: int, rows: list[Row]) -> None:
        head, fingerprint = request.head, request.schema.fingerprint
        draft = Draft(SCHEMA_DECLARED, actor, body=jsontext.encode({"fingerprint": fingerprint}), clock=request.clock)
        self.sealer.seal(head, draft, None, now, rows)
        head.schemas.append((head.seq, fingerprint))

    # --- one write or transaction ------------------------------------------------------------

    def _unit(self, request: Request, unit: Unit, now: int, rows: list[Row], changes: Changes) -> bool:
        """Plan and seal one unit. False if it was refused and the request ends with it."""
        head = request.head
        unit.blamed = None
        try:
            planned = self._planned(request, unit, now, rows)
        except Refused as error:
            if self._may_be_outdated(head, rows):
                self.heads.load(head)
                return self._unit(request, unit, now, rows, changes)
            return self._refused(request, unit, error, now, rows)
        except TurnInvalid as error:
            if self._may_be_outdated(head, rows):
                self.heads.load(head)
                return self._unit(request, unit, now, rows, changes)
            request.error = error
            return False
        except Exception as error:
            request.error = error
            return False
        if planned and isinstance(planned[0], Written):
            request.results.append(planned)  # type: ignore[arg-type]  # one list holds one kind
            return True
        txn = head.seq + 1 if unit.whole and unit.ops else None
        done = []
        for change in planned:
            assert isinstance(change, Change)
            self.sealer.seal(head, change.draft, txn, now, rows)
            advance(change, head.seq, request.schema)
            changes.append((head, change))
            done.append(Written(change.op.name, change.at.version, head.seq, head.name))
        unit.tail_seqs.clear()
        for draft in unit.tail:
            self.sealer.seal(head, draft, txn, now, rows)
            unit.tail_seqs.append(head.seq)
            if unit.fence:
                _turns().note_end(self.backend, head, draft)
        request.results.append(done)
        return True

    def _planned(self, request: Request, unit: Unit, now: int, rows: list[Row]) -> Sequence[Change] | list[Written]:
        head, schema = request.head, request.schema
        if unit.request_id is not None and (found := earlier(self.backend, head, unit)) is not None:
            return found
        if unit.fence:
            _turns().check_fence(self.backend, head, unit.fence)
        if unit.unless_live:
            _turns().check_unlocked(self.backend, head)
        if not unit.ops:
            return []
        if head.fingerprint != schema.fingerprint:
            self._move_schema(request, unit, now, rows)
        return plan_unit(self.heads, head, schema, unit)

    def _move_schema(self, request: Request, unit: Unit, now: int, rows: list[Row]) -> None:
        head, fingerprint = request.head, request.schema.fingerprint
        op = unit.ops[0]
        if any(fingerprint == left for _seq, left in head.schemas):
            assert head.fingerprint is not None
            raise SchemaChanged(
                run=head.name, held=fingerprint, in_force=head.fingerprint, key=op.name, writer=op.writer
            )
        dropped = [name for name in self.heads.written(head) if name not in request.schema]
        if dropped:
            raise SchemaChanged(
                run=head.name,
                held=fingerprint,
                in_force=head.fingerprint or "",
                dropped=dropped,
                key=op.name,
                writer=op.writer,
            )
        self._declare(request, op.writer, now, rows)

    def _refused(self, request: Request, unit: Unit, error: Refused, now: int, rows: list[Row]) -> bool:
        op = unit.blamed or next((op for op in unit.ops if op.name == error.key), unit.ops[0])
        unit.blamed = op
        update = op.prepared.text if op.prepared is not None else None
        draft = refusal(error, writer=op.writer, key=op.name, owner=op.key.owner, update=update, unit=unit)
        draft.turn = unit.turn if op.turn is None else op.turn
        if request.record_refusals:
            self.sealer.seal(request.head, draft, None, now, rows)
            request.results.append([])
            return True
        request.error = error
        if not request.new_run:
            self._refusals.append((request.head, request.schema, draft))
        return False


def _turns() -> ModuleType:
    """What only turns need: it loads with the first of them, so that a lookup does not pay for it."""
    from refold_store import turnheads

    return turnheads

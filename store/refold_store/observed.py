"""Runs and transactions that report what they do: the same calls, answers and errors, and an `Observer` beside them.

Rules of this module
- `Store.run` hands these out only while the store has an observer: without one, nothing here is even imported.
- The span of a call is current while it runs, so its context is the one that its events store.
- A refusal is counted where it is raised, once, whatever it passes through afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import DEBUG
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict

from refold_store.errors import Conflict, Damaged, Refused, StoreUnavailable
from refold_store.events import Draft, Trace
from refold_store.reads import Read
from refold_store.requests import Op, Written
from refold_store.run import Run
from refold_store.schema import Schema
from refold_store.telemetry import LINKS_MAX, ActiveSpan, Observer, current_trace, link_to, observer_for, trace_of
from refold_store.transaction import Transaction

if TYPE_CHECKING:
    from typing import Unpack

    from refold_store.store import Store
    from refold_store.writing import BasedOn


class WriteOptions(TypedDict, total=False):
    """The optional arguments of a lone write."""

    basis: str | None
    expected_version: int | None
    based_on: BasedOn | None
    request_id: str | None
    turn: int | None


def _reasons(kind: type[Refused] = Refused) -> set[str]:
    return {kind.code}.union(*map(_reasons, kind.__subclasses__()))


REASONS = frozenset(_reasons())
"""Every reason of a refusal: the values that the label `reason` can take, with `other`."""


class Call:
    """One write, delete or transaction while it runs."""

    __slots__ = ("_kind", "_observer", "_run", "_span", "_started", "accepted", "ops", "writer")

    def __init__(self, observer: Observer, run: ObservedRun, kind: str, writer: str | None = None) -> None:
        self._observer = observer
        self._run = run
        self._kind = kind
        self._span: ActiveSpan | None = None
        self.writer = writer
        self.accepted: Sequence[Written] = ()
        self.ops: Mapping[str, Op] = {}
        """What a transaction asked for, by key."""

    def begin(self) -> None:
        """Start the span, if spans are on. A transaction does so at the begin of its block."""
        if self._observer.tracer is not None and self._span is None:
            self._observer.guard(self._begin)

    def __enter__(self) -> Call:
        if self._observer.tracer is not None:
            self.begin()
        if self._observer.instruments is not None:
            self._started = perf_counter()
        return self

    def _begin(self) -> None:
        assert self._observer.tracer is not None
        name = "refold.transaction" if self._kind == "transaction" else "refold.write"
        self._span = ActiveSpan(self._observer.tracer, name, self._run.attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.refused(error)
        else:
            if self._observer.instruments is not None:
                self._observer.guard(self._count, perf_counter() - self._started)
            if self._run.logger is not None:
                self._observer.guard(self._log)
        if self._span is not None:
            self.end(error)

    def end(self, error: BaseException | None) -> None:
        """End the span, if there is one."""
        if self._span is not None:
            if not isinstance(error, GeneratorExit):  # a coroutine dropped by another context cannot give it back
                self._span.leave()
            self._observer.guard(self._end, self._span, error)

    def _end(self, span: ActiveSpan, error: BaseException | None) -> None:
        facts: dict[str, Any] = {"refold.kind": self._kind}
        failure = None
        if error is not None:
            failure = facts["error.type"] = type(error).__name__
            if isinstance(error, Refused):
                failure = facts["refold.refused.reason"] = _reason(error)
                facts |= {"refold.key": error.key or "", "refold.writer": error.writer or ""}
        elif self._kind == "transaction":
            facts["refold.keys"] = len(self.accepted)
            if self.accepted:
                facts["refold.seq"] = self.accepted[-1].seq
        else:
            (one,) = self.accepted
            facts |= {"refold.key": one.key, "refold.version": one.version, "refold.seq": one.seq}
            facts["refold.writer"] = self.writer
            if (owner := self._run.owner_of(one.key)) is not None:
                facts["refold.owner"] = owner
        span.end(facts, (), failure)

    def _count(self, taken_s: float) -> None:
        observer, number = self._observer, len(self.accepted)
        if not number or observer.instruments is None or observer.writes is None or observer.deletes is None:
            return
        deletes = number if self._kind == "delete" else sum(op.prepared is None for op in self.ops.values())
        observer.deletes.add(deletes)
        observer.writes.add(number - deletes)
        observer.instruments.duration.record(taken_s, observer.labels[self._kind])

    def _log(self) -> None:
        logger = self._run.logger
        shows = getattr(logger, "is_enabled_for", None)
        if shows is not None and not shows(DEBUG):
            return
        debug, trace_id = logger.debug, self._trace_id()
        event, writer = "state.deleted" if self._kind == "delete" else "state.written", self.writer
        for one in self.accepted:
            if (op := self.ops.get(one.key)) is not None:
                event, writer = "state.deleted" if op.prepared is None else "state.written", op.writer
            debug(event, key=one.key, version=one.version, seq=one.seq, writer=writer, trace_id=trace_id)

    def refused(self, error: BaseException) -> None:
        """Report what kept a write from being accepted."""
        self._observer.guard(self._refused, error)

    def _refused(self, error: BaseException) -> None:
        observer, log = self._observer, self._run.logger
        if isinstance(error, Refused):
            reason = _reason(error)
            if observer.instruments is not None:
                observer.instruments.refusals.add(1, {"backend": observer.backend, "reason": reason})
                if isinstance(error, Conflict):
                    observer.instruments.conflicts.add(1, {"backend": observer.backend})
            if log is not None:
                moved = {"expected": error.expected, "version": error.actual} if isinstance(error, Conflict) else {}
                log.warning(
                    "state.refused",
                    key=error.key,
                    writer=error.writer,
                    reason=reason,
                    trace_id=self._trace_id(),
                    **moved,
                )
        elif log is not None and isinstance(error, StoreUnavailable | Damaged):
            log.error("write.failed", error=type(error).__name__, trace_id=self._trace_id())

    def _trace_id(self) -> str | None:
        trace: Trace = current_trace() if self._span is None else trace_of(self._span.context)
        return None if trace.trace_id is None else trace.trace_id.hex()


def _reason(error: Refused) -> str:
    return error.reason if error.reason in REASONS else "other"


class ObservedRun(Run):
    """A run that reports its writes and reads."""

    def __init__(self, observer: Observer, store: Store, name: str, tenant: str) -> None:
        super().__init__(store, name, tenant)
        self._observer = observer
        self.attributes = {"refold.tenant": tenant, "refold.run": name}
        self.logger: Any = None
        if observer.logger is not None:
            observer.guard(self._bind)

    def _bind(self) -> None:
        self.logger = self._observer.logger.bind(run=self.name, tenant=self.tenant, backend=self._observer.backend)

    def owner_of(self, key: str) -> str | None:
        """The declared owner of a key, if the store itself holds the schema."""
        return None if self._fixed is None else self._fixed.key(key).owner

    def write_state(self, key: str, value: object, *, writer: str, **options: Unpack[WriteOptions]) -> Written:
        with Call(self._observer, self, "write", writer) as call:
            made = super().write_state(key, value, writer=writer, **options)
            call.accepted = (made,)
        return made

    async def awrite_state(self, key: str, value: object, *, writer: str, **options: Unpack[WriteOptions]) -> Written:
        with Call(self._observer, self, "write", writer) as call:
            made = await super().awrite_state(key, value, writer=writer, **options)
            call.accepted = (made,)
        return made

    def delete_state(self, key: str, *, writer: str, **options: Unpack[WriteOptions]) -> Written:
        with Call(self._observer, self, "delete", writer) as call:
            made = super().delete_state(key, writer=writer, **options)
            call.accepted = (made,)
        return made

    async def adelete_state(self, key: str, *, writer: str, **options: Unpack[WriteOptions]) -> Written:
        with Call(self._observer, self, "delete", writer) as call:
            made = await super().adelete_state(key, writer=writer, **options)
            call.accepted = (made,)
        return made

    def open(
        self, *, opened_by: str, initial: Mapping[str, object] | None = None, basis: str | None = None
    ) -> list[Written]:
        with Call(self._observer, self, "transaction", opened_by) as call:
            call.accepted = made = super().open(opened_by=opened_by, initial=initial, basis=basis)
        return made

    def transaction(self, *, request_id: str | None = None, turn: int | None = None) -> Transaction:
        return ObservedTransaction(self, self._observer, request_id, turn)

    def read_state(self, key: str, *, reader: str, turn: int | None = None) -> Read:
        if self._observer.read_tracer is None:
            return super().read_state(key, reader=reader, turn=turn)
        with ReadCall(self._observer, self, reader) as call:
            read = super().read_state(key, reader=reader, turn=turn)
            call.seen = (read,)
        return read

    def read_many(self, keys: Sequence[str], *, reader: str, turn: int | None = None) -> dict[str, Read]:
        if self._observer.read_tracer is None:
            return super().read_many(keys, reader=reader, turn=turn)
        with ReadCall(self._observer, self, reader) as call:
            reads = super().read_many(keys, reader=reader, turn=turn)
            call.seen = tuple(reads.values())
        return reads

    def _note(self, read: Read, draft: Draft, schema: Schema) -> Read:
        noted = super()._note(read, draft, schema)
        if noted.recorded:
            self._observer.count_read()
        return noted


class ReadCall:
    """One read while it runs, with a span that links to the writes it saw."""

    __slots__ = ("_observer", "_reader", "_run", "_span", "seen")

    def __init__(self, observer: Observer, run: ObservedRun, reader: str) -> None:
        self._observer = observer
        self._run = run
        self._reader = reader
        self._span: ActiveSpan | None = None
        self.seen: tuple[Read, ...] = ()

    def __enter__(self) -> ReadCall:
        self._observer.guard(self._begin)
        return self

    def _begin(self) -> None:
        assert self._observer.read_tracer is not None
        self._span = ActiveSpan(self._observer.read_tracer, "refold.read", self._run.attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._span is not None:
            self._span.leave()
            self._observer.guard(self._end, self._span, error)

    def _end(self, span: ActiveSpan, error: BaseException | None) -> None:
        facts: dict[str, Any] = {"refold.kind": "read"}
        if error is not None:
            facts["error.type"] = type(error).__name__
        else:
            facts["refold.reader"] = self._reader
        if len(self.seen) == 1:
            (read,) = self.seen
            facts |= {"refold.key": read.key, "refold.version": read.version, "refold.seq": read.seq}
        elif self.seen:
            facts["refold.keys"] = len(self.seen)
        if self.seen:
            facts["refold.seen_seq"] = self.seen[0].seen_seq
        links = [link_to(*read.trace) for read in self.seen[:LINKS_MAX]]
        span.end(facts, [one for one in links if one is not None], facts.get("error.type"))


class ObservedTransaction(Transaction):
    """A transaction whose span lasts from the begin of its block to its commit."""

    def __init__(self, run: ObservedRun, observer: Observer, request_id: str | None, turn: int | None) -> None:
        super().__init__(run, request_id, turn)
        self._call = Call(observer, run, "transaction")

    def _add(
        self,
        key: str,
        value: object,
        writer: str,
        basis: str | None,
        expected: int | None,
        based_on: BasedOn | None,
    ) -> None:
        try:
            super()._add(key, value, writer, basis, expected, based_on)
        except Refused as error:
            self._call.refused(error)
            raise

    def __enter__(self) -> Transaction:
        self._call.begin()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # the block failed; whoever raised has reported it
            super().__exit__(kind, error, trace)
            self._call.end(error)
            return
        with self._call:
            super().__exit__(kind, error, trace)
            self._accept()

    async def __aenter__(self) -> Transaction:
        self._call.begin()
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await super().__aexit__(kind, error, trace)
            self._call.end(error)
            return
        with self._call:
            await super().__aexit__(kind, error, trace)
            self._accept()

    def _accept(self) -> None:
        self._call.accepted, self._call.ops = self.written, self._ops


__all__ = ["REASONS", "ObservedRun", "ObservedTransaction", "current_trace", "observer_for"]

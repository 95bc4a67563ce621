"""What a store tells the outside: spans and metrics through OpenTelemetry's API, log lines through structlog.

Rules of this module
- Never a value: names, versions, seqs, counts, reasons, class names. No text of an exception, since it may quote one.
- Labels of metrics come from fixed sets: backend, kind, reason.
- Nothing here fails a call: what a logger, an instrument or a processor raises is reported once, then dropped.
- Only the API is imported, and only here. Without an SDK no span is made; that is looked up when a store is opened or
  `instrument` is called, never on a write.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics, trace
from opentelemetry.context import attach, detach
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import (
    NoOpTracer,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
    set_span_in_context,
)

from refold_store.errors import ConfigError
from refold_store.events import NO_TRACE, Trace

if TYPE_CHECKING:
    from refold_store.committer import Committer

SCOPE = "refold"
"""Name of the tracer, of the meter and of the logger."""
LOG_VARIABLE = "REFOLD_LOG"
"""The least level of log lines on standard error, for a process that has not configured structlog."""
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
DURATION_BUCKETS_S = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
)  # fmt: skip
"""From a RAM disk (tens of µs) over a disk's sync (ms) to a lock that is waited for (s)."""
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Up to the committer's BATCH_MAX."""
LINKS_MAX = 128
"""Links of one read span; the SDK drops more than that in silence."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a store may report. Each signal also needs somebody who takes it, see `docs/telemetry.md`.

    `read_spans` adds a span to each read (25 to 100 µs). Without providers and logger, the process's own are used.
    """

    spans: bool = True
    read_spans: bool = False
    metrics: bool = True
    logs: bool = True
    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
    logger: Any = None
    """A structlog logger."""


def observer_for(backend: str, committer: Committer, settings: Telemetry | None) -> Observer | None:
    """An observer of one store. Without settings: of what the process has set up, None if that is nothing."""
    asked = settings or Telemetry()
    tracer = _tracer(asked)
    instruments = _instruments_of(asked)
    logger = _logger(asked)
    if settings is None and tracer is None and instruments is None and logger is None:
        return None
    if instruments is not None:
        instruments.watch(backend, committer)
    return Observer(backend, tracer, asked.read_spans, instruments, logger)


def current_trace() -> Trace:
    """The trace context of the current span, as events store it. Flags are kept whole (03 occurs)."""
    context = trace.get_current_span().get_span_context()
    return trace_of(context) if context.is_valid else NO_TRACE


def trace_of(context: SpanContext) -> Trace:
    """A span's context as events store it."""
    return Trace(context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"), int(context.trace_flags))


def link_to(trace_id: bytes | None, span_id: bytes | None, flags: int | None) -> SpanContext | None:
    """The span an event names, to link to; None if it names none."""
    if trace_id is None or span_id is None:
        return None
    return SpanContext(
        int.from_bytes(trace_id, "big"),
        int.from_bytes(span_id, "big"),
        is_remote=True,
        trace_flags=TraceFlags(flags or 0),
    )


class Observer:
    """Spans, metrics and log lines of one store. Threads share it; it holds no lock and no state of a call."""

    def __init__(
        self,
        backend: str,
        tracer: Tracer | None,
        read_spans: bool,
        instruments: Instruments | None,
        logger: Any,
    ) -> None:
        self.backend = backend
        self.tracer = tracer
        self.read_tracer = tracer if read_spans else None
        self.instruments = instruments
        self.logger = logger
        self.labels = {kind: {"backend": backend, "kind": kind} for kind in ("write", "delete", "transaction")}
        self.writes = None if instruments is None else instruments.tally("refold.writes", self.labels["write"])
        self.deletes = None if instruments is None else instruments.tally("refold.writes", self.labels["delete"])
        self.reads = None if instruments is None else instruments.tally("refold.reads", {"backend": backend})
        self._label = {"backend": backend}
        self._broken = False

    def guard(self, action: Callable[..., object], *args: object) -> None:
        """Run a piece of reporting; what it raises is told once and never reaches the caller."""
        try:
            action(*args)
        except Exception as error:
            if not self._broken:
                self._broken = True
                logging.getLogger("refold.telemetry").warning(
                    "telemetry failed (%s in %s); writes go on, further failures of this store are not reported",
                    type(error).__qualname__,
                    getattr(action, "__name__", "a handler"),
                )

    def log(self, level: str, event: str, **facts: object) -> None:
        """One log line that belongs to no call."""
        if self.logger is not None:
            self.guard(self._log, level, event, facts)

    def _log(self, level: str, event: str, facts: dict[str, object]) -> None:
        getattr(self.logger, level)(event, backend=self.backend, **facts)

    def count_read(self) -> None:
        """A read was put on the record."""
        if self.reads is not None:
            self.reads.add(1)

    # --- what the committer and the backend report -------------------------------------------

    def committed(self, requests: int) -> None:
        """The committer's thread committed this many requests at once."""
        if self.instruments is not None:
            self.guard(self.instruments.batch_size.record, requests, self._label)

    def flush_failed(self, error: BaseException) -> None:
        """Reads and refusals that waited could not be stored; the next caller is told, they are tried again."""
        self.log("error", "flush.failed", error=type(error).__name__)

    def reconnected(self) -> None:
        """A lost connection to the database is back."""
        self.log("warning", "store.reconnected")


class ActiveSpan:
    """A span that is current from `__init__` to `leave`. It records no exception: its text may quote a value."""

    __slots__ = ("_token", "context", "span")

    def __init__(self, tracer: Tracer, name: str, attributes: dict[str, str]) -> None:
        self.span: Span = tracer.start_span(name, attributes=attributes)
        self.context = self.span.get_span_context()
        self._token = attach(set_span_in_context(self.span))

    def leave(self) -> None:
        """Make the caller's span current again."""
        detach(self._token)

    def end(self, facts: dict[str, Any], links: Iterable[SpanContext], failure: str | None) -> None:
        """Set what is known by now and end. `failure` is a reason or the name of a class."""
        span = self.span
        if span.is_recording():
            if facts:
                span.set_attributes(facts)
            for context in links:
                span.add_link(context)
            if failure is not None:
                span.set_status(Status(StatusCode.ERROR, failure))
        span.end()


class Tally:
    """A count that many threads add to: without a lock, at a hundredth of the price of the SDK's counters."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self._ones = itertools.count()

    def add(self, number: int) -> None:
        """Add; each step is one call into C, so no other thread gets in between."""
        for _ in range(number):
            next(self._ones)

    @property
    def total(self) -> int:
        """All that was added so far."""
        return int(repr(self._ones)[len("count(") : -1])


class Instruments:
    """The metrics of all stores that report to one meter provider."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE, _version())
        self._tallies: dict[str, list[Tally]] = {"refold.writes": [], "refold.reads": []}
        for metric, unit, says in (
            ("refold.writes", "{write}", "Accepted writes and deletes, each key for itself"),
            ("refold.reads", "{read}", "Recorded reads; one of several keys counts once"),
        ):
            meter.create_observable_counter(metric, [partial(self._totals, metric)], unit, says)
        self.refusals = meter.create_counter("refold.refusals", "{refusal}", "Writes that were not accepted")
        self.conflicts = meter.create_counter("refold.conflicts", "{refusal}", "Refusals for an outdated version")
        self.duration = meter.create_histogram(
            "refold.write.duration",
            "s",
            "From the call (or the end of a transaction's block) to the durable answer, accepted writes only",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self.batch_size = meter.create_histogram(
            "refold.commit.batch_size",
            "{request}",
            "Queued requests in one commit; a caller who finds the committer idle commits alone, not counted here",
            explicit_bucket_boundaries_advisory=BATCH_BUCKETS,
        )
        meter.create_observable_up_down_counter(
            "refold.committer.queue", [self._queued], "{request}", "Requests that wait for the committer"
        )
        meter.create_observable_up_down_counter(
            "refold.pending_reads", [self._pending], "{read}", "Reads and refusals not yet appended"
        )
        self._lock = threading.Lock()
        self._watched: list[tuple[str, weakref.ref[Committer]]] = []

    def tally(self, metric: str, labels: dict[str, str]) -> Tally:
        """The count of a metric under these labels."""
        with self._lock:
            for found in self._tallies[metric]:
                if found.labels == labels:
                    return found
            made = Tally(labels)
            self._tallies[metric] = [*self._tallies[metric], made]
            return made

    def _totals(self, metric: str, _options: CallbackOptions) -> Iterator[Observation]:
        for tally in self._tallies[metric]:
            if total := tally.total:
                yield Observation(total, tally.labels)

    def watch(self, backend: str, committer: Committer) -> None:
        """Report this committer's queue as long as it lives."""
        with self._lock:
            kept = [(name, ref) for name, ref in self._watched if ref() not in (None, committer)]
            self._watched = [*kept, (backend, weakref.ref(committer))]

    def _queued(self, _options: CallbackOptions) -> Iterator[Observation]:
        return self._sums(lambda committer: committer.queued)

    def _pending(self, _options: CallbackOptions) -> Iterator[Observation]:
        return self._sums(lambda committer: committer.pending)

    def _sums(self, size: Callable[[Committer], int]) -> Iterator[Observation]:
        sums: dict[str, int] = {}
        for backend, ref in self._watched:
            committer = ref()
            if committer is not None:
                sums[backend] = sums.get(backend, 0) + size(committer)
        for backend, number in sums.items():
            yield Observation(number, {"backend": backend})


_made: weakref.WeakKeyDictionary[MeterProvider, Instruments] = weakref.WeakKeyDictionary()
"""One set a provider: a second instrument of the same name would be reported as a mistake."""
_making = threading.Lock()


def _instruments_of(settings: Telemetry) -> Instruments | None:
    if not settings.metrics:
        return None
    provider = settings.meter_provider or metrics.get_meter_provider()
    if _is_of_the_api(provider):
        return None
    with _making:
        if provider not in _made:
            _made[provider] = Instruments(provider)
        return _made[provider]


def _tracer(settings: Telemetry) -> Tracer | None:
    provider = settings.tracer_provider or trace.get_tracer_provider()
    if not settings.spans or _is_of_the_api(provider):
        return None
    tracer = provider.get_tracer(SCOPE, _version())
    return None if isinstance(tracer, NoOpTracer) else tracer


def _is_of_the_api(provider: object) -> bool:
    """Whether a provider only stands in for an SDK: the API's own proxies and no-ops."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _version() -> str | None:
    try:
        return metadata.version(SCOPE)
    except metadata.PackageNotFoundError:
        return None


# --- log lines -------------------------------------------------------------------------------


class _StandardError:
    """Writes rendered lines. It has no lock that a fork could leave closed."""

    def msg(self, line: str) -> None:
        sys.stderr.write(line + "\n")

    debug = info = warning = error = msg


def _logger(settings: Telemetry) -> Any:
    """The given logger, the process's structlog, or lines on standard error if REFOLD_LOG asks for them."""
    if not settings.logs:
        return None
    if settings.logger is not None:
        return settings.logger.bind()
    level = os.environ.get(LOG_VARIABLE, "").lower()
    if level and level not in LEVELS:
        raise ConfigError(f"{level!r} is not a level of log lines; one of: {', '.join(LEVELS)}", where=LOG_VARIABLE)
    if "structlog" not in sys.modules and not level:
        return None
    import structlog

    if structlog.is_configured():
        return structlog.get_logger(SCOPE).bind()
    return _own_logger(structlog, LEVELS[level]) if level else None


def _own_logger(structlog: Any, level: int) -> Any:
    return structlog.wrap_logger(
        _StandardError(),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    ).bind()

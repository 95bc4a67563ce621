"""Durable single writes: plain, with telemetry on, and on a long run."""

from __future__ import annotations

import importlib
import io
import logging
from collections.abc import Callable, Iterator

import orjson

from bench import peers
from bench.lab import RAM, SQLITE, SYNC_1MS, Lab, ratio_check
from bench.measure import Side
from bench.registry import Check, Line, benchmark
from bench.subject import Refold, filled, subjects
from bench.values import key_names

AIMS = {(SQLITE, RAM): 1.5, (SQLITE, SYNC_1MS): 1.06, ("postgresql", RAM): 1.3}
WAL_AIM_BYTES = 1_000
SYNC_SLACK = 0.02  # a checkpoint of the database has syncs of its own, spread over the writes of the count
STRUCTLOG_AIMS = {SQLITE: 1.7, "postgresql": 1.35}
SPAN_AIMS = {SQLITE: 3.6, "postgresql": 2.1}
LONG_AIM = 1.2
SHORT_EVENTS = 1_000
COUNTED = 100


def writing_peers(lab: Lab, backend: str) -> list[peers.LangGraph | peers.EventSourcing]:
    """Peers that write; a LangGraph state of one channel, its best case."""
    if not lab.options.peers:
        return []
    if backend == SQLITE:
        langgraph: peers.LangGraph = peers.LangGraphSqlite(lab.fresh_file("langgraph"), 1)
        sourcing: peers.EventSourcing = peers.EventSourcingSqlite(lab.fresh_file("eventsourcing"), key_names(10))
    else:
        langgraph = peers.LangGraphPostgres(lab.fresh_database("langgraph"), 1)
        sourcing = peers.EventSourcingPostgres(lab.fresh_database("eventsourcing"), key_names(10))
    lab.closing.callback(langgraph.close)
    lab.closing.callback(sourcing.close)
    return [langgraph, sourcing]


def count_checks(backend: str, counts: dict[str, float]) -> list[Check]:
    """Counts with aims: one sync, and on PostgreSQL one round trip and 1 kB of WAL."""
    checks = [Check("syncs", counts["syncs"], 1, slack=SYNC_SLACK)]
    if backend != SQLITE:
        checks.append(Check("round trips", counts["round trips"], 1))
        checks.append(Check("WAL bytes", counts["WAL bytes"], WAL_AIM_BYTES))
    return checks


@benchmark("write", "durable write, everything on but instrumentation")
def write(lab: Lab) -> Iterator[Line]:
    """One durable write against the floor's, at each place."""
    for backend in lab.options.backends:
        with subjects(lab, backend) as (ours, floor):
            others = writing_peers(lab, backend)
            side = Side("refold", ours.write, size=ours.size)
            sides = [Side("floor", floor.write), side, *(Side(peer.name, peer.write) for peer in others)]
            for place in lab.places():
                with lab.place(place):
                    times, counts = lab.compare(sides), lab.count(side)
                line = Line("durable write", backend, place, counts=counts)
                line.compared(times, "refold", "floor", AIMS.get((backend, place)))
                line.peers = {peer.name: times.ratio(peer.name, "floor").median for peer in others}
                if place == RAM:
                    line.checks += count_checks(backend, counts)
                yield line


@benchmark("write-structlog", "durable write with structlog on")
def write_structlog(lab: Lab) -> Iterator[Line]:
    """With a debug line a write, rendered as JSON into memory, set up as structlog's page on performance shows."""
    structlog = importlib.import_module("structlog")
    sink = io.BytesIO()
    structlog.configure(
        cache_logger_on_first_use=True,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ],
        logger_factory=structlog.BytesLoggerFactory(sink),
    )
    yield from instrumented(
        lab, "write with structlog on", STRUCTLOG_AIMS, "log lines", lambda: sink.getvalue().count(b"\n")
    )


def instrumented(lab: Lab, words: str, aims: dict[str, float], what: str, made: Callable[[], int]) -> Iterator[Line]:
    """Writes against the floor on the RAM disk, with the instrumentation that the process has set up.

    `made` tells how much of `what` it has made so far: a ratio counts only if a write makes some.
    """
    for backend in lab.options.backends:
        if RAM not in lab.options.places:
            return
        with subjects(lab, backend) as (ours, floor):
            times = lab.compare([Side("floor", floor.write), Side("refold", ours.write)])
            before = made()
            ours.write(COUNTED)
            line = Line(words, backend, RAM, counts={what: (made() - before) / COUNTED})
            if not line.counts[what]:
                line.note = f"not measured: a write made no {what}"
            line.compared(times, "refold", "floor", aims[backend] if line.counts[what] else None)
            yield line


@benchmark("write-otel", "durable write with an OpenTelemetry SDK span")
def write_otel(lab: Lab) -> Iterator[Line]:
    """With an SDK that samples everything and drops what it exports."""
    trace = importlib.import_module("opentelemetry.trace")
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")

    class Dropping(export.SpanExporter):  # type: ignore[misc,name-defined]  # loaded by name: only this benchmark needs it
        """Takes spans and forgets them."""

        taken = 0

        def export(self, spans: object) -> object:
            """Counts them."""
            Dropping.taken += len(spans)  # type: ignore[arg-type]  # a sequence
            return export.SpanExportResult.SUCCESS

    provider = sdk.TracerProvider()
    provider.add_span_processor(export.BatchSpanProcessor(Dropping()))
    trace.set_tracer_provider(provider)

    def taken() -> int:
        provider.force_flush()
        return Dropping.taken

    yield from instrumented(lab, "write with an SDK span", SPAN_AIMS, "spans", taken)
    provider.shutdown()


@benchmark("write-no-span", "without an SDK no span is made")
def write_no_span(lab: Lab) -> Iterator[Line]:
    """Counts what OpenTelemetry's API is asked for when no SDK is set."""
    trace = importlib.import_module("opentelemetry.trace")
    asked = [0]

    def counting(real: object) -> object:
        def start(*args: object, **named: object) -> object:
            asked[0] += 1
            return real(*args, **named)  # type: ignore[operator]  # a method of the API

        return start

    for tracer in (trace.NoOpTracer, trace.ProxyTracer):
        for method in ("start_span", "start_as_current_span"):
            setattr(tracer, method, counting(getattr(tracer, method)))
    for backend in lab.options.backends:
        with subjects(lab, backend) as (ours, _floor):
            asked[0] = 0
            ours.write(100)
            ours.read_and_flush(100)
            yield Line("writes and reads without an SDK", backend, RAM, [Check("spans", asked[0], 0)])


@benchmark("write-long", "write cost at the long run's length against 1,000 events")
def write_long(lab: Lab) -> Iterator[Line]:
    """The same write on a short and on a long run."""
    if RAM not in lab.options.places:
        return
    for backend in lab.options.backends:
        stores: list[Refold] = [filled(lab, backend, events) for events in (SHORT_EVENTS, lab.options.scale)]
        times = lab.compare([Side(name, store.write) for name, store in zip(("short", "long"), stores, strict=True)])
        line = Line(f"write at {lab.options.scale:,} events", backend, RAM)
        line.checks.append(ratio_check(times, "long", "short", LONG_AIM, what="x at 1,000 events"))
        line.microseconds = {name: times.microseconds(name) for name in ("short", "long")}
        yield line
        for store in stores:
            store.close()

"""Spans, metrics and log lines say what happened, never a value, and never fail a call."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import psycopg
import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import LogCapture

from refold import (
    Conflict,
    NotOwner,
    Owner,
    Refused,
    Run,
    StateSchema,
    StoreUnavailable,
    TransactionInvalid,
    add,
    open_store,
    scope,
)
from refold_store import committer as committer_module
from refold_store.telemetry import LINKS_MAX, Telemetry, link_to

SECRET = "sentinel-7f3a"
Open = Callable[..., Any]


class ClaimState(StateSchema):
    """A claim's state."""

    routing: Annotated[dict[str, str], Owner("triage")]
    total: Annotated[int, Owner("billing"), add]
    policy: Annotated[str, Owner("triage"), scope("tenant")]


class Watched:
    """Everything one store reports, kept in memory."""

    def __init__(self) -> None:
        self.exporter, self.reader, self.lines = InMemorySpanExporter(), InMemoryMetricReader(), LogCapture()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.logger = structlog.wrap_logger(None, processors=[structlog.processors.add_log_level, self.lines])

    def telemetry(self, **options: Any) -> Telemetry:
        given = {"tracer_provider": self.tracers, "meter_provider": self.meters, "logger": self.logger}
        return Telemetry(**given | options)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def points(self, name: str) -> dict[tuple[str, ...], Any]:
        """Data points of a metric by the values of their labels, in the order of the labels' names."""
        data = self.reader.get_metrics_data()
        found = [
            point
            for resource in (data.resource_metrics if data else ())
            for part in resource.scope_metrics
            for metric in part.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return {
            tuple(str(value) for _name, value in sorted((point.attributes or {}).items())): point for point in found
        }

    def counts(self, name: str) -> dict[tuple[str, ...], int]:
        return {labels: point.value for labels, point in self.points(name).items()}

    def everything(self) -> str:
        data = self.reader.get_metrics_data()
        return (
            "".join(span.to_json() for span in self.spans) + repr(self.lines.entries) + (data.to_json() if data else "")
        )


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Real SDK providers that keep what they get, and a structlog logger that keeps its lines."""
    made = Watched()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def facts(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def ids(span: ReadableSpan) -> tuple[bytes, bytes, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big"), int(context.trace_flags)


def linked(span: ReadableSpan) -> list[tuple[bytes, bytes]]:
    contexts = [link.context for link in span.links]
    return [(one.trace_id.to_bytes(16, "big"), one.span_id.to_bytes(8, "big")) for one in contexts]


def refused(run: Run, kind: type[Refused] = NotOwner, **options: Any) -> None:
    options = {"writer": "nobody"} | options
    with pytest.raises(kind):
        run.write_state("routing", {"ruleset": SECRET}, **options)


def test_a_write_has_a_span_whose_context_is_in_its_event(open_new: Open, watched: Watched) -> None:
    """The event of a write names the trace, the span and the flags of its `refold.write` span."""
    run = open_new(ClaimState, telemetry=watched.telemetry()).run("clm-1", tenant="acme")
    written = run.write_state("routing", {"ruleset": "QC"}, writer="triage")
    (span,) = watched.spans
    event = next(run.events(kinds=["state.written"]))
    assert (event.trace_id, event.span_id, event.trace_flags) == ids(span)
    assert span.name == "refold.write"
    assert facts(span) == {
        "refold.tenant": "acme",
        "refold.run": "clm-1",
        "refold.kind": "write",
        "refold.key": "routing",
        "refold.version": 1,
        "refold.seq": written.seq,
        "refold.writer": "triage",
        "refold.owner": "triage",
    }


def test_a_refusal_is_an_error_span_with_its_reason_and_names_its_event(open_new: Open, watched: Watched) -> None:
    """A refused write's span says why in one word, and the `state.refused` event lies in that trace."""
    run = open_new(ClaimState, telemetry=watched.telemetry()).run("clm-1")
    run.write_state("routing", {"ruleset": "QC"}, writer="triage")
    refused(run)
    refused(run, Conflict, writer="triage", expected_version=0)
    early, late = watched.spans[1:]
    assert [facts(span)["refold.refused.reason"] for span in (early, late)] == ["owner", "conflict"]
    assert {span.status.status_code for span in (early, late)} == {trace.StatusCode.ERROR}
    events = list(run.events(kinds=["state.refused"]))
    assert [(event.trace_id, event.span_id, event.trace_flags) for event in events] == [ids(early), ids(late)]


def test_a_transaction_has_one_span_that_is_current_in_its_block(open_new: Open, watched: Watched) -> None:
    """All events of a transaction lie in its span; what the block does meanwhile is its child."""
    run = open_new(ClaimState, telemetry=watched.telemetry()).run("clm-1")
    with run.transaction() as tx:
        watched.tracers.get_tracer("caller").start_span("thinking").end()
        tx.write_state("routing", {"ruleset": "QC"}, writer="triage")
        tx.write_state("total", 3, writer="billing")
    child, span = watched.spans
    assert span.name == "refold.transaction"
    assert (facts(span)["refold.keys"], facts(span)["refold.seq"]) == (2, tx.written[-1].seq)
    assert child.parent == span.get_span_context()
    assert {(e.trace_id, e.span_id) for e in run.events(kinds=["state.written"])} == {ids(span)[:2]}
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_refusal_inside_a_transaction_is_counted_once(open_new: Open, watched: Watched) -> None:
    """A refusal that ends the block, one that the block survives, and one at the commit: three in all."""
    run = open_new(ClaimState, telemetry=watched.telemetry()).run("clm-1")

    def go_on_after_a_refusal() -> None:
        with run.transaction() as tx:
            with pytest.raises(NotOwner):
                tx.write_state("total", 1, writer="triage")
            tx.write_state("total", 1, writer="billing")

    with pytest.raises(NotOwner), run.transaction() as tx:
        tx.write_state("total", 1, writer="triage")
    with pytest.raises(TransactionInvalid):
        go_on_after_a_refusal()
    with pytest.raises(Conflict), run.transaction() as tx:
        tx.write_state("total", 1, writer="billing", expected_version=7)
    backend = run.store.backend
    assert watched.counts("refold.refusals") == {(backend, "owner"): 2, (backend, "conflict"): 1}
    assert watched.counts("refold.conflicts") == {(backend,): 1}
    assert len(watched.spans) == 3


def test_a_read_span_links_to_the_span_that_wrote_the_version(open_new: Open, watched: Watched) -> None:
    """With `read_spans`, each read links to the writes it saw, and its event lies in its own span."""
    run = open_new(ClaimState, telemetry=watched.telemetry(read_spans=True)).run("clm-1")
    run.write_state("routing", {"ruleset": "QC"}, writer="triage")
    run.write_state("total", 3, writer="billing")
    run.read_state("routing", reader="liability")
    run.read_many(["routing", "total"], reader="liability")
    routing, total, one, many = watched.spans
    assert [span.name for span in (one, many)] == ["refold.read", "refold.read"]
    assert linked(one) == [ids(routing)[:2]]
    assert linked(many) == [ids(routing)[:2], ids(total)[:2]]
    assert (facts(one)["refold.version"], facts(one)["refold.reader"]) == (1, "liability")
    assert [(e.trace_id, e.span_id) for e in run.events(kinds=["state.read"])] == [ids(one)[:2], ids(many)[:2]]


def test_links_of_one_read_are_bounded(sqlite_url: str, watched: Watched) -> None:
    """A read of many keys links to at most LINKS_MAX writes."""
    keys = [f"k{number}" for number in range(LINKS_MAX + 2)]
    schema = {"keys": {key: {"owner": "triage", "type": {"type": "integer"}} for key in keys}}
    with open_store(sqlite_url, schema, telemetry=watched.telemetry(read_spans=True)) as store:
        run = store.run("r")
        for key in keys:
            run.write_state(key, 1, writer="triage")
        run.read_many(keys, reader="liability")
    assert len(watched.spans[-1].links) == LINKS_MAX


def test_reads_have_no_span_unless_asked_for(open_new: Open, watched: Watched) -> None:
    """By default a read makes no span, and its event names the caller's."""
    run = open_new(ClaimState, telemetry=watched.telemetry()).run("clm-1")
    run.write_state("routing", {"ruleset": "QC"}, writer="triage")
    with watched.tracers.get_tracer("caller").start_as_current_span("turn") as turn:
        run.read_state("routing", reader="liability")
    assert [span.name for span in watched.spans] == ["refold.write", "turn"]
    (event,) = run.events(kinds=["state.read"])
    assert (event.trace_id, event.span_id) == ids(turn)[:2]  # type: ignore[arg-type]  # an SDK span is readable


@pytest.mark.parametrize(("flags", "sampled"), [(0, False), (1, True), (2, False), (3, True)])
def test_the_callers_context_is_stored_with_all_flags(open_new: Open, flags: int, sampled: bool) -> None:
    """With spans off the caller's context is stored as it is; of its flags only bit 0 says `sampled`."""
    run = open_new(ClaimState, telemetry=Telemetry(spans=False, metrics=False, logs=False)).run("clm-1")
    context = trace.SpanContext(7, 9, is_remote=True, trace_flags=trace.TraceFlags(flags))
    with trace.use_span(trace.NonRecordingSpan(context)):
        run.write_state("routing", {"ruleset": "QC"}, writer="triage")
    read = run.peek("routing")
    assert read.trace == ((7).to_bytes(16, "big"), (9).to_bytes(8, "big"), flags)
    assert read.sampled is sampled
    assert (read.trace_id, read.span_id) == (f"{7:032x}", f"{9:016x}")
    assert link_to(*read.trace) == context


def test_an_awaited_write_takes_the_context_of_its_own_task(open_new: Open, watched: Watched) -> None:
    """Tasks that write at once each store the span under their own caller's."""
    run = open_new(ClaimState, telemetry=watched.telemetry()).run("clm-1")
    tracer = watched.tracers.get_tracer("caller")

    async def agent(number: int) -> None:
        with tracer.start_as_current_span(f"turn {number}"):
            await run.awrite_state("total", number, writer="billing")
            async with run.transaction() as tx:
                tx.write_state("total", number, writer="billing")

    async def all_agents() -> None:
        await asyncio.gather(*(agent(number) for number in range(5)))

    asyncio.run(all_agents())
    turns = {span.name: ids(span)[0] for span in watched.spans if span.name.startswith("turn")}
    events = list(run.events(kinds=["state.written"]))
    assert {(f"turn {e.body['update']}", e.trace_id) for e in events} == set(turns.items())
    assert len({e.span_id for e in events}) == len(events) == 10


def test_threads_do_not_mix_their_spans(open_new: Open, watched: Watched) -> None:
    """Each of many writes from four threads has a span of its own, and each is counted."""
    run = open_new(ClaimState, telemetry=watched.telemetry()).run("clm-1")

    def work() -> None:
        for _ in range(25):
            run.write_state("total", 1, writer="billing")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_seq = {facts(span)["refold.seq"]: ids(span) for span in watched.spans}
    events = list(run.events(kinds=["state.written"]))
    assert {e.seq: (e.trace_id, e.span_id, e.trace_flags) for e in events} == by_seq
    assert watched.counts("refold.writes") == {(run.store.backend, "write"): 100}


def test_metrics_count_what_happened(open_new: Open, watched: Watched) -> None:
    """Writes, deletes, reads and durations are counted under bounded labels only."""
    store = open_new(ClaimState, telemetry=watched.telemetry())
    run, backend = store.run("clm-1"), store.backend
    run.write_state("routing", {"ruleset": "QC"}, writer="triage")
    with run.transaction() as tx:
        tx.write_state("total", 3, writer="billing")
        tx.delete_state("routing", writer="triage")
    run.delete_state("total", writer="billing")
    run.read_state("total", reader="liability")
    run.read_many(["routing", "total"], reader="liability")
    run.at("end").read_state("routing", reader="liability")
    run.peek("routing")
    assert watched.counts("refold.writes") == {(backend, "write"): 2, (backend, "delete"): 2}
    assert watched.counts("refold.reads") == {(backend,): 3}
    durations = watched.points("refold.write.duration")
    assert {labels: point.count for labels, point in durations.items()} == {
        (backend, "write"): 1,
        (backend, "transaction"): 1,
        (backend, "delete"): 1,
    }
    assert all(point.explicit_bounds[0] < 0.0001 and 0 < point.sum < 60 for point in durations.values())


def test_a_tenants_key_is_reported_by_the_run_that_was_called(open_new: Open, watched: Watched) -> None:
    """A write and a read of a key of another scope are one span and one count each."""
    run = open_new(ClaimState, telemetry=watched.telemetry(read_spans=True)).run("clm-1")
    run.write_state("total", 1, writer="billing")
    run.write_state("policy", "p", writer="triage")
    run.read_state("policy", reader="liability")
    _total, policy, read = watched.spans
    assert facts(policy)["refold.run"] == facts(read)["refold.run"] == "clm-1"
    assert linked(read) == [ids(policy)[:2]]
    assert list(watched.counts("refold.writes").values()) == [2]
    assert list(watched.counts("refold.reads").values()) == [1]


def test_queue_and_pending_reads_are_observed(sqlite_url: str, watched: Watched, monkeypatch: Any) -> None:
    """What waits shows while it waits, and queued commits report their size."""
    monkeypatch.setattr(committer_module, "FLUSH_S", 60.0)
    with open_store(sqlite_url, ClaimState, telemetry=watched.telemetry()) as store:
        run = store.run("clm-1")
        run.write_state("total", 1, writer="billing")
        run.read_state("total", reader="liability")
        assert watched.counts("refold.pending_reads") == {("sqlite",): 1}
        asyncio.run(run.awrite_state("total", 1, writer="billing"))
        assert watched.counts("refold.pending_reads") == {("sqlite",): 0}
        assert watched.counts("refold.committer.queue") == {("sqlite",): 0}
    assert [(point.count, point.sum) for point in watched.points("refold.commit.batch_size").values()] == [(1, 1)]


def test_stores_of_one_process_share_their_instruments(tmp_path: Any, watched: Watched, caplog: Any) -> None:
    """Two stores on one meter provider add up, and the SDK complains of no instrument made twice."""
    for name in ("a.db", "b.db"):
        with open_store(tmp_path / name, ClaimState, telemetry=watched.telemetry()) as store:
            store.run("r").write_state("total", 1, writer="billing")
    assert watched.counts("refold.writes") == {("sqlite", "write"): 2}
    assert caplog.records == []


def test_log_lines_bind_where_and_what(open_new: Open, watched: Watched) -> None:
    """Opened, written, deleted, refused, closed: each line names run, tenant, key, version, seq and trace."""
    store = open_new(ClaimState, telemetry=watched.telemetry())
    run = store.run("clm-1", tenant="acme")
    written = run.write_state("routing", {"ruleset": "QC"}, writer="triage")
    refused(run, Conflict, writer="triage", expected_version=0)
    run.delete_state("routing", writer="triage")
    store.close()
    opened, line, conflict, deleted, closed = watched.lines.entries
    assert [e["event"] for e in (opened, deleted, closed)] == ["store.opened", "state.deleted", "store.closed"]
    where = {"run": "clm-1", "tenant": "acme", "backend": store.backend, "key": "routing", "writer": "triage"}
    what = {"event": "state.written", "log_level": "debug", "version": 1, "seq": written.seq}
    assert line == where | what | {"trace_id": ids(watched.spans[0])[0].hex(), "level": "debug"}
    assert conflict.items() >= {"event": "state.refused", "log_level": "warning", "reason": "conflict"}.items()
    assert (conflict["expected"], conflict["version"]) == (0, 1)


def test_a_store_is_named_without_user_and_password(pg_url: str, watched: Watched) -> None:
    """The line of an opened store shows host and database, nothing that opens it."""
    with open_store(pg_url, ClaimState, telemetry=watched.telemetry()):
        pass
    place = watched.lines.entries[0]["store"]
    assert place.endswith("/" + str(psycopg.conninfo.conninfo_to_dict(pg_url)["dbname"]))
    assert "@" not in place
    assert "postgres:" not in place


def test_no_value_leaves_the_store(open_new: Open, watched: Watched) -> None:
    """Neither accepted nor refused values, nor bases, nor errors that quote them, are in spans, metrics or lines."""
    run = open_new(ClaimState, telemetry=watched.telemetry(read_spans=True)).run("clm-1")
    run.write_state("routing", {"ruleset": SECRET}, writer="triage", basis=SECRET, request_id=SECRET)
    for value in (SECRET, {"ruleset": [SECRET]}, {SECRET: object()}, {SECRET: 5}):
        with pytest.raises(Refused):
            run.write_state("routing", value, writer="triage")
    refused(run)
    with pytest.raises(KeyError, match=SECRET), run.transaction() as tx:
        tx.write_state("routing", os.environ[SECRET], writer="triage")
    run.read_state("routing", reader="liability")
    seen = watched.everything()
    assert "refold.refused.reason" in seen
    assert SECRET not in seen


class Broken(SpanProcessor):
    """A processor, a metric and a logger that fail at every turn."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError(SECRET)

    def on_end(self, span: Any) -> None:
        raise RuntimeError(SECRET)

    def __call__(self, *args: Any) -> Any:
        raise RuntimeError(SECRET)


def test_failing_handlers_never_fail_a_call(open_new: Open, watched: Watched, caplog: Any, monkeypatch: Any) -> None:
    """Exporters, instruments and loggers may raise: calls do as without them, and one warning says so."""
    watched.tracers.add_span_processor(Broken())
    logger = structlog.wrap_logger(None, processors=[Broken()])
    store = open_new(ClaimState, telemetry=watched.telemetry(read_spans=True, logger=logger))
    monkeypatch.setattr(store.observer.instruments.duration, "record", Broken())
    run = store.run("clm-1")
    assert run.write_state("routing", {"ruleset": "QC"}, writer="triage").version == 1
    refused(run)
    with run.transaction() as tx:
        tx.write_state("total", 1, writer="billing")
    assert asyncio.run(run.awrite_state("total", 1, writer="billing")).version == 2
    assert run.read_state("total", reader="liability").value == 2
    assert not trace.get_current_span().get_span_context().is_valid
    (warning,) = [record for record in caplog.records if record.name == "refold.telemetry"]
    assert warning.levelno == logging.WARNING
    assert SECRET not in caplog.text


def test_a_lost_connection_that_came_back_is_told(pg_url: str, watched: Watched) -> None:
    """After PostgreSQL cut the connection the write goes on, and a line says that it reconnected."""
    with open_store(pg_url, ClaimState, telemetry=watched.telemetry()) as store:
        run = store.run("clm-1")
        run.write_state("total", 1, writer="billing")
        with psycopg.connect(pg_url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert run.write_state("total", 1, writer="billing").version == 2
    assert "store.reconnected" in [entry["event"] for entry in watched.lines.entries]


def test_a_failed_flush_is_told_without_its_text(sqlite_url: str, watched: Watched, monkeypatch: Any) -> None:
    """If reads that waited cannot be stored, a line at level error names the class of the error."""
    monkeypatch.setattr(committer_module, "FLUSH_S", 0.001)
    with open_store(sqlite_url, ClaimState, telemetry=watched.telemetry()) as store:
        run = store.run("clm-1")
        run.write_state("total", 1, writer="billing")
        told = threading.Event()
        monkeypatch.setattr(store.observer, "flush_failed", _then(store.observer.flush_failed, told.set))  # type: ignore[union-attr]
        with monkeypatch.context() as patch:
            patch.setattr(store._committer, "_flush", _fail)
            run.read_state("total", reader="liability")
            assert told.wait(10)
        store._committer._failed = None
    (line,) = [entry for entry in watched.lines.entries if entry["event"] == "flush.failed"]
    assert (line["log_level"], line["error"]) == ("error", "StoreUnavailable")
    assert SECRET not in watched.everything()


def _then(first: Callable[..., None], second: Callable[[], None]) -> Callable[..., None]:
    def both(*args: Any) -> None:
        first(*args)
        second()

    return both


def _fail(*, durable: bool) -> None:
    raise StoreUnavailable(SECRET)


def test_a_forked_child_reports_too(sqlite_url: str, watched: Watched) -> None:
    """In a forked child spans are made and stored as in the parent."""
    with open_store(sqlite_url, ClaimState, telemetry=watched.telemetry()) as store:
        run = store.run("clm-1")
        run.write_state("total", 1, writer="billing")
        child = os.fork()
        if not child:
            try:
                run.write_state("total", 1, writer="billing")
                os._exit(0 if len(watched.spans) == 2 else 2)
            finally:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        events = list(run.events(kinds=["state.written"]))
        assert len({event.span_id for event in events} - {None}) == 2

"""Bytes on disk that a write and a read leave, indexes included."""

from __future__ import annotations

from collections.abc import Iterator

from bench import peers
from bench.lab import RAM, SQLITE, Lab
from bench.registry import Check, Line, benchmark
from bench.subject import Refold
from bench.values import key_names

WRITE_AIMS = {SQLITE: 500, "postgresql": 640}
READ_AIMS = {SQLITE: 150, "postgresql": 260}
KEY_COUNTS = (10, 1_000)
EVENTS, QUICK_EVENTS = 20_000, 5_000
PEER_WRITES = {10: 2_000, 1_000: 60}  # a LangGraph checkpoint of 1,000 channels takes hundreds of kilobytes


@benchmark("bytes", "bytes a write, whatever the number of keys; a read event")
def storage(lab: Lab) -> Iterator[Line]:
    """Growth of the file, or of tables with indexes, by lone writes and by single reads."""
    events = QUICK_EVENTS if lab.options.quick else EVENTS
    for backend in lab.options.backends:
        for keys in KEY_COUNTS:
            ours = Refold(lab, backend, keys=keys)
            ours.write(keys)
            start = ours.size()
            ours.write(events)
            written = ours.size()
            ours.read_and_flush(events)
            read = ours.size()
            line = Line(f"bytes an event, {keys:,} keys", backend, RAM, note=f"{events:,} of each")
            line.checks.append(Check("bytes a write", (written - start) / events, WRITE_AIMS[backend]))
            line.checks.append(Check("bytes a read", (read - written) / events, READ_AIMS[backend]))
            if lab.options.peers:
                line.peer_unit = " bytes a write"
                line.peers = dict(peer_bytes(lab, backend, keys))
            yield line
            ours.close()


def peer_bytes(lab: Lab, backend: str, keys: int) -> Iterator[tuple[str, float]]:
    """The same of the peers."""
    graph: peers.LangGraph
    sourcing: peers.EventSourcing
    if backend == SQLITE:
        sqlite_graph = peers.LangGraphSqlite(lab.fresh_file("langgraph"), keys)
        sqlite_sourcing = peers.EventSourcingSqlite(lab.fresh_file("eventsourcing"), key_names(keys))
        graph, sourcing, sizes = sqlite_graph, sqlite_sourcing, (sqlite_graph.size, sqlite_sourcing.size)
    else:
        postgres_graph = peers.LangGraphPostgres(lab.fresh_database("langgraph"), keys)
        postgres_sourcing = peers.EventSourcingPostgres(lab.fresh_database("eventsourcing"), key_names(keys))
        graph, sourcing, sizes = postgres_graph, postgres_sourcing, (postgres_graph.size, postgres_sourcing.size)
    writes = PEER_WRITES[keys]
    for peer, size in zip((graph, sourcing), sizes, strict=True):
        before = size()
        peer.write(writes)
        yield peer.name, (size() - before) / writes
        peer.close()

"""Reads of one key: not recorded, recorded, and recorded with the cost of its record."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

from bench import peers
from bench.lab import RAM, SQLITE, Lab, ratio_check
from bench.measure import Side
from bench.registry import Check, Line, benchmark
from bench.subject import Refold, subjects
from bench.values import READER, key_names

PEEK_AIMS = {SQLITE: 2.0, "postgresql": 1.2}
LATENCY_AIMS = {SQLITE: 4.0, "postgresql": 2.0}
SUSTAINED_AIMS = {SQLITE: 8.0, "postgresql": 4.0}
OWN_SYNCS = 0.01  # reads bring no sync; a count over seconds may meet one of the server's own
KEYS = 10


def read_peers(lab: Lab, backend: str) -> list[peers.LangGraph | peers.EventSourcing]:
    """Peers with a short history of 10 keys: a state of 10 channels, an aggregate of 10 facts."""
    if not lab.options.peers:
        return []
    langgraph: peers.LangGraph
    sourcing: peers.EventSourcing
    if backend == SQLITE:
        langgraph = peers.LangGraphSqlite(lab.fresh_file("langgraph"), KEYS)
        sourcing = peers.EventSourcingSqlite(lab.fresh_file("eventsourcing"), key_names(KEYS))
    else:
        langgraph = peers.LangGraphPostgres(lab.fresh_database("langgraph"), KEYS)
        sourcing = peers.EventSourcingPostgres(lab.fresh_database("eventsourcing"), key_names(KEYS))
    for peer in (langgraph, sourcing):
        peer.write(100)
        lab.closing.callback(peer.close)
    return [langgraph, sourcing]


@benchmark("read", "read, value and version, decoded, not recorded")
def read(lab: Lab) -> Iterator[Line]:
    """The newest value of a key, as JSON and as its declared type, against a bare point read."""
    for backend in lab.options.backends:
        with subjects(lab, backend) as (ours, floor):
            ours.write(100)
            others = read_peers(lab, backend)
            json_side, typed_side = Side("refold", ours.peek), Side("refold, typed", ours.peek_typed)
            sides = [Side("floor", floor.read), json_side, typed_side, *(Side(peer.name, peer.read) for peer in others)]
            times, counts = lab.compare(sides), lab.count(json_side)
            counts["statements"] = lab.statements(partial(ours.peek, 100)) / 100
            line = Line("read, not recorded", backend, RAM, counts=counts)
            line.checks.append(ratio_check(times, "refold", "floor", PEEK_AIMS[backend], what="x floor, as JSON"))
            line.checks.append(ratio_check(times, "refold, typed", "floor", PEEK_AIMS[backend], what="x floor, typed"))
            line.peers = {peer.name: times.ratio(peer.name, "floor").median for peer in others}
            line.microseconds = {name: times.microseconds(name) for name in times.rounds}
            yield line


def each_alone(one: Callable[[int], object]) -> Callable[[int], float]:
    """Times every call by itself: the median call, so that work between calls is left out."""

    def operate(operations: int) -> float:
        times = []
        for number in range(operations):
            started = perf_counter()
            one(number)
            times.append(perf_counter() - started)
        return statistics.median(times) * operations

    return operate


@benchmark("read-recorded", "recorded read: latency; sustained with its append")
def read_recorded(lab: Lab) -> Iterator[Line]:
    """A read that leaves a record: until it returns, and until its record is in the log."""
    for backend in lab.options.backends:
        with subjects(lab, backend) as (ours, floor):
            ours.write(100)
            yield latency(lab, ours, floor.read)
            sustained = Side("refold", ours.read_and_flush)
            times, counts = lab.compare([Side("floor", floor.read), sustained]), lab.count(sustained, 2_000)
            line = Line("recorded read, sustained with its append", backend, RAM, counts=counts)
            line.compared(times, "refold", "floor", SUSTAINED_AIMS[backend])
            line.checks.append(Check("syncs", counts["syncs"], OWN_SYNCS))
            yield line


def latency(lab: Lab, ours: Refold, floor_read: Callable[[int], None]) -> Line:
    """The call alone."""
    read_state, keys = ours.run.read_state, ours.keys
    sides = [
        Side("floor", each_alone(lambda _number: floor_read(1))),
        Side("refold", each_alone(lambda number: read_state(keys[number % KEYS], reader=READER).json), most=2_000),
    ]
    line = Line("recorded read, latency", ours.backend, RAM)
    line.compared(lab.compare(sides), "refold", "floor", LATENCY_AIMS[ours.backend])
    ours.store.flush()
    return line

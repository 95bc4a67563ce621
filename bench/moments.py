"""Any moment: one key of a long run, and whole states, now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bench import peers
from bench.lab import RAM, SQLITE, Lab, ratio_check
from bench.measure import Side, Timings
from bench.registry import Check, Line, benchmark
from bench.subject import Refold, filled, new_floor, settle
from bench.values import key_names

KEY_AIM, FLAT_AIM = 1.5, 1.3
NOW_AIM = 0.85
MOMENT_AIMS = {10: 0.9, 1_000: 1.5}
SIZES = (10, 100, 1_000)
SHORT_EVENTS = 1_000
VERSIONS = 20  # of each key of a whole state
PEER_STEPS = 40  # checkpoints of a LangGraph thread whose whole states are read
PEER_EVENTS = 2_000  # of an eventsourcing aggregate: it is replayed at each read of an older version
STRIDE = 7_919  # a prime: visits moments all over a run


def at_moments(ours: Refold, first: int, head: int) -> Callable[[int], None]:
    """One key at moments spread over a run, decoded to JSON."""
    run, keys = ours.run, ours.keys

    def operate(operations: int) -> None:
        for number in range(operations):
            seq = first + number * STRIDE % (head - first)
            assert run.at(seq).read_state(keys[number % len(keys)]).json

    return operate


def states_at(ours: Refold, first: int, head: int) -> Callable[[int], None]:
    """The whole state at moments spread over a run; one of its bodies is decoded."""

    def operate(operations: int) -> None:
        for number in range(operations):
            seq = first + number * STRIDE % (head - first)
            assert ours.run.at(seq).state()[ours.keys[number % len(ours.keys)]].json

    return operate


@benchmark("moment", "one key at a moment of a long run")
def moment(lab: Lab) -> Iterator[Line]:
    """Against a bare current read, and a long run against a short one."""
    scale = lab.options.scale
    for backend in lab.options.backends:
        floor = new_floor(lab, backend)
        short, long = filled(lab, backend, SHORT_EVENTS), filled(lab, backend, scale)
        first = 2 * len(long.keys)  # from there on every key has a version
        long_side = Side("long", at_moments(long, first, long.head()))
        sides = [Side("floor", floor.read), long_side, Side("short", at_moments(short, first, short.head()))]
        names = []
        for name, operate in moment_peers(lab, backend):
            sides.append(Side(name, operate, least=2, most=2_000))
            names.append(name)
        times, counts = lab.compare(sides), lab.count(long_side)
        counts["statements"] = lab.statements(partial(long_side.operate, 100)) / 100
        line = Line(f"one key at a moment, run of {scale:,}", backend, RAM, counts=counts)
        line.compared(times, "long", "floor", KEY_AIM)
        line.checks.append(ratio_check(times, "long", "short", FLAT_AIM, what=f"x a run of {SHORT_EVENTS:,}"))
        line.peers = {name: times.ratio(name, "floor").median for name in names}
        yield line
        for thing in (floor, short, long):
            thing.close()


def moment_peers(lab: Lab, backend: str) -> Iterator[tuple[str, Callable[[int], None]]]:
    """LangGraph by id, 10 channels; eventsourcing at half of a history that is short beside ours."""
    if not lab.options.peers:
        return
    graph = langgraph(lab, backend, 10)
    sourcing: peers.EventSourcing
    if backend == SQLITE:
        sourcing = peers.EventSourcingSqlite(lab.fresh_file("eventsourcing"), key_names(10))
    else:
        sourcing = peers.EventSourcingPostgres(lab.fresh_database("eventsourcing"), key_names(10))
    lab.closing.callback(sourcing.close)
    sourcing.transaction(PEER_EVENTS // 10)
    yield "LangGraph by id", graph.read_at
    yield f"eventsourcing, {PEER_EVENTS:,} events", sourcing.read_at


def langgraph(lab: Lab, backend: str, channels: int) -> peers.LangGraph:
    """A thread with some checkpoints of so many channels."""
    graph: peers.LangGraph
    if backend == SQLITE:
        graph = peers.LangGraphSqlite(lab.fresh_file("langgraph"), channels)
    else:
        graph = peers.LangGraphPostgres(lab.fresh_database("langgraph"), channels)
    graph.write(PEER_STEPS)
    lab.closing.callback(graph.close)
    return graph


@benchmark("state", "whole state now and at a moment; 10, 100, 1,000 keys, bodies decoded when touched")
def state(lab: Lab) -> Iterator[Line]:
    """Against LangGraph's get_tuple, which decodes all; without peers, against a bare fetch of all rows."""
    for backend in lab.options.backends:
        for keys in SIZES:
            ours, floor = Refold(lab, backend, keys=keys), new_floor(lab, backend, keys=keys)
            ours.transaction(VERSIONS)
            settle(ours)
            now, then = Side("now", ours.state, least=3), Side("then", states_at(ours, 2 * keys, ours.head()), least=3)
            sides = [Side("floor", floor.read_all, least=3), now, then]
            if lab.options.peers:
                graph = langgraph(lab, backend, keys)
                sides += [
                    Side("get_tuple", graph.read, least=3, most=500),
                    Side("by id", graph.read_at, least=3, most=500),
                ]
            times = lab.compare(sides)
            for side, base, aim in (("now", "get_tuple", NOW_AIM), ("then", "by id", MOMENT_AIMS.get(keys))):
                yield state_line(lab, times, backend, keys, sides[1 if side == "now" else 2], base, aim)
            ours.close()
            floor.close()


def state_line(lab: Lab, times: Timings, backend: str, keys: int, side: Side, base: str, aim: float | None) -> Line:
    """What whole states cost, now or at a moment."""
    words = "now" if side.name == "now" else "at a moment"
    line = Line(f"whole state {words}, {keys:,} keys", backend, RAM, counts=lab.count(side, 20))
    if base in times.rounds:
        line.compared(times, side.name, base, aim)
    line.counts["x floor"] = times.ratio(side.name, "floor").median
    statements = lab.statements(partial(side.operate, 20)) / 20 if backend == SQLITE else line.counts["round trips"]
    line.checks.append(Check("statements" if backend == SQLITE else "round trips", statements, 1))
    line.microseconds = {name: times.microseconds(name) for name in times.rounds}
    return line

"""Walking a whole run: every event decoded, and the fold of all events to a state."""

from __future__ import annotations

from collections.abc import Iterator

from bench import peers
from bench.lab import RAM, SQLITE, Lab
from bench.measure import Side
from bench.registry import Line, benchmark
from bench.subject import filled, filled_floor
from bench.values import key_names

REPLAY_AIM, FOLD_AIM = 1.5, 1.4
PEER_EVENTS = 2_000
PEER_STEPS = 200  # LangGraph checkpoints of 10 channels


@benchmark("replay", "full replay, decoded")
def replay(lab: Lab) -> Iterator[Line]:
    """An event of a full replay against a row of a bare cursor with orjson."""
    for backend in lab.options.backends:
        ours, floor = filled(lab, backend, lab.options.scale), filled_floor(lab, backend, lab.options.scale)
        sides = [
            Side("floor", floor.replay, fixed=1, unit=lab.options.scale),
            Side("refold", ours.replay, fixed=1, unit=ours.head()),
        ]
        others = replaying_peers(lab, backend)
        times = lab.compare([*sides, *others], whole_runs=True)
        line = Line("full replay, an event", backend, RAM, note=f"{lab.options.scale:,} events")
        line.compared(times, "refold", "floor", REPLAY_AIM)
        line.peers = {side.name: times.ratio(side.name, "floor").median for side in others}
        yield line
        ours.close()
        floor.close()


def replaying_peers(lab: Lab, backend: str) -> list[Side]:
    """Peers with a short history: their cost an event does not fall with length."""
    if not lab.options.peers:
        return []
    graph: peers.LangGraph
    sourcing: peers.EventSourcing
    if backend == SQLITE:
        graph = peers.LangGraphSqlite(lab.fresh_file("langgraph"), 10)
        sourcing = peers.EventSourcingSqlite(lab.fresh_file("eventsourcing"), key_names(10))
    else:
        graph = peers.LangGraphPostgres(lab.fresh_database("langgraph"), 10)
        sourcing = peers.EventSourcingPostgres(lab.fresh_database("eventsourcing"), key_names(10))
    graph.write(PEER_STEPS)
    sourcing.transaction(PEER_EVENTS // 10)
    for peer in (graph, sourcing):
        lab.closing.callback(peer.close)
    return [
        Side(graph.name, graph.replay, fixed=1, unit=PEER_STEPS),
        Side(sourcing.name, sourcing.replay, fixed=1, unit=PEER_EVENTS),
    ]


@benchmark("fold", "fold of the long run")
def fold(lab: Lab) -> Iterator[Line]:
    """An event of a fold of the whole log against a row of a bare scan."""
    for backend in lab.options.backends:
        ours, floor = filled(lab, backend, lab.options.scale), filled_floor(lab, backend, lab.options.scale)
        sides = [
            Side("floor", floor.scan, fixed=1, unit=lab.options.scale),
            Side("refold", ours.fold, fixed=1, unit=ours.head()),
        ]
        line = Line("fold of all events, an event", backend, RAM, note=f"{lab.options.scale:,} events")
        line.compared(lab.compare(sides, whole_runs=True), "refold", "floor", FOLD_AIM)
        yield line
        ours.close()
        floor.close()

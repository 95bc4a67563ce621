"""A turn: of the engine with a scripted model, and of a program of one's own; early and late in a run; its bytes.

The base is the bare loop (`bareloop.py`): the same answers, the same number of durable commits, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter, process_time

from bench.bareloop import BareLoop, bare_loop
from bench.graphpeer import Graph
from bench.lab import RAM, SQLITE, Lab, ratio_check
from bench.measure import Ratio, Side, Timings
from bench.registry import Check, Line, benchmark
from bench.subject import Refold, settle
from bench.team import Team, behind, within
from bench.values import DOCUMENTS, OWNER

EARLY, LATE, QUICK_LATE = 10, 10_000, 500
TURNS = 10
"""Turns of a side in a round: a conversation that grows by more would be another one at the end of it."""
PEER_AIM = 0.5
LATE_AIM = 1.2
CONVERSATION = 50
LINEAR_AIM = 1.2  # bytes a turn over the second half of a conversation, against the first
STEPS, QUICK_STEPS = 1_000, 200
LIST_AIM = 0.1


@benchmark("engine-turn", "a turn: 3 reads, 1 write, scripted model; LangGraph does the same")
def engine_turn(lab: Lab) -> Iterator[Line]:
    """Turns behind 10 others of a fresh run, against the bare loop, and beside a graph with its checkpointer."""
    for backend in lab.options.backends:
        with ExitStack() as closing:
            team, bare = Team(lab, backend), bare_loop(lab, backend)
            closing.callback(team.close)
            closing.callback(bare.close)
            loops: list[Team | BareLoop | Graph] = [bare, team]
            if lab.options.peers and backend == SQLITE:
                loops.append(Graph(lab.fresh_file("langgraph")))
                closing.callback(loops[-1].close)
            for place in lab.places():
                with lab.place(place):
                    times = lab.compare(sides_of(loops, perf_counter))
                line = turn_line(lab, times, team, bare, backend, place)
                if line.checks and place == RAM:
                    found = overheads(lab.compare(sides_of(loops, process_time)), "refold", "LangGraph", "bare loop")
                    line.checks.append(Check("x its CPU time", found.median, PEER_AIM, "<=", found.low, found.high))
                yield line


def sides_of(loops: Sequence[Team | BareLoop | Graph], clock: Callable[[], float]) -> list[Side]:
    """Turns behind 10 others of a fresh run, by a clock: that of the wall, or that of the process."""
    return [Side(one.name, behind(one.start, one.talk, EARLY, clock), fixed=TURNS) for one in loops]


def turn_line(lab: Lab, times: Timings, team: Team, bare: BareLoop, backend: str, place: str) -> Line:
    """What a turn takes more than the bare loop's, and what it asks of the database."""
    line = Line("engine turn", backend, place)
    line.compared(times, "refold", "bare loop")
    line.microseconds["overhead"] = line.microseconds["refold"] - line.microseconds["bare loop"]
    if "LangGraph" in times.rounds:
        line.peers = {"LangGraph": times.ratio("LangGraph", "bare loop").median}
        found = overheads(times, "refold", "LangGraph", "bare loop")
        line.checks.append(Check("x LangGraph's overhead", found.median, PEER_AIM, "<=", found.low, found.high))
    if place == RAM:
        ours = within(team.talk, team.start())
        line.counts |= lab.count(Side("refold", ours), 100)
        theirs = lab.count(Side("bare loop", within(bare.talk, bare.start())), 100)
        line.counts |= {f"{name} of the bare loop": theirs[name] for name in ("syncs", "round trips", "WAL bytes")}
        if backend == SQLITE:
            line.counts["statements"] = lab.statements(lambda: ours(20)) / 20
    return line


def overheads(times: Timings, side: str, other: str, base: str) -> Ratio:
    """How much longer one side takes than a base, against how much longer another does; round by round."""
    rows = zip(times.rounds[side], times.rounds[other], times.rounds[base], strict=True)
    pairs = [(ours - bare, theirs - bare) for ours, theirs, bare in rows]
    return Timings({side: [ours for ours, _ in pairs], other: [theirs for _, theirs in pairs]}).ratio(side, other)


@benchmark("engine-alone", "a turn of a program of one's own: 3 reads, 1 write in run.turn")
def engine_alone(lab: Lab) -> Iterator[Line]:
    """The store's turn, against three point reads and a versioned write."""
    for backend in lab.options.backends:
        team, bare = Team(lab, backend), bare_loop(lab, backend)
        run = team.start()
        ours = within(team.alone, run)
        sides = [Side("bare driver", within(bare.alone, bare.start())), Side("refold", ours)]
        for place in lab.places():
            with lab.place(place):
                times = lab.compare(sides)
            line = Line("run.turn", backend, place)
            line.compared(times, "refold", "bare driver")
            if place == RAM:
                line.counts |= lab.count(sides[1], 100)
                if backend == SQLITE:
                    line.counts["statements"] = lab.statements(partial(ours, 20)) / 20
            yield line
        team.close()
        bare.close()


@benchmark("engine-late", "the same turns at 10 and at 10,000 turns in the run")
def engine_late(lab: Lab) -> Iterator[Line]:
    """A turn late in a run against one early in a run: with the engine, and without."""
    if RAM not in lab.options.places:
        return
    late = QUICK_LATE if lab.options.quick else LATE
    for backend in lab.options.backends:
        team = Team(lab, backend)
        for what, work in (("run.turn", team.alone), ("engine turn", team.talk)):
            run = team.start()
            work(run, late)
            settle_team(lab, team, backend)
            sides = [
                Side("early", behind(team.start, work, EARLY), fixed=TURNS),
                Side("late", within(work, run), fixed=TURNS),
            ]
            times = lab.compare(sides)
            line = Line(f"{what} at {late:,} turns", backend, RAM)
            line.checks.append(ratio_check(times, "late", "early", LATE_AIM, what=f"x at {EARLY} turns"))
            line.microseconds = {name: times.microseconds(name) for name in times.rounds}
            yield line
        team.close()


def settle_team(lab: Lab, team: Team, backend: str) -> None:
    """Leaves a filled store as one that has rested."""
    team.store.flush()
    ours = Refold(lab, backend, url=team.url)
    settle(ours)
    ours.close()


def size_of(lab: Lab, team: Team, backend: str) -> int:
    """Bytes on disk of a team's store."""
    team.store.flush()
    ours = Refold(lab, backend, url=team.url)
    size = ours.size()
    ours.close()
    return size


@benchmark("engine-bytes", "bytes a turn of a 50-turn conversation; of a list that grows, beside LangGraph")
def engine_bytes(lab: Lab) -> Iterator[Line]:
    """What a conversation leaves, against the bytes of all its requests; what 1,000 steps of a list leave."""
    for backend in lab.options.backends:
        team = Team(lab, backend, measuring=True)
        run = team.start()
        sizes = [size_of(lab, team, backend)]
        for _half in range(2):
            team.talk(run, CONVERSATION // 2)
            sizes.append(size_of(lab, team, backend))
        line = Line(f"a conversation of {CONVERSATION} turns", backend, RAM, note="two model calls a turn")
        first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
        line.checks.append(Check("x bytes a turn, second half against first", second / first, LINEAR_AIM))
        line.counts = {
            "bytes a turn": (first + second) / CONVERSATION,
            "bytes of its requests": team.model.asked_bytes / CONVERSATION,
            "x its requests": (first + second) / team.model.asked_bytes,
        }
        yield line
        team.close()
    if SQLITE in lab.options.backends:
        yield list_line(lab)


def list_line(lab: Lab) -> Line:
    """Turns that append to a list, beside steps of a graph whose list grows by the same items."""
    steps = QUICK_STEPS if lab.options.quick else STEPS
    ours = Refold(lab, SQLITE)
    start = ours.size()
    for step in range(steps):
        with ours.run.turn(OWNER) as turn:
            turn.write_state("log", DOCUMENTS[step % len(DOCUMENTS)])
    grown = ours.size() - start
    line = Line(f"{steps:,} steps of a list that grows", SQLITE, RAM, counts={"bytes a step": grown / steps})
    if lab.options.peers:
        peer = Graph(lab.fresh_file("langgraph"))
        before = peer.size()
        peer.note(steps)
        theirs = peer.size() - before
        line.checks.append(Check("x LangGraph's bytes", grown / theirs, LIST_AIM))
        line.peers, line.peer_unit = {"LangGraph": theirs / steps}, " bytes a step"
        peer.close()
    ours.close()
    return line

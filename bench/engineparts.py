"""Parts of a turn by themselves: conditions, the block of typed state, and branches side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench.bareloop import BareLoop, bare_loop
from bench.lab import RAM, Lab
from bench.measure import Side
from bench.registry import Check, Line, benchmark
from bench.subject import new_floor
from bench.team import READS, WRITTEN, Team, config
from bench.values import DOCUMENTS, OWNER
from refold_engine.asks import Asker
from refold_engine.config import Config
from refold_engine.journal import Journal
from refold_engine.workflows import run_workflow
from refold_store.conditions import compile_condition

CONDITION_AIM_US = 1.0
CONDITION_TURN_S = 0.002
"""Short turns: the best of them is one that nothing interrupted."""
CONDITIONS = {
    "one comparison": "amount > 10000",
    "a member": 'loss["sure"] == True',
    "three together": 'amount > 10000 and status in ("open", "held") and not closed',
}
STATE: dict[str, Any] = {"amount": 25000.5, "status": "open", "closed": False, "loss": DOCUMENTS[0]}
BLOCK_KEYS, QUICK_BLOCK_KEYS = 1_000, 100
BRANCHES, QUICK_BRANCHES = 50, 10


@benchmark("engine-conditions", "a routing condition, compiled, on a dict: under 1 µs")
def conditions(lab: Lab) -> Iterator[Line]:
    """A condition against the same words as a function of Python; the best round is what the work itself takes."""
    for name, expression in CONDITIONS.items():
        condition = compile_condition(expression)
        plain: Callable[[dict[str, Any]], bool] = eval(f"lambda s: {spelled(expression)}")
        assert condition(STATE) is plain(STATE) is True
        sides = [
            Side("Python", partial(repeat, plain), most=1_000_000),
            Side("refold", partial(repeat, condition), most=1_000_000),
        ]
        times = lab.compare(sides, target_s=CONDITION_TURN_S)
        line = Line(f"condition, {name}", "no database", RAM, note=expression)
        line.compared(times, "refold", "Python")
        line.checks.append(Check("µs, best round", min(times.rounds["refold"]) * 1e6, CONDITION_AIM_US))
        yield line


def repeat(work: Callable[[dict[str, Any]], object], operations: int) -> None:
    """So many evaluations."""
    for _ in range(operations):
        work(STATE)


def spelled(expression: str) -> str:
    """The names of an expression as members of `s`."""
    for name in STATE:
        expression = expression.replace(name, f's["{name}"]')
    return expression


@benchmark("engine-block", "the block of typed state, 1,000 keys, before a model call")
def block(lab: Lab) -> Iterator[Line]:
    """Nothing changed since the turn's last block, and one key drafted; against one range query of all values."""
    for backend in lab.options.backends:
        yield block_line(lab, backend, QUICK_BLOCK_KEYS if lab.options.quick else BLOCK_KEYS)


def block_line(lab: Lab, backend: str, keys: int) -> Line:
    """The block as a turn of the engine builds it."""
    team = Team(lab, backend, made=config(lab, keys=keys))
    names = [f"fact_{number:04d}" for number in range(keys)]
    run = team.store.run(team.start())
    with run.transaction() as transaction:
        for number, name in enumerate(names):
            transaction.write_state(name, DOCUMENTS[number % len(DOCUMENTS)], writer=OWNER)
    floor = new_floor(lab, backend, keys=keys)
    with run.turn(OWNER) as turn:
        asker = Asker(team.engine, turn, team.config.agents[OWNER], Journal(), team.engine.progress(run), before=0)

        def same(operations: int) -> None:
            for _ in range(operations):
                asker.block()

        def changed(operations: int) -> None:
            for number in range(operations):
                turn.write_state(names[number % keys], DOCUMENTS[(number + 7) % len(DOCUMENTS)])
                asker.block()

        sides = [Side("floor", floor.read_all, least=2), Side("same", same, least=2), Side("changed", changed, least=2)]
        times = lab.compare(sides)
        turn.roll_back("measured")
    line = Line(f"typed state of {keys:,} keys", backend, RAM, note="floor: all rows by one query, not joined")
    line.compared(times, "same", "floor")
    line.counts["x floor, one key drafted"] = times.ratio("changed", "floor").median
    team.close()
    floor.close()
    return line


@benchmark("engine-parallel", "a parallel workflow of 50 branches, merged")
def parallel(lab: Lab) -> Iterator[Line]:
    """Each branch is a turn with 3 reads and 1 write in a run of its own; against as many bare loops, one by one."""
    branches = QUICK_BRANCHES if lab.options.quick else BRANCHES
    for backend in lab.options.backends:
        team = Team(lab, backend, made=spread(lab, branches))
        bare = bare_loop(lab, backend)

        def ours(operations: int, team: Team = team) -> None:
            for _ in range(operations):
                assert run_workflow(team.engine, team.start(), "spread", "check it").how == "done"

        def theirs(operations: int, bare: BareLoop = bare) -> None:
            for _ in range(operations):
                for _branch in range(branches):
                    bare.talk(bare.start(), 1)

        side = Side("refold", ours, fixed=1, unit=branches)
        times = lab.compare([Side("bare loop", theirs, fixed=1, unit=branches), side], whole_runs=True)
        line = Line(f"workflow of {branches} branches, a branch", backend, RAM, note="the start of their runs included")
        line.compared(times, "refold", "bare loop")
        line.counts |= lab.count(side, 2)
        yield line
        team.close()
        bare.close()


def spread(lab: Lab, branches: int) -> Config:
    """The team with a workflow of so many tasks side by side; what they write is a list."""
    tasks = [{"name": f"part{at}", "agent": OWNER, "instruction": "Check your part."} for at in range(branches)]
    schema = {**{key: {"type": "object"} for key in READS}, WRITTEN: {"type": "array"}}
    return config(
        lab,
        {
            "state_schema": schema,
            "reducers": {WRITTEN: "append"},
            "workflows": {"spread": [{"name": "all", "type": "parallel", "tasks": tasks}]},
        },
    )

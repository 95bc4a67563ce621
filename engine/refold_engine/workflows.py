"""Workflows: fixed courses of tasks over a run, each task one agent's, some of them side by side in branches.

    with Engine(load("team.yaml"), store, model) as engine:
        result = run_workflow(engine, "doc-1", "fact_check", "The moon is 400,000 km away.")

Rules of this module
- How far a workflow has come is on the run's log and nowhere else: the same call again goes on, in whatever process,
  and does nothing twice. A pass that is finished gives its result again.
- Another input begins another pass, and so does `again`; not before the one under way is finished.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from refold_engine.config import Workflow
from refold_engine.fanout import fan_out
from refold_engine.steps import Pass, Place, StepResult, do_all, is_done
from refold_engine.telling import Tell
from refold_store.errors import ConfigError, TransactionInvalid

if TYPE_CHECKING:
    from refold_engine.engine import Engine

SHARED_KEYS = ("long_term_memory",)
"""Keys that branches get a copy of, where the schema declares them."""


@dataclass(frozen=True, slots=True)
class WorkflowResult:
    """How a workflow stands. `text`: the last step's result, or why it failed; `steps`: those at the top, as far as it
    came. `interrupted`: a person has to answer `asked`, by run and id; then call again."""

    run: str
    workflow: str
    number: int
    """Which pass, from 1."""
    how: Literal["done", "failed", "interrupted"]
    text: str = ""
    steps: tuple[StepResult, ...] = ()
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)


def run_workflow(
    engine: Engine,
    run: str,
    name: str,
    input: str | None = None,
    *,
    tenant: str = "default",
    again: bool = False,
    keys_shared: Iterable[str] = SHARED_KEYS,
    tell: Tell | None = None,
) -> WorkflowResult:
    """Do a workflow, or what is left of it. `input` is told to its agents; None: that of the pass under way.

    `again` begins another pass if the last one is finished. `tell` hears `workflow`, `step`, `branch`, `branch_ended`,
    `merged` and `workflow_ended`, one at a time. Raises ConfigError for an unknown name, TransactionInvalid for another
    input while a pass is under way; what a step fails by is told in the result.
    """
    workflow = engine.config.workflows.get(name)
    if workflow is None:
        raise ConfigError(_unknown(name, list(engine.config.workflows)))
    place = Place.at(engine.store.run(run, tenant))
    number, text = _pass(engine, workflow, place, input, again=again)
    work = Pass(engine, _in_turn(tell or engine.tell), name, number, run, text, fan_out, tuple(keys_shared))
    work.tell("workflow", {"workflow": name, "run": run, "pass": number})
    work.begin(place, workflow.tasks, "")
    steps = tuple(do_all(work, place, workflow.tasks, ""))
    last = steps[-1] if steps else StepResult("", name, "done")
    work.tell("workflow_ended", {"workflow": name, "run": run, "pass": number, "how": last.how, "text": last.text})
    return WorkflowResult(run, name, number, last.how, last.text, steps, last.asked)


def _pass(engine: Engine, workflow: Workflow, place: Place, input: str | None, *, again: bool) -> tuple[int, str]:
    """The pass to go on with, or a new one, and its input."""
    name, number = workflow.name, place.course.passes.get(workflow.name, 0)
    if number == 0:
        return 1, input or ""
    known = place.course.inputs.get(f"{name}#{number}", "")
    work = Pass(engine, engine.tell, name, number, place.run.name, known, fan_out)
    finished = all(is_done(work, place.course, task, str(at)) for at, task in enumerate(workflow.tasks, 1))
    same = input is None or input == known
    if finished and (again or not same):
        return number + 1, known if input is None else input
    if not same:
        raise TransactionInvalid(
            f"workflow {name!r} is under way in run {place.run.name!r} with another input; finish it (call without an "
            "input), or take another run"
        )
    return number, known


def _in_turn(tell: Tell) -> Tell:
    """Tell one thing at a time: branches have threads."""
    lock = threading.Lock()

    def one_by_one(what: str, facts: dict[str, Any]) -> None:
        with lock:
            tell(what, facts)

    return one_by_one


def _unknown(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}" if known else ""
    return f"there is no workflow {name!r}{hint}"

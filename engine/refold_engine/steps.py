"""Steps of a workflow: tasks with an agent, and groups of tasks one after another. Those with branches: fanout.py.

Rules of this module
- A task is a message to its agent; its turns go on as after any message, handoffs and routes included. Later tasks see
  the conversation so far.
- What the record has as done is not done again. Whether it is done is asked of the log, never remembered elsewhere.
- A task that fails ends its step; the store's own troubles are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from refold_engine.config import Task
from refold_engine.course import Course
from refold_engine.errors import EngineStopped, ModelFailed, ToolFailed
from refold_engine.ports import Message
from refold_engine.telling import Tell
from refold_engine.voting import Verdict
from refold_store.errors import RefoldError, Refused, SchemaChanged, TransactionInvalid
from refold_store.run import Run

if TYPE_CHECKING:
    from refold_engine.engine import Engine

FAILURES = (ModelFailed, EngineStopped, ToolFailed, Refused)
"""What makes a task fail. Anything else is raised: the workflow stands where it stood."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step stands. `text`: its result, or why it failed. `path` is its place, counted from 1: `2.3`.

    `asked` is by run and id what a person has to answer. `again`: going on after a failure may help.
    """

    path: str
    name: str
    how: Literal["done", "failed", "interrupted"]
    text: str = ""
    verdict: Verdict | None = None
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    again: bool = True


@dataclass(slots=True)
class Place:
    """A run that steps are done in, and how far its log says they are."""

    run: Run
    course: Course

    @staticmethod
    def at(run: Run) -> Place:
        """The run as it stands."""
        place = Place(run, Course())
        place.course.follow(run)
        return place


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a workflow through a run. Branches are named after `root`."""

    engine: Engine
    tell: Tell
    workflow: str
    number: int
    root: str
    input: str
    fan_out: Callable[[Pass, Place, Task, str], StepResult]
    """Does a step with branches: a branch is made of steps again."""
    keys_shared: tuple[str, ...] = ()

    def id(self, path: str) -> str:
        """A step's id, as `refs.step` has it."""
        return f"{self.workflow}#{self.number}/{path}"

    def begin(self, place: Place, tasks: Sequence[Task], path: str) -> None:
        """Put the workflow's input into a conversation, if the first task does not hold it anyway."""
        step = f"{self.id(path)}:input"
        first = tasks[0] if tasks else None
        while first is not None and first.kind == "sequential" and first.tasks:
            first = first.tasks[0]
        holds = first is not None and first.agent is not None and not first.instruction
        if self.input and not holds and step not in place.course.told:
            self.say(place, step, self.input, told=True, input=True)

    def say(
        self, place: Place, step: str, text: str, *, to: str | None = None, told: bool = False, input: bool = False
    ) -> None:
        """Add a message to a conversation. `told`: it wants no answer. `input`: it is the workflow's input."""
        refs: dict[str, Any] = {"step": step}
        if to is not None:
            refs["to"] = to
        refs |= {name: True for name, set_ in (("told", told), ("input", input)) if set_}
        body = {"message": Message("user", text).to_json()}
        place.run.append("message.added", actor=self.workflow, body=body, refs=refs)
        place.course.follow(place.run)


def do_all(work: Pass, place: Place, tasks: Sequence[Task], path: str) -> list[StepResult]:
    """Do tasks one after another, until one is not done."""
    results: list[StepResult] = []
    for position, task in enumerate(tasks, 1):
        results.append(do(work, place, task, f"{path}.{position}" if path else str(position)))
        if results[-1].how != "done":
            break
    return results


def do(work: Pass, place: Place, task: Task, path: str) -> StepResult:
    """Do one task, or what is left of it."""
    if task.kind != "sequential":
        return work.fan_out(work, place, task, path)
    if task.agent is not None:
        text = task.instruction or work.input or f"Do the task {task.name!r}."
        is_input = bool(work.input) and not task.instruction
        return ask(work, place, Asked(task.name, path, work.id(path), text, task.agent, is_input))
    results = do_all(work, place, task.tasks, path)
    if not results:
        return StepResult(path, task.name, "done")
    last = results[-1]
    return StepResult(path, task.name, last.how, last.text, asked=last.asked, again=last.again)


def is_done(work: Pass, course: Course, task: Task, path: str) -> bool:
    """Whether the record has a task as done."""
    if task.kind != "sequential" or task.agent is not None:
        return work.id(path) in course.done
    return all(is_done(work, course, one, f"{path}.{position}") for position, one in enumerate(task.tasks, 1))


@dataclass(frozen=True, slots=True)
class Asked:
    """A message that wants an answer. `to` None: whoever is active gets it."""

    name: str
    path: str
    step: str
    text: str
    to: str | None = None
    is_input: bool = False


def ask(work: Pass, place: Place, asked: Asked) -> StepResult:
    """Send a message, unless it is sent, and go on until it is answered, unless it is."""
    course, run = place.course, place.run
    if asked.step in course.done:
        return StepResult(asked.path, asked.name, "done", course.done[asked.step])
    work.tell("step", {"step": asked.path, "name": asked.name, "agent": asked.to, "run": run.name})
    progress = work.engine.progress(run)
    if course.current != asked.step or progress.stopped is not None:
        if progress.unanswered and not progress.waiting:
            raise TransactionInvalid(
                f"run {run.name!r}: an earlier message is not answered yet; go on with it before the workflow does"
            )
        if not progress.waiting:
            work.say(place, asked.step, asked.text, to=asked.to, input=asked.is_input)
    try:
        result = work.engine.go_on(run.name, tenant=run.tenant)
    except SchemaChanged:
        raise
    except FAILURES as error:
        return failed(asked.path, asked.name, error)
    place.course.follow(run)
    if result.how == "interrupted":
        return StepResult(asked.path, asked.name, "interrupted", result.text, asked={run.name: result.asked})
    if result.how == "stopped":
        return StepResult(asked.path, asked.name, "failed", result.text, again=False)
    return StepResult(asked.path, asked.name, "done", course.done.get(asked.step, result.text))


def failed(path: str, name: str, error: RefoldError) -> StepResult:
    """A step that failed by an error. After a model's failure the same run may go on; else it would fail again."""
    return StepResult(path, name, "failed", str(error) or type(error).__name__, again=isinstance(error, ModelFailed))

"""Which tools an agent is offered just now: `available_when`, fail-closed.

Rules of this module
- Pure. A tool is offered only if its condition is true of the state. A key that is not set yet hides it silently; a
  condition that is broken (it does not parse, it has no meaning on these values, a function in it fails) hides it too
  and says so in one line for the log.
- The lines are facts, not errors: the turn goes on without the tool.
- Execution asks again (`check`): between offer and call the state may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from refold_engine.errors import ToolFailed
from refold_store.conditions import Condition, compile_condition
from refold_store.errors import ConditionError, ConditionFailed

State = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Gate:
    """A tool's name and when it is there. `broken` says why its condition cannot be judged at all."""

    tool: str
    condition: Condition | None = None
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a tool is there, and why not: `waits_for` keys that are not set, or `problem` for the log."""

    open: bool
    waits_for: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools offered, in the order given, and by tool what was wrong with the condition of one that is not."""

    tools: tuple[str, ...]
    problems: Mapping[str, str]


def gate(tool: str, available_when: str | None, functions: Mapping[str, Callable[..., object]] | None = None) -> Gate:
    """The gate of a tool. A condition that does not compile closes it for good; `refold engine check` reports it."""
    if available_when is None:
        return Gate(tool)
    try:
        return Gate(tool, compile_condition(available_when, functions=functions))
    except ConditionError as error:
        return Gate(tool, broken=str(error))


def ask(found: Gate, state: State) -> Answer:
    """Whether the tool is there in this state."""
    if found.broken is not None:
        return Answer(False, problem=found.broken)
    if found.condition is None:
        return Answer(True)
    try:
        verdict = found.condition(state)
    except ConditionFailed as error:
        return Answer(False, problem=str(error))
    except Exception as error:  # a declared function that fails in a way of its own
        return Answer(False, problem=f"condition {found.condition.expression!r}: {type(error).__name__}: {error}")
    if verdict is None:
        return Answer(False, waits_for=found.condition.missing(state))
    return Answer(verdict)


def offered(gates: Iterable[Gate], state: State) -> Offer:
    """The tools whose gates are open in this state."""
    answers = [(one.tool, ask(one, state)) for one in gates]
    problems = {tool: answer.problem for tool, answer in answers if answer.problem is not None}
    return Offer(tuple(tool for tool, answer in answers if answer.open), problems)


def check(found: Gate, state: State) -> None:
    """Ask again before a call. Raises ToolFailed if the tool is not there (any more); it then had no effect."""
    answer = ask(found, state)
    if answer.open:
        return
    if answer.problem is not None:
        why = f"its condition cannot be judged ({answer.problem})"
    elif answer.waits_for:
        why = f"it waits for {', '.join(answer.waits_for)}"
    else:
        why = f"it is there only when {found.condition.expression}" if found.condition is not None else "it is closed"
    raise ToolFailed(f"tool {found.tool!r} is not available now: {why}", tool=found.tool)

"""What tests of workflows share: a team of agents that answers by a function, on a configuration given as text."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from refold_engine.config import Config
from refold_engine.loading import load
from refold_engine.ports import ModelAnswer, ModelRequest, ToolCall

HEAD = """
default_agent: lead
model: {{primary: test/model, fallback: {fallback}, retries: 0}}
groups: {{team: [{agents}]}}
state_schema:
  notes: {{type: array, reducer: append, owner: team}}
  count: {{type: number, reducer: add, owner: team}}
  best: {{type: string, owner: team}}
  long_term_memory: {{type: string, owner: team}}
agents: {{{prompts}}}
circuit_breakers: {{max_model_calls_per_turn: 3, max_parallel_fan_out: {fan_out}}}
workflows:
  job:
"""


def team(folder: Path, workflow: str, *, agents: int = 3, fallback: str = "test/cheap", fan_out: int = 10) -> Config:
    """The configuration of `lead` and the agents a0, a1, ... with one workflow `job`, given as indented YAML."""
    names = ["lead", *(f"a{number}" for number in range(agents))]
    prompts = ", ".join(f"{name}: {{system_prompt: I am {name}.}}" for name in names)
    path = folder / "team.yaml"
    head = HEAD.format(agents=", ".join(names), prompts=prompts, fallback=fallback, fan_out=fan_out)
    path.write_text(head + workflow)
    return load(path)


def branches(kind: str, count: int, *, more: str = "") -> str:
    """A step with so many branches, of the agents a0, a1, ..."""
    tasks = "".join(f"        - {{name: t{n}, agent: a{n}, instruction: do {n}}}\n" for n in range(count))
    return f"    - name: step\n      type: {kind}\n{more}      tasks:\n{tasks}"


class Answers:
    """A model: `answer(agent, text of the last message, how often it was asked before)` says what, and is counted."""

    def __init__(self, answer: Callable[[str, str, int], ModelAnswer | str]) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self.requests: list[ModelRequest] = []

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """The answer of the function."""
        with self._lock:
            before = sum(one.agent == request.agent for one in self.requests)
            self.requests.append(request)
        found = self._answer(request.agent, request.messages[-1].content, before)
        return ModelAnswer(found, model=request.model) if isinstance(found, str) else found

    def asked(self, agent: str) -> int:
        """How often an agent asked."""
        return sum(one.agent == agent for one in self.requests)


def write(**values: object) -> ModelAnswer:
    """An answer that writes keys."""
    calls = (
        ToolCall(str(at), "write_state", {"key": key, "value": value}) for at, (key, value) in enumerate(values.items())
    )
    return ModelAnswer("", tuple(calls))

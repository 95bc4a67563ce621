"""What the engine's tests share: a team from a few lines, models from lists, and short words for calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from refold import Store
from refold_engine.config import Config
from refold_engine.engine import Engine
from refold_engine.loading import load
from refold_engine.ports import Message, Model, ModelAnswer, ModelRequest, ToolCall, Usage
from refold_engine.telling import Tell, silent

TEAM: dict[str, Any] = {
    "default_agent": "intake",
    "model": {"primary": "test/large", "fallback": "test/small", "temperature": 0, "retries": 0},
    "state_schema": {
        "loss": {"type": "object"},
        "limit": {"type": "integer"},
        "code": {"type": "string"},
        "notes": {"type": "array"},
    },
    "reducers": {"notes": "append"},
    "owners": {"loss": "intake", "limit": "triage", "code": "intake", "notes": "team"},
    "groups": {"team": ["intake", "triage", "settle"]},
    "agents": {
        "intake": {"description": "takes in", "system_prompt": "You take in.", "handoffs": ["triage"]},
        "triage": {"description": "routes", "system_prompt": "You route.", "handoffs": ["settle"]},
        "settle": {"description": "settles", "system_prompt": "You settle."},
    },
}


def team(folder: Path, code: str = "", **changes: Any) -> Config:
    """TEAM with changes of its sections, loaded from a file; `code` is the text of a module `team_tools` there."""
    folder.mkdir(parents=True, exist_ok=True)
    if code:
        (folder / f"{folder.name}_tools.py").write_text(code)
    path = folder / "team.yaml"
    path.write_text(yaml.safe_dump({**TEAM, **changes}, sort_keys=False))
    return load(path)


class Answers:
    """A model that answers from lists, one for each agent, and keeps what it was asked."""

    def __init__(self, **by_agent: Sequence[ModelAnswer | str | Exception]) -> None:
        self._left = {agent: list(answers) for agent, answers in by_agent.items()}
        self.asked: list[ModelRequest] = []

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """The agent's next answer."""
        self.asked.append(request)
        left = self._left.get(request.agent)
        assert left, f"{request.agent!r} asks once more: {request.messages[-1]}"
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return ModelAnswer(found, model=request.model) if isinstance(found, str) else found


class NoModel:
    """A model that may not be asked."""

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """Fails the test."""
        raise AssertionError(f"a live call: {request.agent} {request.messages[-1]}")


def calls(*named: tuple[str, dict[str, Any]], text: str = "", cost: float | None = None) -> ModelAnswer:
    """An answer that calls tools."""
    made = tuple(ToolCall(f"c{at}", name, arguments) for at, (name, arguments) in enumerate(named, 1))
    return ModelAnswer(text, made, Usage(cost=cost))


def write(key: str, value: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    """A call of write_state."""
    return "write_state", {"key": key, "value": value, **more}


def to(agent: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """A call of transfer_agent."""
    return "transfer_agent", {"target_agent": agent, **more}


def engine(config: Config, store: Store, model: Model, tell: Tell = silent, **ports: Any) -> Engine:
    """An engine whose clock does not wait."""
    return Engine(config, store, model, tell=tell, clock=ports.pop("clock", StillClock()), **ports)


class StillClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000

    def now_us(self) -> int:
        """µs since the epoch."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Pass."""
        self.now += round(seconds * 1e6)


def results(store: Store, run: str) -> list[str]:
    """The texts that tools returned, in order."""
    return [event.body["message"]["content"] for event in store.run(run).events(("tool.returned",))]


def last_of(request: ModelRequest) -> Message:
    """What was said last."""
    return request.messages[-1]

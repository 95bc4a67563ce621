"""The ports of a replay: nobody is asked, nothing is waited for, and the store tells before it looks.

Rules of this module
- The model and the tools are the record (`Tape`). A tool's own function is never called; how models are told of it is
  its declaration's, or for a server's tool the record's, so that no server is started.
- A replayed run is a run like any other, on a store of its own; only it says when it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from refold_engine.config import Config
from refold_engine.errors import ToolFailed
from refold_engine.ports import Json, ModelAnswer, ModelRequest, Tool, ToolSpec
from refold_engine.state_tools import NAMES
from refold_engine.toolbox import open_tools
from refold_engine.toolcontext import ToolContext
from refold_engine.tools import told
from refold_replay.tape import Tape
from refold_store import jsontext
from refold_store.errors import InvalidValue, RefoldError, Refused
from refold_store.events import Event
from refold_store.reads import Read, State
from refold_store.run import Run
from refold_store.store import Store
from refold_store.turns import Turn


class TapedModel:
    """A Model that answers from the record."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """What was recorded. Raises NotRecorded."""
        return ModelAnswer.from_json(self._tape.answer_to(request).body["answer"])


class TapedTool:
    """A Tool that returns what it returned, writes what it wrote, and fails as it failed."""

    def __init__(self, tape: Tape, spec: ToolSpec) -> None:
        self._tape, self._spec = tape, spec

    @property
    def spec(self) -> ToolSpec:
        """How a model is told of it."""
        return self._spec

    def call(self, arguments: Mapping[str, Json], context: object) -> Json:
        """The recorded result, as text. Raises NotRecorded, or the ToolFailed on the record."""
        assert isinstance(context, ToolContext)
        event = self._tape.result_of(self._spec.name, arguments, context.agent)
        for key in self._tape.reads_before(event):
            try:
                context.read_state(key)
            except RefoldError:  # the key is declared no more: what rests on it will differ
                continue
        body = event.body
        try:
            for key, value, basis in body.get("writes", ()):
                context.write_state(key, value, basis=basis)
        except Refused as error:
            raise ToolFailed(f"tool {self._spec.name!r} failed: {told(error)}", tool=self._spec.name) from error
        content: str = body["message"]["content"]
        if event.refs.get("failed") and (why := _failure(content)) is not None:
            raise ToolFailed(why, tool=self._spec.name)
        return content


def _failure(content: str) -> str | None:
    """The words of a failed call's result."""
    try:
        found = jsontext.parse(content.encode())
    except (InvalidValue, ValueError):
        return None
    return str(found["error"]) if isinstance(found, dict) and "error" in found else None


class NoWaiting:
    """A Clock of the record: it stands where the record stands, and no pause is waited."""

    def __init__(self) -> None:
        self.at_us = 0

    def now_us(self) -> int:
        """µs since the epoch."""
        return self.at_us

    def sleep(self, seconds: float) -> None:
        """Go on at once."""


class NoChance:
    """A Random that draws the same each time: nothing that is compared rests on it."""

    def bytes(self, size: int) -> bytes:
        """So many zero bytes."""
        return bytes(size)


def taped_tools(
    config: Config, tape: Tape, given: Mapping[str, Tool], specs: Mapping[str, Sequence[ToolSpec]]
) -> dict[str, Tool]:
    """The tools of a configuration, served from the record; those `given` are called. `specs`: of servers, by name."""
    python = {name: one for name, one in config.tools.items() if one.kind == "python" and name not in given}
    opened = open_tools(replace(config, tools=python), {}).tools
    found: dict[str, Tool] = {}
    for one in config.tools.values():
        if one.kind != "python":
            found |= {f"{one.name}.{spec.name}": TapedTool(tape, spec) for spec in specs.get(one.name, ())}
        elif one.name in given:
            found[one.name] = given[one.name]
        else:
            found[one.name] = TapedTool(tape, opened[one.name].spec)
    return found


def server_specs(config: Config, prompts: Iterable[Event]) -> dict[str, list[ToolSpec]]:
    """How models were told of the tools of servers, by server: what was offered and is no other tool.

    `prompts`: the events that hold prompts and settings. Of an agent with several servers, the first gets what no
    other agent tells apart.
    """
    servers = {
        agent.name: [one.name for one in agent.tools if one.tool.kind != "python"] for agent in config.agents.values()
    }
    found: dict[str, dict[str, ToolSpec]] = {}
    for event in sorted(prompts, key=lambda one: len(servers.get(one.actor or "", ()))):
        mine = servers.get(event.actor or "")
        for told_as in event.body.get("settings", {}).get("tools", ()):
            spec = ToolSpec(told_as["name"], told_as["description"], told_as["parameters"])
            known = spec.name in NAMES or spec.name in config.tools
            if mine and not known and not any(spec.name in found.get(one, ()) for one in mine):
                found.setdefault(mine[0], {})[spec.name] = spec
    return {name: list(specs.values()) for name, specs in found.items()}


class ScratchRun(Run):
    """A run of the replay's store that tells the tape before it is looked at."""

    def __init__(self, tape: Tape, store: Store, name: str, tenant: str) -> None:
        super().__init__(store, name, tenant)
        self._tape = tape

    def peek(self, key: str) -> Read:
        """As ever."""
        self._tape.before_look()
        return super().peek(key)

    def state(self) -> State:
        """As ever."""
        self._tape.before_look()
        return super().state()

    def read_state(self, key: str, *, reader: str, turn: int | None = None) -> Read:
        """As ever."""
        self._tape.before_read(key)
        return super().read_state(key, reader=reader, turn=turn)

    def turn(
        self, agent: str, *, number: int | None = None, live: bool = False, body: Mapping[str, Any] | None = None
    ) -> Turn:
        """As ever, and tells before it commits."""
        return ScratchTurn(self, agent, number=number, live=live, body=body)


class ScratchTurn(Turn):
    """A turn of the replay."""

    def _finish(self, asked: list[dict[str, Any]] | None) -> None:
        run = self.run
        if self.parent is None and isinstance(run, ScratchRun):
            run._tape.before_commit()
        super()._finish(asked)


def serve(store: Store, tape: Tape) -> None:
    """Let the runs of a store tell the tape."""
    store._make_run = partial(ScratchRun, tape)

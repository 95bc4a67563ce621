"""refold's engine, as the benchmarks drive it: a team of one agent, a scripted model, two model calls a message.

The model first calls `read_state` three times and `write_state` once, then answers. Values are those of `values.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from time import perf_counter
from typing import Any

import yaml

from bench.lab import Lab
from bench.subject import new_store_url
from bench.values import DOCUMENTS, OWNER
from refold import open_store
from refold_engine.config import Config
from refold_engine.engine import Engine
from refold_engine.loading import load
from refold_engine.ports import Message, ModelAnswer, ModelRequest, ToolCall
from refold_store import jsontext

READS = ("limit", "loss", "notes")
WRITTEN = "routing"
MODEL = "bench/scripted"
PROMPT = "You route claims. Read limit, loss and notes, then write routing."
QUESTION = "A further notice has come in for this claim: please check the routing again."
ANSWER = "The routing is checked and written; the claim stays with direct compensation."


def config(lab: Lab, changes: Mapping[str, Any] | None = None, *, keys: int = 0) -> Config:
    """The compiled file of the team, with changes of its sections and so many more keys."""
    names = [*READS, WRITTEN, *(f"fact_{number:04d}" for number in range(keys))]
    made = {
        "default_agent": OWNER,
        "model": {"primary": MODEL, "temperature": 0, "retries": 0},
        "state_schema": {name: {"type": "object"} for name in names},
        "owners": dict.fromkeys(names, OWNER),
        "agents": {OWNER: {"description": "routes claims", "system_prompt": PROMPT}},
    }
    path = lab.fresh_file("team").with_name("team.yaml")
    path.write_text(yaml.safe_dump({**made, **(changes or {})}, sort_keys=False), "utf-8")
    return load(path)


class Scripted:
    """The model: what it says rests on the last message alone. `asked_bytes` sums up its requests, if wanted."""

    def __init__(self, *, measuring: bool = False) -> None:
        self._numbers = count()
        self._measuring = measuring
        self.asked_bytes = 0

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """As the engine's port."""
        if self._measuring:
            self.asked_bytes += len(jsontext.encode(request.to_json()))
        return self.reply(request.messages[-1])

    def reply(self, last: Message) -> ModelAnswer:
        """The answer to the last message."""
        if last.role != "user":
            return ModelAnswer(ANSWER, model=MODEL)
        calls = [ToolCall(f"c{at}", "read_state", {"key": key}) for at, key in enumerate(READS)]
        value = DOCUMENTS[next(self._numbers) % len(DOCUMENTS)]
        calls.append(ToolCall(f"c{len(READS)}", "write_state", {"key": WRITTEN, "value": value}))
        return ModelAnswer("", tuple(calls), model=MODEL)


class Team:
    """The engine on a store of its own."""

    name = "refold"

    def __init__(self, lab: Lab, backend: str, *, measuring: bool = False, made: Config | None = None) -> None:
        self.url = new_store_url(lab, backend)
        self.config = made or config(lab)
        self.model = Scripted(measuring=measuring)
        self.store = open_store(self.url, schema=self.config.schema)
        self.engine = Engine(self.config, self.store, self.model)
        self._numbers = count()

    def start(self) -> str:
        """A fresh run that holds what its agent will read."""
        run = self.store.run(f"clm-{next(self._numbers)}")
        for at, key in enumerate(READS):
            run.write_state(key, DOCUMENTS[at], writer=OWNER)
        return run.name

    def talk(self, run: str, turns: int) -> None:
        """So many messages, each answered in one turn."""
        send = self.engine.send
        for _ in range(turns):
            assert send(run, QUESTION).how == "answered"

    def alone(self, run: str, turns: int) -> None:
        """So many turns of a program without the engine: three reads and a write in `run.turn`."""
        place = self.store.run(run)
        for number in range(turns):
            with place.turn(OWNER) as turn:
                for key in READS:
                    assert turn.read_state(key).json
                turn.write_state(WRITTEN, DOCUMENTS[number % len(DOCUMENTS)])

    def close(self) -> None:
        """Closes both."""
        self.engine.close()
        self.store.close()


def behind(
    start: Callable[[], Any], work: Callable[[Any, int], None], before: int, clock: Callable[[], float] = perf_counter
) -> Callable[[int], float]:
    """A side whose operations come behind so many in a fresh run; only they are timed, by this clock in seconds."""

    def operate(operations: int) -> float:
        run = start()
        work(run, before)
        started = clock()
        work(run, operations)
        return clock() - started

    return operate


def within(work: Callable[[Any, int], None], run: Any) -> Callable[[int], None]:
    """A side whose operations go on in one run."""

    def operate(operations: int) -> None:
        work(run, operations)

    return operate

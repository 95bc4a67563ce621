"""The engine: a message goes into a run, and its agents go on until one answers, a person is asked, or a limit is met.

Rules of this module
- One active agent at a time, each turn a transaction of the run. Where a run stands is a fold over its log
  (`progress`), so any process may go on with it, after a crash too.
- A turn that failed is begun again under its number when the run goes on; its finished effects are not repeated.
- The engine holds no state that the log does not have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refold_engine import limits
from refold_engine.agentturn import AgentTurn
from refold_engine.asking import AskConfig
from refold_engine.asks import Settings
from refold_engine.config import UNTRUSTED, AgentConfig, AgentTool, Config
from refold_engine.errors import EngineStopped
from refold_engine.journal import Journal
from refold_engine.outcomes import Result
from refold_engine.ports import Clock, Message, Model, Random, Tool
from refold_engine.progress import ENGINE, Progress
from refold_engine.routing import Peeked, route
from refold_engine.shared import check_initial, pay
from refold_engine.telling import Tell, silent
from refold_engine.toolbox import open_tools
from refold_engine.toolnames import tools_of
from refold_store.errors import Refused, TransactionInvalid
from refold_store.requests import Written
from refold_store.run import Run
from refold_store.store import Store
from refold_store.turns import Turn

TURNS_MAX = 1_000
"""Turns after one message: the breakers stop long before, this bounds the loop itself."""


class SystemClock:
    """The process's clock."""

    def now_us(self) -> int:
        """µs since the epoch."""
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class SystemRandom:
    """The operating system's randomness."""

    def bytes(self, size: int) -> bytes:
        """So many random bytes."""
        return os.urandom(size)


@dataclass(frozen=True, slots=True)
class Ports:
    """What an engine asks of the world."""

    model: Model
    clock: Clock
    random: Random


class Engine:
    """Agents of one configuration on one store. Threads may use it, each on runs of its own."""

    def __init__(
        self,
        config: Config,
        store: Store,
        model: Model,
        *,
        tools: Mapping[str, Tool] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        tell: Tell = silent,
    ) -> None:
        self.config = config
        self.store = store
        self.ports = Ports(model, clock or SystemClock(), random or SystemRandom())
        self.tell = tell
        self._toolbox = open_tools(config, tools or {})
        self.tools: Mapping[str, Tool] = self._toolbox.tools
        self._check_names()
        model_config = config.model
        self.ask_config = AskConfig(
            model_config.fallback, timeout_s=model_config.timeout_s, tries=model_config.retries + 1
        )
        self.settings: dict[str, Settings] = {}
        """What the last request of each agent had in common with the next."""
        self._known: dict[tuple[str, str], Progress] = {}

    def close(self) -> None:
        """End the tool servers. The store stays open."""
        self._toolbox.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _check_names(self) -> None:
        """Raises ConfigError if an agent has two tools that a model could not tell apart."""
        try:
            for agent in self.config.agents.values():
                self.tools_of(agent)
        except BaseException:
            self.close()
            raise

    # --- what a caller does ------------------------------------------------------------------

    def open(
        self, run: str, initial: Mapping[str, object], *, by: str, tenant: str = "default", basis: str | None = None
    ) -> list[Written]:
        """Begin a run with a client's values, each in its owner's name; all or none.

        Raises a Refused, which is recorded: a key that is not declared, or of another type, or shared with other runs,
        or a name of the engine's. Raises TransactionInvalid if the run holds values already.
        """
        place = self._run(run, tenant)
        check_initial(place, initial, by)
        return place.open(opened_by=by, initial=initial, basis=basis)

    def send(self, run: str, text: str, *, tenant: str = "default", message_id: str | None = None) -> Result:
        """Add a person's message and go on until it is answered. The same `message_id` again adds nothing.

        Raises TransactionInvalid while an earlier message is unanswered or a person is asked; ModelsExhausted and
        StoreUnavailable leave the run where it was: `go_on` takes it up.
        """
        place = self._run(run, tenant)
        progress = self.progress(place)
        self.settle(place, progress)
        if message_id is None or message_id not in progress.message_ids:
            if progress.unanswered or progress.waiting:
                what = "a person has to answer first" if progress.waiting else "an earlier message is not answered yet"
                raise TransactionInvalid(f"run {run!r}: {what}; go on with it, then send the next one")
            refs = {} if message_id is None else {"id": message_id}
            message = Message("user", text)
            place.append("message.added", actor="user", body={"message": message.to_json()}, refs=refs)
        return self.go_on(run, tenant=tenant)

    def resume(self, run: str, answers: Mapping[str, Any], *, by: str, tenant: str = "default") -> Result:
        """Answer what the agents asked a person (id to True, False or {"approved": ..., "note": ...}), and go on."""
        self._run(run, tenant).resume(answers, by=by)
        return self.go_on(run, tenant=tenant)

    def go_on(self, run: str, *, tenant: str = "default") -> Result:
        """Go on with what is not finished: after a crash, a failure, or an answer."""
        place = self._run(run, tenant)
        said = ""
        for _turn in range(TURNS_MAX):
            progress = self.progress(place)
            self.settle(place, progress)
            asked = place.interrupts() if progress.waiting else {}
            if asked:
                return Result(
                    run, "interrupted", progress.agent, said, {one.id: one.call.to_json() for one in progress.waiting}
                )
            if progress.stopped is not None:
                return Result(run, "stopped", progress.agent, progress.stopped)
            if not progress.unanswered:
                return self._finished(run, progress)
            said = self._step(place, progress)
        raise AssertionError("the breakers stop a run long before")

    def settle(self, run: Run, progress: Progress) -> None:
        """Write what the newest turn owes to keys shared with other runs. Raises what a write raises."""
        if progress.owed is None:
            return
        try:
            pay(run, progress.owed)
        except Refused:
            progress.owed = None
            raise
        progress.owed = None

    def _finished(self, run: str, progress: Progress) -> Result:
        last = progress.said[-1].message if progress.said else None
        if last is None or last.role != "assistant":
            return Result(run, "idle", progress.agent)
        return Result(run, "answered", progress.agent, last.content)

    # --- one step ----------------------------------------------------------------------------

    def _step(self, run: Run, progress: Progress) -> str:
        """One route without a turn, or one turn."""
        try:
            if progress.open is None:
                if self._route(run, progress):
                    return ""
                limits.check_turn(self.config.breakers, progress)
        except EngineStopped as error:
            run.append("failure.raised", actor=progress.agent, body={"of": "limit", **limits.told(error)})
            self.tell("stopped", limits.told(error))
            return ""
        agent = self.config.agents[progress.agent]
        number = None if progress.open is None else progress.open.number
        body = {"by": ENGINE}
        if progress.config != self.config.fingerprint:
            body["config"] = self.config.fingerprint
        turn = run.turn(agent.name, number=number, body=body)
        with turn:
            self.tell("turn", {"agent": agent.name, "turn": turn.number, "attempt": turn.attempt})
            attempt = AgentTurn(self, turn, agent, progress, self.journal_of(turn), progress.said)
            return attempt.run().text

    def _route(self, run: Run, progress: Progress) -> bool:
        """Try the active agent's routers on the committed state: where one fires it has no turn at all."""
        routers = self.config.routers_of(progress.agent)
        if not routers or progress.waiting:
            return False
        found = route(routers, Peeked(run.peek, run.keys, {UNTRUSTED: progress.untrusted}))
        if found.target is None or found.router is None:
            return False
        limits.check_hop(self.config.breakers, progress)
        for router, problem in found.broken:
            text = f"router {router.name} ({router.label}) is skipped: {problem}"
            run.append("failure.raised", actor=progress.agent, body={"of": "condition", "message": text})
        body = {"by": ENGINE, "from": progress.agent, "to": found.target, "router": found.router.name}
        refs = {"seen": found.seen}
        run.append("route.decided", actor=progress.agent, body=body | {"condition": found.router.label}, refs=refs)
        self.tell("routed", body)
        return True

    # --- what is known -----------------------------------------------------------------------

    def progress(self, run: Run) -> Progress:
        """Where a run stands: the fold, continued with what the log has gained."""
        at = (run.tenant, run.name)
        found = self._known.get(at)
        if found is None:
            found = self._known[at] = Progress(self.config.default_agent)
        head = run.head_seq()
        if head > found.seq:
            for event in run.events(after=found.seq, until=head):
                found.feed(event)
        found.settle()
        return found

    def journal_of(self, turn: Turn) -> Journal:
        """What is on record of a turn's effects: nothing at its first attempt."""
        if turn.attempt == 1:
            return Journal()
        events = [event for event in turn.run.events() if event.turn == turn.number]
        children = (
            event.turn
            for event in turn.run.events(("turn.started",))
            if event.refs.get("parent") == turn.number and event.turn is not None
        )
        return Journal(events, children)

    def tools_of(self, agent: AgentConfig) -> dict[str, tuple[AgentTool, Tool]]:
        """Every tool an agent has, offered just now or not."""
        return tools_of(agent, self.tools)

    def _run(self, run: str, tenant: str) -> Run:
        return self.store.run(run, tenant)

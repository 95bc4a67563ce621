"""One attempt of one turn of one agent: routers, offer, prompt, model, calls, and round again until somebody goes on.

Rules of this module
- Routers first: where one fires no model is asked. Then the model; then its calls; then routers again.
- What is decided is in the turn's draft or its end event; what was done is in the journal. Nothing else is kept.
- A turn ends by an answer, a route, a handoff, an interrupt, or a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold_engine import limits
from refold_engine.asks import Asker
from refold_engine.auto_route import normalise, route_request
from refold_engine.calls import Caller, Handover
from refold_engine.config import UNTRUSTED, AgentConfig
from refold_engine.conversation import Said, ranges
from refold_engine.errors import EngineStopped
from refold_engine.journal import Journal
from refold_engine.offers import offer
from refold_engine.outcomes import Approval, TurnOutcome
from refold_engine.progress import ENGINE, Progress
from refold_engine.routing import Peeked, Routed, route
from refold_engine.shared import TurnState
from refold_store.turns import Turn

if TYPE_CHECKING:
    from refold_engine.engine import Engine


class AgentTurn:
    """One attempt. `depth` is 0 for the active agent, 1 and more for those it gave a task."""

    def __init__(
        self,
        engine: Engine,
        turn: Turn,
        agent: AgentConfig,
        progress: Progress,
        journal: Journal,
        said: list[Said],
        *,
        depth: int = 0,
        above: TurnState | None = None,
    ) -> None:
        self.engine, self.turn, self.agent, self.progress, self.journal = engine, turn, agent, progress, journal
        self.depth = depth
        self.state = TurnState(turn, above)
        """`above`: that of the turn it works for."""
        self._said = list(said)
        self._mine: list[int] = []
        """Seqs of the messages this turn adds."""
        self._pending: dict[str, object] = {}
        self._asker = Asker(engine, turn, agent, journal, progress, before=len(said), state=self.state)
        self._caller = Caller(self)

    @property
    def delegated(self) -> bool:
        """Whether it works for another agent's turn."""
        return self.depth > 0

    def run(self) -> TurnOutcome:
        """Go round until it ends; the turn is then concluded and ready to commit."""
        try:
            return self._concluded(self._go())
        except EngineStopped as error:
            if self.delegated:
                raise
            self.turn.append("failure.raised", body={"of": "limit", **limits.told(error)}, durable=False)
            return self._concluded(TurnOutcome("stopped", str(error)))

    def _go(self) -> TurnOutcome:
        breakers = self.engine.config.breakers
        most = breakers.max_delegation_turns if self.delegated else breakers.max_model_calls_per_turn
        if not self.delegated and self.progress.waiting:
            self._add(self._caller.approved(self.progress.waiting))
        for _call in range(most):
            routed = None if self.delegated else self._route()
            if routed is not None and routed.target is not None and routed.router is not None:
                return self._routed(routed)
            limits.check_cost(breakers, self.progress)
            state = self.peeked()
            offered = offer(self.engine.config, self.agent, self.engine.tools, state, delegated=self.delegated)
            for tool, problem in offered.problems.items():
                self._log(f"tool {tool!r} is hidden: {problem}")
            answer = self._asker.ask(self._said, offered)
            self._add([answer])
            if not answer.message.tool_calls:
                return self._answered(answer.message.content)
            done = self._caller.call(answer.message.tool_calls, offered)
            self._add(done.said)
            if done.approvals:
                return self._interrupt(done.approvals, answer.message.content)
            if done.handover is not None:
                return self._handed(done.handover, answer.message.content)
        raise limits.stopped(
            "max_delegation_turns" if self.delegated else "max_model_calls_per_turn",
            most,
            most,
            f"{self.agent.name!r} asked its model {most} times in one turn without an end",
        )

    def peeked(self) -> Peeked:
        """The state as conditions see it: the committed one with this turn's draft."""
        run = self.turn.run
        return Peeked(self.state.peek, run.keys, {UNTRUSTED: self.progress.untrusted or self.progress.live.untrusted})

    def _add(self, said: list[Said]) -> None:
        self._said += said
        self._mine += [one.seq for one in said]

    def _log(self, text: str) -> None:
        self.engine.tell("noticed", {"agent": self.agent.name, "text": text})
        self.turn.append("failure.raised", body={"of": "condition", "message": text}, durable=False)

    # --- how it ends -------------------------------------------------------------------------

    def _concluded(self, outcome: TurnOutcome) -> TurnOutcome:
        how = "delegated" if self.delegated else outcome.how
        shared = {} if self.delegated else {"shared": owed} if (owed := self.state.owed()) else {}
        self.turn.conclude({"outcome": how, "messages": ranges(self._mine)} | self._pending | shared)
        return outcome

    def _route(self) -> Routed | None:
        routers = self.engine.config.routers_of(self.agent.name)
        if not routers:
            return None
        found = route(routers, self.peeked())
        for router, problem in found.broken:
            self._log(f"router {router.name} ({router.label}) is skipped: {problem}")
        return found

    def _routed(self, found: Routed) -> TurnOutcome:
        assert found.target is not None
        assert found.router is not None
        limits.check_hop(self.engine.config.breakers, self.progress)
        body = {"by": ENGINE, "from": self.agent.name, "to": found.target, "router": found.router.name}
        self.turn.at_commit("route.decided", body=body | {"condition": found.router.label}, refs={"seen": found.seen})
        self.engine.tell("routed", body)
        return TurnOutcome("goes_on", target=found.target)

    def _handed(self, handover: Handover, text: str) -> TurnOutcome:
        limits.check_hop(self.engine.config.breakers, self.progress)
        body = {"by": ENGINE, "from": self.agent.name, "to": handover.target, "reason": handover.reason}
        if handover.payload is not None:
            body["payload"] = handover.payload
        self.turn.at_commit("handoff.made", body=body)
        self.engine.tell("handed", body)
        return TurnOutcome("goes_on", text, handover.target)

    def _answered(self, text: str) -> TurnOutcome:
        if self.delegated or not self.agent.auto_route:
            return TurnOutcome("answered", text)
        targets = {name: self.engine.config.agents[name].description for name in self.agent.auto_route}
        talk = [one.message for one in self._said]
        request = route_request(self.engine.config.model.cheap, targets, talk, agent=self.agent.name)
        seq, answer = self._asker.answer(request, {"for": "auto_route", **self._asker.asked(self._said)})
        target = normalise(answer.content, targets)
        body = {"by": ENGINE, "from": self.agent.name, "to": target, "router": "auto_route", "answer": answer.content}
        self.turn.at_commit("route.decided", body=body, refs={"rests_on": seq})
        if target is None or target == self.agent.name:
            return TurnOutcome("answered", text)
        limits.check_hop(self.engine.config.breakers, self.progress)
        self.engine.tell("routed", body)
        return TurnOutcome("goes_on", text, target)

    def _interrupt(self, approvals: list[Approval], text: str) -> TurnOutcome:
        pending = [{"id": one.id, "call": one.call.to_json()} for one in approvals]
        self._pending = {"pending": pending}
        self._concluded(TurnOutcome("interrupted", text))
        self.turn.interrupt([one.asked() for one in approvals])
        for one in approvals:
            self.engine.tell("asked", one.asked())
        return TurnOutcome("interrupted", text)

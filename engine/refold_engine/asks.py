"""Asking a model within a turn: the request as conversation and state make it, its answer from the record or live.

Rules of this module
- The prompt with the typed state is built anew for every request. Its reads are one event; a later block of the same
  turn lists only what changed since.
- A request is recorded by what it is made of: where its messages stand, which versions the block showed, its digest.
  No message is stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from refold_engine import asking
from refold_engine.config import AgentConfig
from refold_engine.conversation import Said, ranges
from refold_engine.offers import Offer
from refold_engine.ports import Message, ModelAnswer, ModelRequest, ToolSpec, digest_of
from refold_engine.prompting import may_read, state_block, system_message
from refold_engine.shared import TurnState
from refold_store import jsontext
from refold_store.turns import Turn

if TYPE_CHECKING:
    from refold_engine.engine import Engine
    from refold_engine.journal import Journal
    from refold_engine.progress import Progress


@dataclass(frozen=True, slots=True)
class Settings:
    """What the requests of an agent have in common while it is offered the same: kept, for it is large."""

    agent: AgentConfig
    specs: tuple[ToolSpec, ...]
    stored: Mapping[str, Any]
    """The body of the event that holds the prompt and all settings but the model."""
    digest: str
    """Of `stored`."""
    tail: bytes
    """The end of what the digest of a request is made of: all but its messages."""


def settings_of(agent: AgentConfig, specs: tuple[ToolSpec, ...], request: ModelRequest) -> Settings:
    """The settings of a request of this agent; its messages do not matter."""
    given = request.to_json()
    del given["messages"]
    tail = b"," + jsontext.encode(given) + b"]"
    del given["model"]
    stored = {"message": Message("system", agent.prompt).to_json(), "settings": given}
    return Settings(agent, specs, stored, digest_of(stored), tail)


class Talk:
    """The messages of a request behind its first, with their running digest; it only grows."""

    def __init__(self, begun: tuple[Any, list[Message]] | None = None) -> None:
        self._sum: Any
        self.messages: list[Message]
        self._sum, self.messages = begun or (sha256(), [])

    def hear(self, said: Sequence[Said]) -> None:
        """Go on with what has been said since."""
        for one in said[len(self.messages) :]:
            self._sum.update(one.text + b"\n")
            self.messages.append(one.message)

    def digest(self, system: Message, settings: Settings) -> str:
        """What `digest_of` says of the whole request."""
        found = self._sum.copy()
        found.update(b"[" + jsontext.encode([system.to_json()]) + settings.tail)
        digest: str = found.hexdigest()
        return digest


class Asker:
    """The model calls of one attempt of a turn."""

    def __init__(
        self,
        engine: Engine,
        turn: Turn,
        agent: AgentConfig,
        journal: Journal,
        progress: Progress,
        *,
        before: int = 0,
        state: TurnState | None = None,
    ) -> None:
        self._before = before
        """How many messages the conversation had before this turn."""
        self._engine = engine
        self._talk = Talk(progress.talk() if turn.parent is None else None)
        self._turn = turn
        self._state = state or TurnState(turn)
        self._agent = agent
        self._journal = journal
        self._progress = progress
        self._shown: dict[str, tuple[int, int]] = {}
        self._seen_seq = 0

    def ask(self, said: list[Said], offer: Offer) -> Said:
        """The answer to the conversation so far, and where it stands on the record. Raises ModelsExhausted."""
        config = self._engine.config
        system = system_message(self._agent.prompt, self.block())
        talk = self._talk
        talk.hear(said)
        request = ModelRequest(
            model=self._agent.model or config.model.primary,
            messages=(system, *talk.messages),
            tools=offer.specs,
            temperature=config.model.temperature,
            response_schema=None if self._agent.response is None else self._agent.response.schema,
            agent=self._agent.name,
        )
        settings = self._settings(request)
        refs = {"system": self._prompt_seq(settings), "seen": self._seen_seq, **self.asked(said)}
        seq, answer = self.answer(request, refs, talk.digest(system, settings))
        self._engine.tell("said", {"agent": self._agent.name, "text": answer.content})
        return Said(seq, Message("assistant", answer.content, answer.tool_calls))

    def asked(self, said: list[Said]) -> dict[str, Any]:
        """Where the messages of a request stand: the conversation up to a seq, then those of this turn."""
        upto = said[self._before - 1].seq if self._before else 0
        return {"upto": upto, "asked": ranges([one.seq for one in said[self._before :]])}

    def answer(
        self, request: ModelRequest, refs: Mapping[str, Any], digest: str | None = None
    ) -> tuple[int, ModelAnswer]:
        """One request's answer: served from the record, else asked for and recorded before it is used."""
        digest = digest or digest_of(request.to_json())
        recorded = self._journal.ask("model", digest)
        if recorded is not None and recorded.event is not None:
            self._engine.tell("served", {"agent": self._agent.name, "what": request.model})
            return recorded.event.seq, ModelAnswer.from_json(recorded.event.body["answer"])
        refs = {"request": digest, "model": request.model, **refs}

        def on_try(record: asking.TryRecord) -> None:
            self._progress.live.cost += record.usage.cost or 0.0
            if record.outcome == "failed":
                body = {"of": "model", **record.to_json()}
                self._turn.append("failure.raised", body=body, refs=refs, durable=False)
                self._engine.tell("failed", {"agent": self._agent.name, "what": record.model, "why": record.why})

        answer = asking.ask(self._engine.ask_config, request, self._engine.ports, on_try)
        seq = self._turn.append("model.answered", body={"answer": answer.to_json()}, refs=refs)
        return seq, answer

    def block(self) -> str | None:
        """The typed state as this agent may see it, on the record as read."""
        schema = self._engine.config.schema
        if not schema.keys:
            return None
        seq, found = self._turn.look_around()
        mine = {key: one for key, one in found.items() if key in schema and may_read(self._agent.name, schema.key(key))}
        fresh = {key: one[0] for key, one in mine.items() if self._shown.get(key) != one[:2]}
        fresh |= {key: 0 for key in self._shown if key not in mine and schema.key(key).scope == "run"}
        if fresh:
            versions = {key: fresh[key] for key in sorted(fresh, key=str.encode) if fresh[key]}
            self._turn.note_reads(versions, seq)
            self._seen_seq = seq
        mine |= self._shared()
        self._shown = {key: one[:2] for key, one in mine.items()}
        return state_block({key: one[2] for key, one in mine.items()})

    def _shared(self) -> dict[str, tuple[int, int, bytes]]:
        """The shared keys that this agent may see; each that is new or has changed is on the record as read."""
        schema, found = self._engine.config.schema, {}
        for key, one in self._state.look().items():
            if may_read(self._agent.name, schema.key(key)):
                if self._shown.get(key) != one[:2]:
                    self._state.read(key)
                found[key] = one
        return found

    def _settings(self, request: ModelRequest) -> Settings:
        """The settings of a request, from the last one of this agent if it was offered the same."""
        kept = self._engine.settings
        found = kept.get(self._agent.name)
        if found is None or found.agent is not self._agent or found.specs != request.tools:
            found = kept[self._agent.name] = settings_of(self._agent, request.tools, replace(request, messages=()))
        return found

    def _prompt_seq(self, settings: Settings) -> int:
        """Where the agent's prompt and the settings of the request are stored: once in a run for each content."""
        found = self._progress.prompts.get(settings.digest)
        if found is None:
            refs = {"agent": self._agent.name, "digest": settings.digest}
            found = self._turn.append("message.added", body=settings.stored, refs=refs, durable=False)
            self._progress.prompts[settings.digest] = found
        return found

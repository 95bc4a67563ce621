"""Where a run stands, as a fold over its events: the conversation, the active agent, what is not finished, the counts.

Rules of this module
- Pure: `feed` takes events in order and asks nothing. Unknown events leave it as it is.
- Only what a turn committed counts; turns of other programs count in no limit and change no agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from refold_engine.conversation import Said, message_of, seqs_of
from refold_engine.outcomes import Owed
from refold_engine.ports import Message, ToolCall
from refold_store.events import Event

ENGINE = "engine"
"""In `refs.by` of a turn.started: the turn is an engine's."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A tool call that waits for a person, and what was said. `answer` is None while nobody has answered."""

    id: str
    call: ToolCall
    answer: Any = None


@dataclass(slots=True)
class OpenTurn:
    """A turn of the engine that began and has not ended well: it is begun again under its number."""

    number: int
    agent: str
    seq: int


@dataclass(slots=True)
class Live:
    """Counts of a turn that is under way: its events are fed when it is over."""

    cost: float = 0.0
    spawned: int = 0
    untrusted: bool = False
    failures: dict[str, int] = field(default_factory=dict)

    def returned(self, tool: str, *, failed: bool) -> None:
        """A tool has returned."""
        self.failures[tool] = self.failures.get(tool, 0) + 1 if failed else 0


@dataclass(slots=True)
class Progress:
    """The fold. `seq` is the newest event it counts."""

    default_agent: str
    seq: int = 0
    agent: str = ""
    config: str = ""
    """The fingerprint of the configuration that the newest turn ran under: a turn names it where it changes."""
    said: list[Said] = field(default_factory=list)
    prompts: dict[str, int] = field(default_factory=dict)
    """Where the prompts that were used are stored, by the digest of their text."""
    message_ids: dict[str, int] = field(default_factory=dict)
    asked_seq: int = 0
    """Where the newest message stands that wants an answer."""
    unanswered: bool = False
    """Whether a person's message, or a person's answers, wait for the agents."""
    open: OpenTurn | None = None
    waiting: list[Waiting] = field(default_factory=list)
    stopped: str | None = None
    """Why the engine stopped at a limit, if that was the last thing that happened."""
    hops: int = 0
    """Handoffs and routes since the last message of a person."""
    handoffs: int = 0
    turns: int = 0
    calls: int = 0
    """Model calls since the last message of a person."""
    cost: float = 0.0
    spawned: int = 0
    open_spawned: int = 0
    """How many of them in the turn that is open: its next attempt makes them again."""
    failures: dict[str, int] = field(default_factory=dict)
    """Failures in a row by tool."""
    untrusted: bool = False
    """Whether a tool with untrusted output has returned."""
    owed: Owed | None = None
    """What the newest turn still has to write to shared keys, as far as this log can tell."""
    live: Live = field(default_factory=lambda: Live())
    """What the turn under way adds to these counts."""
    _held: dict[int, Message] = field(default_factory=dict)

    _talk: Any = field(default_factory=sha256)
    _messages: list[Message] = field(default_factory=list)

    def talk(self) -> tuple[Any, list[Message]]:
        """(the running SHA-256 of the conversation, its messages): copies, to go on from."""
        for one in self.said[len(self._messages) :]:
            self._talk.update(one.text + b"\n")
            self._messages.append(one.message)
        return self._talk.copy(), self._messages.copy()

    def settle(self) -> None:
        """The turn under way is over: its events count from now on."""
        self.live = Live(failures=dict(self.failures))

    def __post_init__(self) -> None:
        self.agent = self.agent or self.default_agent

    def feed(self, event: Event) -> None:
        """Count one event."""
        self.seq = event.seq
        match event.kind:
            case "message.added":
                self._message(event)
            case "model.answered":
                self._hold(event)
                self.calls += 1
                cost = (event.body.get("answer") or {}).get("usage", {}).get("cost") if not event.erased else None
                self.cost += cost or 0.0
            case "tool.returned":
                self._hold(event)
                tool = str(event.refs.get("tool"))
                self.failures[tool] = self.failures.get(tool, 0) + 1 if event.refs.get("failed") else 0
                self.untrusted = self.untrusted or bool(event.refs.get("untrusted"))
            case "turn.started":
                if event.body.get("by") == ENGINE and "parent" not in event.refs:
                    self.config = event.body.get("config", self.config)
                    self.open, self.owed = OpenTurn(event.turn or 0, event.actor or "", event.seq), None
                elif event.body.get("spawned") and event.refs.get("attempt") == 1:
                    self.spawned += 1
                    self.open_spawned += self.open is not None
            case "turn.committed" | "turn.interrupted":
                self._ended(event)
            case "turn.resumed":
                self._resumed(event)
            case "run.forked" | "run.imported":
                self.owed = None  # it was the other run's to write
            case "handoff.made" | "route.decided":
                self._moved(event)
            case "branch.merged":
                self.cost += event.body.get("cost") or 0.0
            case "failure.raised":
                body = event.body
                if body.get("of") == "limit":
                    self.stopped, self.unanswered = str(body.get("message")), False
                elif body.get("of") == "memory":
                    self.owed = None
                elif body.get("of") == "model":
                    self.cost += (body.get("usage") or {}).get("cost") or 0.0

    def _message(self, event: Event) -> None:
        message = message_of(event)
        if message is None:
            return
        if message.role == "system":
            self.prompts[str(event.refs.get("digest"))] = event.seq
        elif event.turn is None or event.refs.get("with_commit"):
            self.said.append(Said(event.seq, message))
            if event.turn is None and message.role == "user":
                self._asked(event)
        else:
            self._held[event.seq] = message

    def _asked(self, event: Event) -> None:
        """A message from outside. A workflow's names who gets it (`to`), or wants no answer (`told`)."""
        refs = event.refs
        if isinstance(to := refs.get("to"), str):
            self.agent = to
        if refs.get("told") is not True:
            self.unanswered, self.stopped, self.asked_seq = True, None, event.seq
            self.hops = self.calls = 0
        if isinstance(name := refs.get("id"), str):
            self.message_ids[name] = event.seq

    def _hold(self, event: Event) -> None:
        message = message_of(event)
        if message is not None:
            self._held[event.seq] = message

    def _ended(self, event: Event) -> None:
        body: Mapping[str, Any] = event.body
        outcome = body.get("outcome")
        if outcome is None or "messages" not in body:
            return
        taken = [(seq, self._held.pop(seq)) for seq in seqs_of(body["messages"]) if seq in self._held]
        if outcome == "delegated":
            return
        self.said += (Said(seq, message) for seq, message in taken)
        self.turns += 1
        if shared := body.get("shared"):
            self.owed = Owed(event.turn or 0, shared)
        heard = True
        if self.open is not None and self.open.number == event.turn:
            heard = self.asked_seq < self.open.seq  # else it came in while the turn was under way
            self.open, self.open_spawned = None, 0
        if event.kind == "turn.interrupted":
            self.waiting = [Waiting(one["id"], ToolCall.from_json(one["call"])) for one in body.get("pending", ())]
            self.unanswered = False
            return
        self.waiting = []
        if outcome == "answered" and heard:
            self.unanswered = False

    def _resumed(self, event: Event) -> None:
        answers = {} if event.erased else event.body.get("answers", {})
        self.waiting = [Waiting(one.id, one.call, answers.get(one.id, False)) for one in self.waiting]
        self.unanswered = self.unanswered or bool(self.waiting)

    def _moved(self, event: Event) -> None:
        target = event.body.get("to")
        if isinstance(target, str) and event.body.get("by") == ENGINE:
            self.agent = target
            self.hops += 1
            self.handoffs += 1

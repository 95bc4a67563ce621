"""The ports: what an engine asks of the world, and the plain records that go through them.

Rules of this module
- Whatever is not deterministic comes through one of these, and what came through is on the record.
- Records are immutable and made of JSON: `to_json` and `from_json` are inverse, and equal requests have equal bytes.
- A port has one or two methods. It raises ModelFailed or ToolFailed for the world's failures, nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, Protocol

from refold_store import jsontext

Role = Literal["system", "user", "assistant", "tool"]
Json = Any
"""What JSON can say: None, bool, int, float, str, list, dict with text keys."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a model asks for. `id` is the model's, unique within its answer."""

    id: str
    name: str
    arguments: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {"id": self.id, "name": self.name, "arguments": dict(self.arguments)}

    @staticmethod
    def from_json(found: Mapping[str, Json]) -> ToolCall:
        """From JSON."""
        return ToolCall(found["id"], found["name"], found["arguments"])


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. A tool's result names the call it answers."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    def to_json(self) -> dict[str, Json]:
        """As JSON, without members that say nothing."""
        found: dict[str, Json] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            found["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        return found

    @staticmethod
    def from_json(found: Mapping[str, Json]) -> Message:
        """From JSON."""
        calls = tuple(ToolCall.from_json(one) for one in found.get("tool_calls", ()))
        return Message(found["role"], found["content"], calls, found.get("tool_call_id"))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it. `parameters` is the JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    temperature: float | None = None
    response_schema: Mapping[str, Json] | None = None
    """The JSON Schema the answer's content must satisfy."""
    agent: str = ""
    """Who asks. Not sent, and no part of what identifies the request."""

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {
            "model": self.model,
            "messages": [one.to_json() for one in self.messages],
            "tools": [one.to_json() for one in self.tools],
            "temperature": self.temperature,
            "response_schema": None if self.response_schema is None else dict(self.response_schema),
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer cost. `cost` is in US dollars, None where it is not known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens, "cost": self.cost}


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a model answered. `model` is the one that did, after a fallback another than was asked."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    model: str = ""

    def to_json(self) -> dict[str, Json]:
        """As JSON."""
        return {
            "content": self.content,
            "tool_calls": [call.to_json() for call in self.tool_calls],
            "usage": self.usage.to_json(),
            "model": self.model,
        }

    @staticmethod
    def from_json(found: Mapping[str, Json]) -> ModelAnswer:
        """From JSON."""
        calls = tuple(ToolCall.from_json(one) for one in found["tool_calls"])
        return ModelAnswer(found["content"], calls, Usage(**found["usage"]), found["model"])


class Model(Protocol):
    """A language model."""

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """Answer one request, once: no retry, no fallback. Raises ModelFailed."""


class Tool(Protocol):
    """Something an agent may call."""

    @property
    def spec(self) -> ToolSpec:
        """How a model is told of it."""

    def call(self, arguments: Mapping[str, Json], context: object) -> Json:
        """Do it and return JSON. `context` is the engine's ToolContext. Raises ToolFailed."""


class Clock(Protocol):
    """Time: for time-outs and pauses."""

    def now_us(self) -> int:
        """µs since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Random(Protocol):
    """Chance, and ids made of it."""

    def bytes(self, size: int) -> bytes:
        """So many random bytes."""


def digest_of(found: Json) -> str:
    """What identifies a request by content: SHA-256 of its canonical JSON, 64 hex digits.

    Of a model's request (it has `messages`) the messages behind the first come first, one a line, then the first with
    the rest: so the digest of a conversation goes on where the last one ended, however long it is.
    """
    if not (isinstance(found, dict) and isinstance(found.get("messages"), list)):
        return sha256(jsontext.encode(found)).hexdigest()
    talk = sha256()
    for one in found["messages"][1:]:
        talk.update(jsontext.encode(one) + b"\n")
    rest = {name: value for name, value in found.items() if name != "messages"}
    talk.update(jsontext.encode([found["messages"][:1], rest]))
    return talk.hexdigest()

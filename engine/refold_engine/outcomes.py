"""What comes back from the engine: of one turn, and of a whole message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from refold_engine.ports import Json, ToolCall

How = Literal["answered", "goes_on", "interrupted", "stopped"]


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """How one turn ended. `target` goes on after it; `text` is what its agent said last."""

    how: How
    text: str = ""
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How a run stands after a message.

    `answered`: `text` is the answer of `agent`. `interrupted`: a person has to answer `asked`. `stopped`: a limit was
    reached, `text` says which. `idle`: there was nothing to do.
    """

    run: str
    how: Literal["answered", "interrupted", "stopped", "idle"]
    agent: str
    text: str = ""
    asked: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Approval:
    """A tool call that a person must allow first."""

    id: str
    call: ToolCall
    agent: str

    def asked(self) -> dict[str, Any]:
        """As an interrupt."""
        what = {"tool": self.call.name, "arguments": dict(self.call.arguments)}
        return {"id": self.id, "reason": f"{self.agent} wants to call {self.call.name}", "payload": what}


@dataclass(frozen=True, slots=True)
class Owed:
    """What a turn that has committed writes to shared keys: [writer, key, update, basis, expected version] of each."""

    turn: int
    writes: Sequence[Sequence[Json]]

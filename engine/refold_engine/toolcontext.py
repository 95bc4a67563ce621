"""What a tool may know and do of the run it works in.

Rules of this module
- Plain callables given by the engine: a test makes one of three functions and a dict.
- A read and a write go the way of any other: on the record, in the turn's draft, with the owner's checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from refold_engine.ports import Clock, Json, Random


class WriteState(Protocol):
    """Writes one key as the agent."""

    def __call__(self, key: str, value: object, *, basis: str | None = None) -> None:
        """Raises a Refused of the store: NotOwner, UnknownKey, InvalidValue ..."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Given to a tool that has a parameter annotated with it; no model sees that parameter."""

    agent: str
    """Who called the tool."""
    run: str
    turn: int
    read_state: Callable[[str], Json]
    """The value of a key as JSON; `refold_store.fold.ABSENT`, which is not None, where there is none."""
    write_state: WriteState
    clock: Clock
    """Time that is on the record. A tool that asks `time` instead does something else on replay."""
    random: Random

"""The conversation of a run: which events are its messages, each stored once.

Rules of this module
- A message is an event: `message.added` (a person, a task), `model.answered` (an agent), `tool.returned` (a tool).
- What belongs to the conversation is named by the event that ended a turn, as ranges of seqs; a turn that rolled back
  adds nothing. Messages of people stand outside turns and belong where they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from refold_engine.ports import Message, ModelAnswer
from refold_store import jsontext
from refold_store.events import Event

Ranges = list[list[int]]
"""Seqs as [first, last] pairs, ascending within a pair."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message and the seq of its event."""

    seq: int
    message: Message
    _text: bytes = field(default=b"", repr=False, compare=False)

    @property
    def text(self) -> bytes:
        """The message as canonical JSON; made once, for every request holds it again."""
        if not self._text:
            object.__setattr__(self, "_text", jsontext.encode(self.message.to_json()))
        return self._text


def message_of(event: Event) -> Message | None:
    """The message that an event holds; None if it holds none, or was erased."""
    if event.erased:
        return None
    body = event.body
    if event.kind == "model.answered":
        answer = ModelAnswer.from_json(body["answer"])
        return Message("assistant", answer.content, answer.tool_calls)
    if event.kind in ("message.added", "tool.returned") and "message" in body:
        return Message.from_json(body["message"])
    return None


def conversation(events: Iterable[Event]) -> list[Said]:
    """The messages of a run so far, in the order they belong.

    `events`: those of the kinds message.added, model.answered, tool.returned, turn.committed and turn.interrupted.
    """
    held: dict[int, Message] = {}
    found: list[Said] = []
    for event in events:
        if event.kind in ("turn.committed", "turn.interrupted"):
            for seq in seqs_of(event.body.get("messages", ())):
                if seq in held:
                    found.append(Said(seq, held.pop(seq)))
        elif (message := message_of(event)) is not None:
            if event.turn is None:
                found.append(Said(event.seq, message))
            else:
                held[event.seq] = message
    return found


def ranges(seqs: Sequence[int]) -> Ranges:
    """Seqs as ranges: consecutive ones share one."""
    found: Ranges = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1][1] = seq
        else:
            found.append([seq, seq])
    return found


def seqs_of(found: Iterable[Sequence[int]]) -> list[int]:
    """The seqs of ranges."""
    return [seq for first, last in found for seq in range(first, last + 1)]

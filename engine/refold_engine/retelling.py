"""Requests on record, told again: for a scripted model, which must go on where a killed process left its script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from refold_engine.conversation import message_of, seqs_of
from refold_engine.ports import Message, ModelRequest
from refold_store.events import Event


def requests_of(events: Iterable[Event]) -> Iterator[ModelRequest]:
    """One request for each try on record, in order: its agent, its model, its prompt as stored, its last message."""
    messages: dict[int, Message] = {}
    for event in events:
        message = message_of(event)
        if message is not None:
            messages[event.seq] = message
        if event.kind == "model.answered" or (event.kind == "failure.raised" and event.body.get("of") == "model"):
            refs = event.refs
            asked = seqs_of(refs.get("asked", ()))
            last = messages.get(asked[-1] if asked else refs.get("upto", 0))
            system = messages.get(refs.get("system", 0), Message("system", ""))
            said = (system,) if last is None else (system, last)
            yield ModelRequest(str(refs.get("model")), said, agent=event.actor or "")

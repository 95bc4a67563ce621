"""A model's request as a document of its parts: one that was just asked, and one on record, built again from the log.

Rules of this module
- The parts are prompt and state (the first message), messages, tools and settings, so that a path says which of them
  changed: `$.messages[0].prompt`, `$.messages[0].state.routing.limit`, `$.messages[3].content`, `$.tools[1].name`.
- A recorded request is built from what the log stores once: prompt and settings, messages, the versions a block showed.
  That it was built rightly is known by its digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from refold_engine.conversation import message_of, seqs_of
from refold_engine.ports import Message, ModelRequest, digest_of
from refold_engine.progress import Progress
from refold_engine.prompting import STATE_BEGINS, may_read, state_block, system_message
from refold_store import jsontext
from refold_store.errors import InvalidValue, RefoldError
from refold_store.events import Event
from refold_store.run import Run

SPOKEN = ("message.added", "model.answered", "tool.returned")
"""Kinds of events that hold a message."""


def document_of(request: ModelRequest) -> dict[str, Any]:
    """A request in parts."""
    return in_parts(request.to_json())


def in_parts(request: dict[str, Any]) -> dict[str, Any]:
    """The same of a request as JSON: its first message taken apart."""
    messages = list(request["messages"])
    if messages and messages[0]["role"] == "system":
        messages[0] = {"role": "system"} | _taken_apart(messages[0]["content"])
    return request | {"messages": messages}


def _taken_apart(content: str) -> dict[str, Any]:
    prompt, mark, block = content.rpartition(f"\n\n{STATE_BEGINS}\n")
    if not mark:
        return {"prompt": content}
    try:
        return {"prompt": prompt, "state": jsontext.parse(block.partition("\n")[0].encode())}
    except (InvalidValue, ValueError):
        return {"prompt": content}


def recorded_request(run: Run, event: Event, course: Sequence[Event]) -> tuple[dict[str, Any], bool]:
    """(the request of a `model.answered` as JSON, whether its digest proves it). Members that nobody knows are absent.

    `course` holds the events of its turn, in order: the writes that the turn had drafted are among them.
    """
    refs = event.refs
    stored = _at(run, refs.get("system", 0))
    settings = {} if stored is None else stored.body.get("settings", {})
    prompt = "" if stored is None or stored.erased else stored.body["message"]["content"]
    talk = [one.to_json() for one in _talk(run, event)]
    for block in (_block(run, event, course), None):
        first = system_message(prompt, block).to_json()
        found = {"model": refs.get("model"), "messages": [first, *talk], **settings}
        if digest_of(found) == refs.get("request"):
            return found, True
    first = system_message(prompt, _block(run, event, course)).to_json()
    return {"model": refs.get("model"), "messages": [first, *talk], **settings}, False


def _at(run: Run, seq: int) -> Event | None:
    return next(run.events(after=seq - 1, until=seq), None) if seq else None


def _talk(run: Run, event: Event) -> Iterator[Message]:
    """The messages that were asked with: the conversation up to a seq, then those of the turn."""
    upto = event.refs.get("upto", 0)
    last = _at(run, upto)
    if last is not None and last.turn is not None and last.refs.get("task") and (task := message_of(last)) is not None:
        yield task
    elif last is not None:
        before = Progress("")
        for one in run.events(until=event.seq):
            before.feed(one)
        said = before.said
        end = next((at for at, one in enumerate(said) if one.seq == upto), len(said) - 1)
        yield from (one.message for one in said[: end + 1])
    for first, final in event.refs.get("asked", ()):
        wanted = set(seqs_of([[first, final]]))
        for one_event in run.events(SPOKEN, after=first - 1, until=final):
            if one_event.seq in wanted and (message := message_of(one_event)) is not None:
                yield message


def _block(run: Run, event: Event, course: Sequence[Event]) -> str | None:
    """The typed state that was shown: as committed at the seq it was taken at, with the draft of the turn on top."""
    schema = run.schema()
    if not schema.keys or event.refs.get("for"):
        return None
    agent = event.actor or ""
    texts = {}
    seen = event.refs.get("seen", 0) or min((one.seq for one in course), default=event.seq)
    for key, read in run.at(seen).state().items():
        if key in schema and not read.erased:
            texts[key] = read.text
    for key, text in _drafted(run, event, course):
        texts.pop(key, None)
        if text is not None:
            texts[key] = text
    return state_block({key: text for key, text in texts.items() if may_read(agent, schema.key(key))})


def _drafted(run: Run, event: Event, course: Sequence[Event]) -> Iterator[tuple[str, bytes | None]]:
    """(key, value text; None: deleted) of what was drafted before a request, told by what was committed of it later."""
    before: Counter[str] = Counter()
    arguments: dict[str, Any] = {}
    for one in course:
        if one.seq == event.seq:
            break
        if one.kind == "model.answered" and not one.erased:
            arguments |= {call["id"]: call["arguments"] for call in one.body["answer"]["tool_calls"]}
        elif one.kind == "tool.returned" and not one.erased:
            given = arguments.get(str(one.refs.get("call")), {})
            if one.refs.get("tool") == "write_state" and not one.refs.get("failed"):
                before[given.get("key", "")] += 1
            before.update(key for key, _value, _basis in one.body.get("writes", ()))
    made = [one for one in course if one.kind in ("state.written", "state.deleted")]
    for key, count in before.items():
        mine = [one for one in made if one.key == key][:count]
        if mine:
            try:
                read = run.at(mine[-1].seq).read_state(key)
                yield key, None if read.absent else read.text
            except RefoldError:
                continue

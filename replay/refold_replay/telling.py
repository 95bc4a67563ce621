"""What each kind of event is called in plain words. Pure; a table from kind to words.

Rules of this module
- `text` holds names, versions and numbers; `detail` holds what may quote a value, cut to DETAIL_MAX characters.
- An imported event's body may have any form: what is not there, or not of the form expected, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from refold_store import jsontext
from refold_store.events import Event

DETAIL_MAX = 300
"""Characters of a detail."""


class Words(NamedTuple):
    """An event in words."""

    text: str
    detail: str | None = None


def plain(event: Event) -> Words:
    """An event of a kind that has no words of its own."""
    what = event.kind.replace(".", " ").replace("_", " ")
    about = f" {event.key}" if event.key is not None else ""
    return Words(f"{_who(event)}: {what}{about}", _short(event.body or event.refs))


def _who(event: Event) -> str:
    return event.actor or "somebody"


def _short(value: Any) -> str | None:
    """A value on one line; None if there is nothing in it."""
    if value is None or value in ({}, [], ""):
        return None
    return _cut(value if isinstance(value, str) else jsontext.encode(value).decode())


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= DETAIL_MAX else line[: DETAIL_MAX - 1] + "…"


def _text(event: Event, *names: str) -> str | None:
    """The first member of the body that is a text."""
    body = event.body
    return next((body[name] for name in names if isinstance(body.get(name), str)), None)


def _at(event: Event) -> str:
    return f"{event.key}@{event.version}" if event.version else str(event.key)


def _written(event: Event) -> Words:
    body, refs = event.body, event.refs
    verb = "added to" if "update" in body and "value" not in body else "wrote"
    owner = f" for {event.owner}" if event.owner not in (None, event.actor) else ""
    if refs.get("initial"):
        verb = "set, as initial value,"
    erased = " (erased)" if event.erased else ""
    return Words(f"{_who(event)} {verb} {_at(event)}{owner}{erased}")


def _deleted(event: Event) -> Words:
    owner = f" for {event.owner}" if event.owner not in (None, event.actor) else ""
    return Words(f"{_who(event)} deleted {event.key} (version {event.version}){owner}")


def _refused(event: Event) -> Words:
    body = event.body
    aimed = event.key if event.key is not None else ", ".join(one for one in _list(body.get("keys")))
    reason = body.get("reason")
    return Words(
        f"{_who(event)} was refused {aimed or 'a write'} ({reason if isinstance(reason, str) else 'no reason kept'})",
        _cut(body["message"]) if isinstance(body.get("message"), str) else None,
    )


def _list(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _opened(event: Event) -> Words:
    return Words(f"{_who(event)} opened the run")


def _imported(event: Event) -> Words:
    lines = event.body.get("lines")
    count = f", {lines} lines" if type(lines) is int else ""
    return Words(f"{_who(event)} brought the run in from {_text(event, 'file') or 'a file'}{count}")


def _declared(event: Event) -> Words:
    return Words(f"the state schema in force is {(_text(event, 'fingerprint') or '')[:12]}")


def _forked(event: Event) -> Words:
    refs = event.refs
    return Words(
        f"{_who(event)} forked {refs.get('parent')} at seq {refs.get('at')}: {refs.get('run')} goes on from there",
        _text(event, "note"),
    )


def _archived(event: Event) -> Words:
    refs = event.refs
    return Words(
        f"{_who(event)} archived the run up to seq {refs.get('until')} in {refs.get('bundle')}", _text(event, "reason")
    )


def _erased(event: Event) -> Words:
    what = f"{event.key}@{event.version}" if event.version else event.key if event.key is not None else "the run"
    return Words(f"{_who(event)} erased {what}, up to seq {event.refs.get('until')}", _text(event, "reason"))


def _pruned(event: Event) -> Words:
    reads = event.body.get("reads")
    rolled = [one[5] for one in reads if isinstance(one, list) and len(one) > 5] if isinstance(reads, list) else []
    count = sum(one for one in rolled if type(one) is int)
    until = event.refs.get("until")
    return Words(f"{_who(event)} rolled up {count} {'read' if count == 1 else 'reads'}, up to seq {until}")


def _handoff(event: Event) -> Words:
    return Words(f"{_who(event)} handed over to {_text(event, 'to') or 'nobody named'}", _short(_text(event, "text")))


def _routed(event: Event) -> Words:
    to = _text(event, "to", "target", "agent")
    why = _text(event, "condition", "router") or event.body
    return Words(f"{_who(event)} routed to {to}" if to else f"{_who(event)} decided a route", _short(why))


def _model(event: Event) -> Words:
    answer = event.body.get("answer")
    if not isinstance(answer, dict):
        return Words(f"the model answered {_who(event)}", _short(event.body))
    calls = answer.get("tool_calls")
    names = [str(one.get("name")) for one in calls if isinstance(one, dict)] if isinstance(calls, list) else []
    asked = f" and calls {', '.join(names)}" if names else ""
    return Words(f"the model answered {_who(event)}{asked}", _short(answer.get("content") or None))


def _tool(event: Event) -> Words:
    body = event.body
    if (said := _said(event)) is not None:
        verb = "failed" if event.refs.get("failed") else "answered"
        return Words(f"{event.refs.get('tool') or 'a tool'} {verb} {_who(event)}", _short(said[1]))
    tool = _text(event, "tool", "name") or "a tool"
    failed = " and it failed" if body.get("ok") is False else ""
    given = {name: body[name] for name in ("args", "result") if name in body}
    return Words(f"{_who(event)} called {tool}{failed}", _short(given or body))


def _said(event: Event) -> tuple[str, str] | None:
    """(role, content) of a message the engine recorded."""
    message = event.body.get("message")
    if not isinstance(message, dict):
        return None
    role, content = message.get("role"), message.get("content")
    return (role, content) if isinstance(role, str) and isinstance(content, str) else None


def _message(event: Event) -> Words:
    said = _said(event)
    if said is not None:
        role, content = said
        if role == "system":
            return Words(f"the prompt of {_who(event)}", _short(content))
        verb = "was given a task" if event.turn is not None else "said"
        return Words(f"{_who(event)} {verb}", _short(content))
    return Words(f"{_who(event)} said", _short(_text(event, "text", "content") or event.body))


def _failure(event: Event) -> Words:
    what = _text(event, "what") or "a failure"
    return Words(f"{_who(event)} failed: {what}", _short(_text(event, "text", "message")))


def _turn(event: Event) -> str:
    return "a turn" if event.turn is None else f"turn {event.turn}"


def _began(event: Event) -> Words:
    refs = event.refs
    attempt, parent = refs.get("attempt"), refs.get("parent")
    again = f", attempt {attempt}" if type(attempt) is int and attempt > 1 else ""
    inside = f", a part of turn {parent}" if type(parent) is int else ""
    told = {name: value for name, value in event.body.items() if name not in ("by", "config", "task", "spawned")}
    return Words(f"{_who(event)} began {_turn(event)}{again}{inside}", _short(told))


def _committed(event: Event) -> Words:
    writes = event.body.get("writes")
    count = f" ({writes} {'write' if writes == 1 else 'writes'})" if type(writes) is int else ""
    more = {name: value for name, value in event.body.items() if name not in ("writes", "outcome", "messages")}
    return Words(f"{_who(event)} committed {_turn(event)}{count}", _short(more))


def _rolled_back(event: Event) -> Words:
    reason, attempt = event.body.get("reason"), event.refs.get("attempt")
    if reason == "abandoned":
        return Words(f"attempt {attempt} of {_turn(event)} was abandoned; {_who(event)} took it over")
    known = reason if reason in ("error", "conflict", "cancelled") else None
    again = ", to try again" if event.refs.get("again") else ""
    detail = _text(event, "message") if known else _text(event, "reason")
    return Words(f"{_who(event)} rolled back {_turn(event)}{f' ({known})' if known else ''}{again}", _short(detail))


def _named(event: Event) -> str:
    """The ids of what is asked or answered."""
    listed = event.refs.get("interrupts")
    ids = [one[0] if isinstance(one, list) and one else one for one in listed] if isinstance(listed, list) else []
    return ", ".join(repr(one) for one in ids if isinstance(one, str)) or "something"


def _interrupted(event: Event) -> Words:
    return Words(
        f"{_who(event)} committed {_turn(event)} and asks {_named(event)}", _short(event.body.get("interrupts"))
    )


def _resumed(event: Event) -> Words:
    verb = "dismissed" if event.body.get("dismissed") else "answered"
    return Words(f"{_who(event)} {verb} {_named(event)}", _short(event.body.get("answers")))


def _called(event: Event) -> Words:
    tool = _text(event, "tool", "name") or event.refs.get("tool") or "a tool"
    return Words(f"{_who(event)} calls {tool}", _short(event.body.get("args", event.body)))


def _note(event: Event) -> Words:
    return Words(f"{_who(event)} noted", _short(_text(event, "text", "note") or event.body))


WORDS: Final[dict[str, Callable[[Event], Words]]] = {
    "state.written": _written,
    "state.deleted": _deleted,
    "state.refused": _refused,
    "run.opened": _opened,
    "run.imported": _imported,
    "run.forked": _forked,
    "run.archived": _archived,
    "schema.declared": _declared,
    "turn.started": _began,
    "turn.committed": _committed,
    "turn.rolled_back": _rolled_back,
    "turn.interrupted": _interrupted,
    "turn.resumed": _resumed,
    "handoff.made": _handoff,
    "route.decided": _routed,
    "model.answered": _model,
    "tool.called": _called,
    "tool.returned": _tool,
    "message.added": _message,
    "failure.raised": _failure,
    "value.erased": _erased,
    "reads.pruned": _pruned,
    "note.added": _note,
}
"""Kinds with words of their own; others are told by `plain`. Reads are told by the story: it knows what was newest."""

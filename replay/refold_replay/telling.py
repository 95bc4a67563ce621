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
    return Words(f"{_who(event)} routed to {to}" if to else f"{_who(event)} decided a route", _short(event.body))


def _model(event: Event) -> Words:
    return Words(f"the model answered {_who(event)}", _short(event.body))


def _tool(event: Event) -> Words:
    body = event.body
    tool = _text(event, "tool", "name") or "a tool"
    failed = " and it failed" if body.get("ok") is False else ""
    given = {name: body[name] for name in ("args", "result") if name in body}
    return Words(f"{_who(event)} called {tool}{failed}", _short(given or body))


def _message(event: Event) -> Words:
    return Words(f"{_who(event)} said", _short(_text(event, "text", "content") or event.body))


def _failure(event: Event) -> Words:
    what = _text(event, "what") or "a failure"
    return Words(f"{_who(event)} failed: {what}", _short(_text(event, "text", "message")))


def _turn(what: str) -> Callable[[Event], Words]:
    return lambda event: Words(f"{_who(event)} {what} {'a turn' if event.turn is None else f'turn {event.turn}'}")


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
    "turn.started": _turn("began"),
    "turn.committed": _turn("committed"),
    "turn.rolled_back": _turn("rolled back"),
    "handoff.made": _handoff,
    "route.decided": _routed,
    "model.answered": _model,
    "tool.returned": _tool,
    "message.added": _message,
    "failure.raised": _failure,
    "value.erased": _erased,
    "reads.pruned": _pruned,
    "note.added": _note,
}
"""Kinds with words of their own; others are told by `plain`. Reads are told by the story: it knows what was newest."""

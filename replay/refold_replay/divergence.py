"""Where a replay did something else than the record: facts of both sides, compared in order.

Rules of this module
- Pure. A fact is one thing that was decided or done; equal facts have equal bytes. Facts are compared pair by pair.
- The first pair that differs is the root; what differs later is a consequence. Where the two sides do not do the same
  kind of thing any more, the comparison of a step ends: what would follow compares nothing with nothing.
- A request is compared by its digest, and told by its parts: prompt, state, messages, tools, settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from refold_replay.diff import MISSING, diff
from refold_store import jsontext
from refold_store.errors import InvalidValue
from refold_store.events import Event

FactKind = Literal["message", "request", "answer", "tool", "refusal", "write", "route", "handoff", "stop", "end"]
Kind = Literal["request", "answer", "tool", "write", "refusal", "route", "handoff", "message", "stop", "end",
               "missing", "extra"]  # fmt: skip
"""`stop`: a limit was met, or was not. `end`: the turn ended in another way. `missing` and `extra`: no counterpart."""

DECISIONS: tuple[Kind, ...] = ("stop", "route", "handoff", "refusal")
"""Facts that say by themselves what became different, whatever stands opposite; the first one counts."""
AT_COMMIT = ("write", "route", "handoff", "end")
"""Facts that come with the end of a turn, in this order."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that was decided or done. `source` is what it is told from: the Event, or a ModelRequest."""

    kind: FactKind
    seq: int
    turn: int | None
    agent: str
    same: bytes
    """Equal facts have equal bytes here."""
    value: Any
    """The fact as JSON."""
    key: str | None = None
    source: Any = None
    erased: bool = False
    """Whether its content is gone from the record: it is like any other of its kind and key."""


class Pair(NamedTuple):
    """Two facts that differ, or one without its counterpart. `follows`: nothing can be compared behind it."""

    recorded: Fact | None
    replayed: Fact | None
    breaks: bool


@dataclass(frozen=True, slots=True)
class Divergence:
    """One difference. `seq` is the recorded fact's, or the last one before it; paths are `$.a[1]` in `value` of it."""

    run: str
    turn: int | None
    seq: int
    agent: str
    kind: Kind
    path: str
    recorded: Any
    replayed: Any
    """MISSING where a side has nothing at this path."""
    message: str
    key: str | None = None
    root: bool = True

    def to_json(self) -> dict[str, Any]:
        """As JSON; a side that has nothing at the path has no member."""
        found: dict[str, Any] = {
            "run": self.run, "turn": self.turn, "seq": self.seq, "agent": self.agent, "kind": self.kind,
            "path": self.path, "message": self.message, "key": self.key, "root": self.root,
        }  # fmt: skip
        sides = {"recorded": self.recorded, "replayed": self.replayed}
        return found | {name: side for name, side in sides.items() if side is not MISSING}


# --- facts ---------------------------------------------------------------------------------------


def facts_of(events: Sequence[Event]) -> Iterator[Fact]:
    """The facts that events tell, in their order. A model's answer is two: what was asked, and what came back."""
    for event in events:
        match event.kind:
            case "model.answered":
                yield _fact("request", event, {"digest": event.refs.get("request")})
                yield _fact("answer", event, None if event.erased else event.body.get("answer"))
            case "tool.returned":
                yield _fact("tool", event, _returned(event))
            case "state.written" | "state.deleted":
                yield _written(event)
            case "state.refused":
                body = event.body
                named = {name: body[name] for name in ("reason", "message", "path", "update") if name in body}
                yield _fact("refusal", event, {"key": event.key, "writer": event.actor, **named}, event.key)
            case "route.decided" | "handoff.made":
                kind: FactKind = "route" if event.kind == "route.decided" else "handoff"
                names = ("from", "to", "router", "reason", "payload")
                yield _fact(kind, event, {name: event.body[name] for name in names if name in event.body})
            case "message.added" if event.refs.get("task"):
                yield _fact("message", event, (event.body.get("message") or {}).get("content"))
            case "failure.raised" if event.body.get("of") == "limit":
                yield _fact("stop", event, {name: event.body.get(name) for name in ("limit", "value", "most")})
            case "turn.committed" | "turn.interrupted" if "outcome" in event.body:
                pending = [one["call"] for one in event.body.get("pending", ())]
                yield _fact("end", event, {"outcome": event.body["outcome"], "pending": pending})


def _fact(kind: FactKind, event: Event, value: Any, key: str | None = None) -> Fact:
    same = jsontext.encode([event.actor, value])
    return Fact(kind, event.seq, event.turn, event.actor or "", same, value, key, event, event.erased)


def _returned(event: Event) -> dict[str, Any]:
    content = "" if event.erased else event.body["message"]["content"]
    return {"tool": event.refs.get("tool"), "failed": bool(event.refs.get("failed")), "result": _parsed(content)}


def _parsed(text: str) -> Any:
    """A result as its JSON, so that a difference has a path in it; other text as it is."""
    try:
        found = jsontext.parse(text.encode())
    except (InvalidValue, ValueError, UnicodeEncodeError):
        return text
    return found if isinstance(found, (dict, list)) else text


def _written(event: Event) -> Fact:
    refs = event.refs
    value = {
        "key": event.key,
        "version": event.version,
        "writer": event.actor,
        "deleted": event.kind == "state.deleted",
    }
    value |= {"based_on": refs["based_on"]} if "based_on" in refs else {}
    same = jsontext.encode(value) + b"\n" + (event.text or b"")
    return Fact(
        "write", event.seq, event.turn, event.actor or "", same, value | event.body, event.key, event, event.erased
    )


# --- comparing -----------------------------------------------------------------------------------


def pairs(recorded: Sequence[Fact], replayed: Sequence[Fact]) -> Iterator[Pair]:
    """Where two courses differ, up to the first place where they part."""
    for at in range(max(len(recorded), len(replayed))):
        one = recorded[at] if at < len(recorded) else None
        other = replayed[at] if at < len(replayed) else None
        if one is None or other is None or one.kind != other.kind:
            yield Pair(_deciding(one, other, recorded[at:]), _deciding(other, one, replayed[at:]), breaks=True)
            return
        if one.same != other.same and not (one.erased and one.key == other.key):
            yield Pair(one, other, breaks=_parts(one, other))
            if _parts(one, other):
                return


def _deciding(fact: Fact | None, opposite: Fact | None, left: Sequence[Fact]) -> Fact | None:
    """What ended a turn on this side, where the other side goes on: writes come with the end, and decide nothing."""
    if fact is None or fact.kind != "write" or opposite is None or opposite.kind in AT_COMMIT:
        return fact
    return next((one for one in left if one.kind in AT_COMMIT and one.kind != "write"), fact)


def _parts(one: Fact, other: Fact) -> bool:
    """Whether two unlike facts of a kind lead to different places."""
    if one.kind in ("route", "handoff"):
        return bool(one.value.get("to") != other.value.get("to"))
    return one.kind in ("stop", "end") or one.agent != other.agent


Explain = Callable[[Fact, Fact], tuple[str, Any, Any, str]]
"""(path, recorded, replayed, a remark) of two requests that differ."""


def told(run: str, pair: Pair, explain: Explain, *, after: int, root: bool) -> Divergence:
    """A pair as a divergence. `after` is the last recorded seq before it, for what has no counterpart."""
    one, other = pair.recorded, pair.replayed
    shown = one or other
    assert shown is not None
    kind = kind_of(one, other)
    path, then, now, remark = "$", _whole(one, other), _whole(other, one), ""
    if one is not None and other is not None and one.kind == other.kind:
        path, then, now, remark = explain(one, other) if one.kind == "request" else _first(one.value, other.value)
    seq = after if one is None else one.seq
    message = _message(kind, one, other, path, remark)
    key = next((fact.key for fact in (one, other) if fact is not None and fact.key is not None), None)
    return Divergence(run, shown.turn, seq, shown.agent, kind, path, then, now, message, key, root)


def kind_of(one: Fact | None, other: Fact | None) -> Kind:
    """What became different, in one word."""
    if one is not None and other is not None and one.kind == other.kind:
        return one.kind
    if one is not None and one.kind == "write":
        return "refusal" if other is not None and other.kind == "refusal" else "missing"
    if other is not None and other.kind == "write":
        return "extra"
    kinds = [fact.kind for fact in (one, other) if fact is not None]
    for decision in DECISIONS:
        if decision in kinds:
            return decision
    return "extra" if one is None or (one.kind == "end" and other is not None) else "missing"


def _whole(fact: Fact | None, opposite: Fact | None) -> Any:
    """A whole fact; with its kind, where the other side does something else."""
    if fact is None:
        return MISSING
    alike = opposite is not None and fact.kind == opposite.kind
    return fact.value if alike else {fact.kind: fact.value}


def _first(then: Any, now: Any) -> tuple[str, Any, Any, str]:
    found = diff(then, now)
    if not found:
        return "$", then, now, "only the bytes differ"
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return found[0].path, found[0].before, found[0].after, more.strip()


def _message(kind: Kind, one: Fact | None, other: Fact | None, path: str, remark: str) -> str:
    fact = one or other
    assert fact is not None
    who = f"{fact.agent!r}" + (f" in turn {fact.turn}" if fact.turn is not None else "")
    if one is not None and other is not None and one.kind == other.kind:
        about = f" of {one.key!r}" if one.key else ""
        text = f"{who}: another {one.kind}{about}, first at {path}"
        return f"{text} ({remark})" if remark else text
    return f"{who}: on record {_phrase(one)}, now {_phrase(other)}"


def _phrase(fact: Fact | None) -> str:
    """A fact in a few words."""
    if fact is None:
        return "nothing more"
    value = fact.value
    match fact.kind:
        case "tool":
            return f"a call of {value['tool']!r}"
        case "refusal":
            return f"a refusal of {value.get('key')!r} ({value.get('reason', value.get('error'))})"
        case "write":
            return f"a write of {value['key']!r}"
        case "route" | "handoff":
            return f"a {fact.kind} to {value.get('to')!r}"
        case "stop":
            return f"a stop ({value.get('limit', value.get('message'))})"
        case "end":
            return {"interrupted": "a question to a person", "answered": "its answer"}.get(value["outcome"], "its end")
    return {"request": "a request to the model", "answer": "an answer of the model"}.get(fact.kind, "a task")

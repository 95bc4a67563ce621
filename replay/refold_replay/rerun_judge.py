"""What a replay found, and the judge that compares it with the record step by step.

Rules of this module
- The first difference is the divergence, the next ones are its consequences, a bounded number of them is kept.
- A request that differs is built again from the log, so that the part that changed can be named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refold_engine.ports import ModelRequest
from refold_replay.diff import diff
from refold_replay.divergence import Divergence, Fact, Pair, pairs, told
from refold_replay.requested import document_of, in_parts, recorded_request
from refold_store.events import Event
from refold_store.run import Run

CONSEQUENCES_MAX = 20
"""Differences kept behind the first: they say how far it reaches, and one cause may show in every later step."""

_MESSAGE = re.compile(r"\$\.messages\[(\d+)\](?:\.(prompt|state))?")


@dataclass(slots=True)
class Rerun:
    """What a replay found. `ok`: it did what the record says, to the byte."""

    run: str
    tenant: str
    notes: list[str] = field(default_factory=list)
    """What to know before anything else: another configuration, another schema."""
    divergence: Divergence | None = None
    consequences: list[Divergence] = field(default_factory=list)
    more: int = 0
    """Consequences beyond those kept."""
    stopped: int | None = None
    """The recorded seq at which nothing could be compared any more; None: it went to the end."""
    turns: int = 0
    routes: int = 0
    stops: int = 0
    requests: int = 0
    tool_calls: int = 0
    refusals: int = 0
    writes: int = 0
    """Writes that were compared, byte for byte: the agents' and those from outside."""
    inputs: int = 0
    inputs_in_turns: int = 0
    attempts_dropped: int = 0
    """Attempts that failed or were abandoned, and so were not repeated."""
    unfinished: int | None = None
    """A turn that the record leaves open; it is not compared."""
    erased: list[int] = field(default_factory=list)
    """Seqs whose content was erased: it could not be applied again."""

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return self.divergence is None

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {
            "ok": self.ok, "run": self.run, "tenant": self.tenant, "notes": self.notes,
            "divergence": None if self.divergence is None else self.divergence.to_json(),
            "consequences": [one.to_json() for one in self.consequences],
        }  # fmt: skip
        rest = ("more", "stopped", "turns", "routes", "stops", "requests", "tool_calls", "refusals", "writes", "inputs",
                "inputs_in_turns", "attempts_dropped", "unfinished", "erased")  # fmt: skip
        return found | {name: getattr(self, name) for name in rest}


class Judge:
    """Compares facts, and fills in a report."""

    def __init__(self, source: Run, report: Rerun) -> None:
        self._source, self.report = source, report

    def compare(
        self,
        recorded: Sequence[Fact],
        replayed: Sequence[Fact],
        *,
        after: int,
        course: Sequence[Event] = (),
        asked: Mapping[int, ModelRequest] | None = None,
    ) -> bool:
        """Compare what one step, or one input, did. `after`: the recorded seq it began at. False: they part here.

        `asked`: requests of the replay by the seq of their fact.
        """
        found = list(pairs(recorded, replayed))
        self._count(recorded, found)

        def explain(one: Fact, other: Fact) -> tuple[str, Any, Any, str]:
            return self._explain(one, other, course, asked or {})

        for pair in found:
            if self.report.divergence is None:
                self.report.divergence = told(self.report.run, pair, explain, after=after, root=True)
            elif len(self.report.consequences) < CONSEQUENCES_MAX:
                self.report.consequences.append(told(self.report.run, pair, explain, after=after, root=False))
            else:
                self.report.more += 1
        return not any(pair.breaks for pair in found)

    def _count(self, recorded: Sequence[Fact], found: Sequence[Pair]) -> None:
        """Count what was compared: all of it, or up to where the two part."""
        end = next((recorded.index(one.recorded) for one in found if one.breaks and one.recorded), len(recorded))
        kinds = Counter(fact.kind for fact in recorded[:end])
        report = self.report
        report.requests += kinds["request"]
        report.tool_calls += kinds["tool"]
        report.refusals += kinds["refusal"]
        report.writes += kinds["write"]

    def _explain(
        self, one: Fact, other: Fact, course: Sequence[Event], asked: Mapping[int, ModelRequest]
    ) -> tuple[str, Any, Any, str]:
        """The first part of a request that changed."""
        event = one.source
        request = other.source if isinstance(other.source, ModelRequest) else asked.get(other.seq)
        if request is None:
            return "$", one.value, other.value, "it stands on the record at another place"
        then, exact = recorded_request(self._source, event, course)
        before, now = in_parts(then), document_of(request)
        if event.refs.get("for") and not exact:
            return "$", one.value, now, "the question which agent goes on"
        found = diff(before, {name: now[name] for name in before})
        if not found:
            return "$", one.value, {"digest": other.value["digest"]}, "in what the record does not hold of it"
        first = found[0]
        rest = "" if exact else "; the recorded request could not be rebuilt to the byte"
        return first.path, first.before, first.after, _part(first.path, now, before) + rest


def _part(path: str, now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Which part of a request a path is in, in words."""
    found = _MESSAGE.match(path)
    if found is None:
        return {"$.tools": "the tools offered", "$.model": "the model"}.get(path.split("[")[0], path[2:].split(".")[0])
    if found[2]:
        return f"the {found[2]}"
    at = int(found[1])
    message: Mapping[str, Any] = next((one["messages"][at] for one in (now, before) if at < len(one["messages"])), {})
    return f"message {at}, {message.get('role', 'unknown')}"

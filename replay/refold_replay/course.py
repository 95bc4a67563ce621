"""A run's log taken apart for a replay: what came from outside, and what the engine did, step by step.

Rules of this module
- Pure, and streaming: no more than one turn of the log is held.
- A step is a route without a turn, a stop at a limit, or a turn as its committed attempt saw it. Earlier attempts are
  dropped, but what they had asked and the committed one was served stands at its place in the course.
- All else that moved the run is an input, applied again where it stood; inside a turn: where its readers saw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from refold_engine.conversation import seqs_of
from refold_engine.progress import ENGINE
from refold_store.events import Event

WRITES = ("state.written", "state.deleted")
ENDS = ("turn.committed", "turn.interrupted")
APPENDED = ("message.added", "note.added", "model.answered", "tool.returned", "failure.raised")
"""Events of others that change no state, and may count in a conversation or a limit."""
EFFECTS = ("model.answered", "tool.returned")


@dataclass(frozen=True, slots=True)
class Input:
    """Something from outside the engine: one event, or the writes of one transaction."""

    events: tuple[Event, ...]

    @property
    def seq(self) -> int:
        """Where it begins in the record."""
        return self.events[0].seq


@dataclass(slots=True)
class Step:
    """Something the engine did. `course`: its events in the order in which they happened in it."""

    kind: Literal["route", "stop", "turn"]
    agent: str
    course: list[Event]
    number: int | None = None
    inside: list[Input] = field(default_factory=list)
    """Inputs that fell into it."""
    attempts: int = 1
    wasted: list[Event] = field(default_factory=list)
    """Model calls of earlier attempts and failed tries: they count in the limits on cost, and nowhere else."""
    pending: list[str] = field(default_factory=list)
    """Ids of what a person was asked."""
    start: int = 0
    """The seq at which the attempt that counts began."""

    @property
    def seq(self) -> int:
        """The newest event of it."""
        return self.course[-1].seq


@dataclass(slots=True)
class Course:
    """Takes a log apart. `unfinished` is the turn that the log leaves open, `odd` are kinds that no replay knows."""

    unfinished: int | None = None
    dropped: int = 0
    """Attempts that did not commit."""
    odd: dict[str, int] = field(default_factory=dict)
    configs: set[str] = field(default_factory=set)
    """Fingerprints of configurations that turns name."""
    _span: list[Event] = field(default_factory=list)
    _txn: list[Event] = field(default_factory=list)

    def items(self, events: Iterable[Event]) -> Iterator[Input | Step]:
        """Inputs and steps, in order."""
        number: int | None = None
        for event in events:
            if event.kind == "turn.started" and _is_root(event) and event.turn != number:
                yield from self._given_up()
                number = event.turn
            if number is None:
                yield from self._lone(event)
                continue
            self._span.append(event)
            if event.kind in ENDS and event.turn == number:
                yield from self._turn(number)
                number, self._span = None, []
        yield from self._writes()
        self.unfinished = number
        yield from self._given_up()

    def _given_up(self) -> Iterator[Input | Step]:
        """A turn that never ended: what came from outside meanwhile stays."""
        yield from self._writes()
        if self._span:
            family = _family_ever(self._span, self._span[0].turn)
            self.dropped += sum(event.kind == "turn.started" and event.turn in family for event in self._span)
            yield from _outside(self._span, family)
        self._span = []

    # --- outside turns of the engine ---------------------------------------------------------

    def _lone(self, event: Event) -> Iterator[Input | Step]:
        """An event while no turn of the engine is open."""
        if self._txn and (event.txn is None or event.txn != self._txn[0].txn):
            yield from self._writes()
        if event.kind in WRITES:
            self._txn.append(event)
            if event.txn is None:
                yield from self._writes()
        elif event.kind == "route.decided" and event.turn is None and event.body.get("by") == ENGINE:
            yield Step("route", event.actor or "", [event], start=event.seq)
        elif event.kind == "failure.raised" and event.turn is None and event.body.get("of") == "limit":
            yield Step("stop", event.actor or "", [event], start=event.seq)
        elif is_input(event):
            yield Input((event,))
        elif event.kind.startswith(("branch.", "owner.", "replay.")):
            self.odd[event.kind] = self.odd.get(event.kind, 0) + 1

    def _writes(self) -> Iterator[Input]:
        if self._txn:
            yield Input(tuple(self._txn))
            self._txn = []

    # --- turns of the engine -----------------------------------------------------------------

    def _turn(self, number: int) -> Iterator[Input | Step]:
        span = self._span
        starts = [event for event in span if event.kind == "turn.started" and event.turn == number]
        final = starts[-1]
        if isinstance(config := final.body.get("config"), str):
            self.configs.add(config)
        self.dropped += len(starts) - 1
        ever = _family_ever(span, number)
        outside = list(_outside(span, ever))
        course, used = _in_order(span, number, final.seq)
        end = span[-1]
        yield from (one for one in outside if one.seq < final.seq)
        yield Step(
            "turn",
            final.actor or "",
            course,
            number,
            [one for one in outside if one.seq > final.seq],
            len(starts),
            [event for event in span if event.turn in ever and event.seq not in used and _costs(event)],
            [one["id"] for one in end.body.get("pending", ())],
            final.seq,
        )


def is_input(event: Event) -> bool:
    """Whether an event that is no write comes from outside and moves the run."""
    if event.kind in ("run.opened", "turn.resumed"):
        return True
    if event.kind == "message.added":
        return event.turn is None
    return event.kind in APPENDED and event.body.get("of") not in ("condition", "limit")


def _is_root(event: Event) -> bool:
    return event.body.get("by") == ENGINE and "parent" not in event.refs


def _costs(event: Event) -> bool:
    return event.kind == "model.answered" or (event.kind == "failure.raised" and event.body.get("of") == "model")


def _family_ever(span: list[Event], number: int | None) -> set[int | None]:
    """A turn and all turns inside it, of whatever attempt."""
    family = {number}
    for event in span:
        if event.kind == "turn.started" and event.refs.get("parent") in family:
            family.add(event.turn)
    return family


def _outside(span: list[Event], family: set[int | None]) -> Iterator[Input]:
    """What others did meanwhile."""
    txn: list[Event] = []
    for event in span:
        if txn and event.txn != txn[0].txn:
            yield Input(tuple(txn))
            txn = []
        if event.kind in WRITES and event.turn not in family:
            if event.txn is None:
                yield Input((event,))
            else:
                txn.append(event)
        elif (event.turn is None or event.turn not in family) and is_input(event):
            yield Input((event,))
    if txn:
        yield Input(tuple(txn))


def _in_order(span: list[Event], number: int, start: int) -> tuple[list[Event], set[int]]:
    """The events of the attempt that began at `start`, and the seqs of those that the limits count in it.

    What it was served of earlier attempts stands behind the message before it; the first behind its task or its start.
    """
    family: set[int | None] = {number}
    base = []
    for event in span:
        if event.seq < start:
            continue
        if event.kind == "turn.started" and event.refs.get("parent") in family:
            family.add(event.turn)
        if event.turn in family:
            base.append(event)
    served = {event.seq: event for event in span if event.kind in EFFECTS and event.turn in family}
    used = {event.seq for event in base if event.kind in EFFECTS}
    if all(seq >= start for seq in served):
        return base, used
    behind: dict[int, list[Event]] = {}
    for turn in family:
        for seq, after in _told_by(base, turn):
            if seq < start and seq in served:
                behind.setdefault(after, []).append(served[seq])
                used.add(seq)
    course: list[Event] = []
    for event in base:
        course.append(event)
        for one in behind.get(event.seq, ()):
            course.append(one)
    return course, used


def _told_by(base: list[Event], turn: int | None) -> Iterator[tuple[int, int]]:
    """(seq, the seq in `base` it stands behind) of each effect that the end of a turn names and `base` has not."""
    own = [event for event in base if event.turn == turn]
    here = {event.seq for event in own}
    after = next((event.seq for event in own if event.kind == "message.added" and event.refs.get("task")), own[0].seq)
    ends = (event.body.get("messages", ()) for event in own if event.kind in ENDS)
    for seq in (seq for found in ends for seq in seqs_of(found)):
        if seq in here:
            after = seq
        else:
            yield seq, after
    for event in own:
        if event.kind == "route.decided" and (seq := event.refs.get("rests_on", 0)) and seq not in here:
            yield seq, after

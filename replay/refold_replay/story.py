"""A run as a story: one record an event, in plain words, in the order of the log.

Rules of this module
- A stream: memory does not grow with the run. What was newest when somebody read is remembered of NEWEST_MAX keys,
  and looked up for others.
- Words hold names, versions and reasons, never a value: values stand beside them, so that who shows the story can mask
  them. `sensitive` says when.
- A transaction is a block; a turn begins with a heading, and so does what follows its last event without a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from refold_replay.diff import MISSING
from refold_replay.judging import pairs_of
from refold_replay.steps import first_of_turn
from refold_replay.telling import WORDS, Words, plain
from refold_store.events import DELETED, READ, REFUSED, WRITTEN, Event
from refold_store.looking import sensitive_since
from refold_store.run import Run

NEWEST_MAX = 20_000
"""Keys whose newest version is remembered while the story goes on."""
Block = Literal["", "first", "inside", "last"]


class Ground(NamedTuple):
    """What a write states to rest on, and the version that was newest when it was written."""

    key: str
    version: int
    newest: int


@dataclass(frozen=True, slots=True)
class Told:
    """One event of a story. `value` is MISSING where there is none."""

    event: Event
    words: str
    """Who did what: `triage_agent wrote routing@2`."""
    detail: str | None
    """More in words that may quote a value: why a write was refused, what an effect gave."""
    value: Any
    basis: str | None
    based_on: list[Ground]
    stale: bool
    """Whether a read saw a version that was not the newest, or a write states to rest on one."""
    sensitive: bool
    """Whether it names a sensitive key: detail, value and basis are for those who may see them."""
    since_start_us: int
    gap_us: int
    """Since the record before it in this story; 0 for the first."""
    heading: str | None
    """`turn 7`, where a turn begins; `no turn`, behind the last event of one."""
    block: Block = ""
    """The place in a transaction of several events of this story."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of a run a story tells."""

    first_seq: int
    last_seq: int
    warnings: tuple[str, ...]


def span(run: Run, begin: str | int = 0, end: str | int = "end") -> Span:
    """The seqs from one moment to another, both included. From a turn: from its first event on."""
    to = run.at(end)
    start = run.at(begin)
    first = start.seq
    digits = begin.strip().removeprefix("turn:") if isinstance(begin, str) else ""
    if digits.isdigit() and str(begin).strip() != digits:
        first = first_of_turn(run, int(digits), start.seq) or first
    return Span(first, to.seq, tuple(moment.warning for moment in (start, to) if moment.warning))


def story(
    run: Run,
    *,
    begin: str | int = 0,
    end: str | int = "end",
    keys: Collection[str] = (),
    agents: Collection[str] = (),
) -> Iterator[Told]:
    """The events of a run in words, from one moment to another, both included.

    `keys` keeps what names one of them, `agents` what one of them did or was handed.
    """
    part = span(run, begin, end)
    return _blocks(_Teller(run, frozenset(keys), frozenset(agents)).tell(part))


class _Teller:
    def __init__(self, run: Run, keys: frozenset[str], agents: frozenset[str]) -> None:
        self._run = run
        self._keys = keys
        self._agents = agents
        self._newest = _Newest(run)
        self._sensitive: dict[str, int] = {}

    def tell(self, part: Span) -> Iterator[Told]:
        """Each event that is asked for."""
        first = next(iter(self._run.events(limit=1)), None)
        if first is None:
            return
        before: int | None = None
        turn: int | None = None
        ends = 0
        for event in self._run.events(after=max(part.first_seq - 1, 0), until=part.last_seq):
            self._newest.pass_by(event)
            named = _named(event)
            if not self._asked_for(event, named):
                continue
            at = event.recorded_at
            heading = None
            if event.turn is not None and event.turn != turn:
                heading, turn = f"turn {event.turn}", event.turn
                ends = self._run.at(f"turn:{turn}").seq
            elif event.turn is None and turn is not None and event.seq > ends:
                heading, turn = "no turn", None
            yield self._told(event, named, at - first.recorded_at, 0 if before is None else at - before, heading)
            before = at

    def _asked_for(self, event: Event, named: list[tuple[str, int | None]]) -> bool:
        if self._keys and self._keys.isdisjoint(key for key, _ in named):
            return False
        if not self._agents or event.actor in self._agents:
            return True
        return event.kind == "handoff.made" and event.body.get("to") in self._agents

    def _told(
        self, event: Event, named: list[tuple[str, int | None]], since: int, gap: int, heading: str | None
    ) -> Told:
        stale = False
        value: Any = MISSING
        basis = None
        words: Words
        if event.row.kind == READ:
            text, stale = self._read(event, named)
            words = Words(text)
        else:
            tell: Callable[[Event], Words] = WORDS.get(event.kind, plain)
            words = tell(event)
        if event.row.kind in (WRITTEN, DELETED):
            body = event.body
            basis = body.get("basis")
            value = body.get("update", body.get("value", MISSING))
        elif event.row.kind == REFUSED:
            value = event.body.get("update", MISSING)
        grounds = self._grounds(event)
        stale = stale or any(one.newest > one.version for one in grounds)
        sensitive = any(self._is_sensitive(key, event.seq) for key, _ in named)
        return Told(event, words.text, words.detail, value, basis, grounds, stale, sensitive, since, gap, heading)

    def _read(self, event: Event, named: list[tuple[str, int | None]]) -> tuple[str, bool]:
        """What was read, and whether any of it was stale."""
        scope = event.refs.get("scope") if event.row.refs else None
        told, late = [], False
        for key, version in named:
            newest = 0 if scope else self._newest.at(key, event.seen_seq or 0)
            shown = f"{key}@{version}" if version else f"{key} (absent)"
            if newest > (version or 0):
                shown = f"{key}@{version}" if version else key
                shown += f" ({'stale' if version else 'as absent'}: {newest} was current)"
                late = True
            told.append(shown)
        where = f" of scope {scope}" if scope else ""
        return f"{event.actor} read {', '.join(told) or 'nothing'}{where}", late

    def _grounds(self, event: Event) -> list[Ground]:
        if event.row.refs is None:
            return []
        before = (event.txn or event.seq) - 1
        return [
            Ground(key, version, max(self._newest.at(key, before), version))
            for key, version in pairs_of(event.refs.get("based_on"))
        ]

    def _is_sensitive(self, key: str, seq: int) -> bool:
        since = self._sensitive.get(key)
        if since is None:
            if len(self._sensitive) >= NEWEST_MAX:
                self._sensitive.clear()
            since = self._sensitive[key] = sensitive_since(self._run, key)
        return since <= seq


class _Newest:
    """The newest version of each key as the story goes by."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seq = 0
        self._known: dict[str, tuple[int, int]] = {}
        """(seq, version) of the newest version so far."""

    def pass_by(self, event: Event) -> None:
        """Take note of an event."""
        if event.row.kind <= DELETED and event.key is not None and event.version is not None:
            self._remember(event.key, (event.seq, event.version))
        self._seq = event.seq

    def at(self, key: str, seq: int) -> int:
        """The version that was newest at a seq, not after the event last passed."""
        known = self._known.get(key)
        if known is None:
            known = self._remember(key, self._look_up(key, self._seq))
        return known[1] if known[0] <= seq else self._look_up(key, seq)[1]

    def _remember(self, key: str, found: tuple[int, int]) -> tuple[int, int]:
        if len(self._known) >= NEWEST_MAX:
            self._known.clear()
        self._known[key] = found
        return found

    def _look_up(self, key: str, seq: int) -> tuple[int, int]:
        backend, run_id = self._run._backend, self._run._run_id()
        number = backend.id_of(key)
        found = None if number is None or run_id is None else backend.newest(run_id, number, seq)
        return (0, 0) if found is None else (found.seq, found.version)


def _named(event: Event) -> list[tuple[str, int | None]]:
    """Every (key, version) an event names, by its columns or inside."""
    if event.row.kind == READ and event.row.refs is not None and "keys" in (refs := event.refs):
        return [(key, version) for key, version in refs["keys"]]
    if event.key is not None:
        return [(event.key, event.version)]
    if event.row.kind <= READ:
        return []
    body = event.body
    listed = body.get("keys")
    found = [body.get("key"), *(listed if isinstance(listed, list) else ())]
    return [(one, None) for one in found if isinstance(one, str)]


def _blocks(records: Iterator[Told]) -> Iterator[Told]:
    """The same records, each with its place in its transaction: one record is held back."""
    held: Told | None = None
    inside = False
    for record in records:
        if held is not None:
            joined = held.event.txn is not None and held.event.txn == record.event.txn
            place = _PLACES[inside, joined]
            yield replace(held, block=place) if place else held
            inside = joined
        held = record
    if held is not None:
        place = _PLACES[inside, False]
        yield replace(held, block=place) if place else held


_PLACES: Final[dict[tuple[bool, bool], Block]] = {
    (False, False): "",
    (False, True): "first",
    (True, True): "inside",
    (True, False): "last",
}


__all__ = ["Span", "Told", "span", "story"]

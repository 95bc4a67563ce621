"""Moments: points in a run, written the same way everywhere, always resolved to a seq.

`42` a seq, `routing@2` and `key:NAME@2` the write of a version, `2026-11-30T02:00:00Z` a time (with a zone), `-20m`
a time before now, `end` the newest. A time never resolves into the middle of a transaction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from refold_store.backend import MAX_SEQ
from refold_store.erased import check_archived
from refold_store.errors import NoSuchMoment, NoSuchVersion
from refold_store.events import READ, Draft
from refold_store.looking import key_for_reading, look_state, look_unseen
from refold_store.names import MAX_TURN
from refold_store.reads import Read, State

if TYPE_CHECKING:
    from refold_store.run import Run

_AGO = re.compile(r"-([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_AGO_US = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_AGO_MAX_US = 1e18
"""Longest way back, in µs: 31,000 years."""
_VERSION = re.compile(r"(.*)@([0-9]+)", re.DOTALL)
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}|[0-9]{4}-?W[0-9]{2}(-?[0-9])?")
_FORMS = "a seq (42), a version (routing@2, or key:NAME@2), a time with a zone (2026-11-30T02:00:00Z), "
_FORMS += "-20m, a turn (turn:7), or end"
_DIGITS_MAX = 100
"""Digits of a number that is read exactly; a column holds 19."""
CLOCK_GAP_US = 1_000_000
"""A larger difference between an event's own clock and its recorded time, or of a moment ahead, is worth a warning."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The seq a moment stands for, and what to know about it."""

    seq: int
    warning: str | None = None


def resolve(run: Run, moment: int | str | datetime) -> Resolved:
    """The seq of a moment in a run. Raises NoSuchMoment or NoSuchVersion."""
    head = run.head_seq()
    if isinstance(moment, datetime):
        return _at_time(run, moment, moment.isoformat(), head)
    if isinstance(moment, int) and not isinstance(moment, bool):
        return _at_seq(moment, head)
    if not isinstance(moment, str):
        raise NoSuchMoment(f"{moment!r} is not a moment; write {_FORMS}", moment=moment)
    text = moment.strip() if not moment.startswith("key:") else moment
    if text == "end":
        return Resolved(head)
    if text.isascii() and text.isdigit():
        return _at_seq(_number(text), head)
    if (version := version_of(text)) is not None:
        return _at_version(run, *version)
    if text.startswith("turn:"):
        return _at_turn(run, text, head)
    if (ago := _AGO.fullmatch(text)) is not None:
        micros = min(float(ago[1]) * _AGO_US[ago[2]], _AGO_MAX_US)  # infinity, too: before every event
        return _at_micros(run, run.now_us() - int(micros), text, head)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise NoSuchMoment(f"{moment!r} is not a moment; write {_FORMS}", moment=moment) from None
    return _at_time(run, when, text, head)


def version_of(text: str) -> tuple[str, int] | None:
    """The key and version that `routing@2` or `key:NAME@2` names; None if the text is no such moment."""
    found = _VERSION.fullmatch(text.removeprefix("key:"))
    return None if found is None else (found[1], _number(found[2]))


def _number(digits: str) -> int:
    """The number that ASCII digits write; a very long one stands for some number that no column holds."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS_MAX else 10**_DIGITS_MAX


def _shown(number: int) -> str:
    """A number as an error names it."""
    return str(number) if abs(number) < 10**_DIGITS_MAX else f"of over {_DIGITS_MAX} digits"


def _at_seq(seq: int, head: int) -> Resolved:
    if not 0 <= seq <= head:
        raise NoSuchMoment(f"seq {_shown(seq)} is not in this run; its newest is {head}", moment=seq)
    return Resolved(seq)


def _at_version(run: Run, key: str, version: int) -> Resolved:
    number = run._backend.id_of(key)
    run_id = run._run_id()
    newest = None if number is None or run_id is None else run._backend.newest(run_id, number)
    if newest is None:
        check_archived(run)
        raise NoSuchMoment(f"key {key!r} was never written in run {run.name!r}", moment=f"{key}@{version}")
    assert number is not None
    assert run_id is not None
    found = None if version > MAX_TURN else run._backend.version(run_id, number, version)
    if found is None:
        raise NoSuchVersion(key=key, version=version, newest=newest.version)
    return Resolved(found.seq)


def _at_turn(run: Run, text: str, head: int) -> Resolved:
    digits = text.removeprefix("turn:")
    if not digits.isascii() or not digits.isdigit():
        raise NoSuchMoment(f"{text[:40]!r}: a turn is written turn:7", moment=text)
    run_id, number = run._run_id(), _number(digits)
    if run_id is None or number > MAX_TURN:
        rows = []
    else:
        rows = run._backend.spanning(run._backend.sql.turn_end, run_id, (number,))
    seq = max((row[0] for row in rows if row[0] is not None), default=0)
    if not seq:
        check_archived(run)
        raise NoSuchMoment(f"run {run.name!r} has no turn {_shown(number)}", moment=text)
    return _whole(run, seq, seq, head)


def _at_time(run: Run, when: datetime, text: str, head: int) -> Resolved:
    if when.tzinfo is None:
        full = f"{text}T00:00:00" if _DAY.fullmatch(text) else text
        raise NoSuchMoment(f"{text!r} has no time zone; write it as {full}Z for UTC, or {full}+02:00", moment=text)
    delta = when - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
    return _at_micros(run, micros, text, head)


def _at_micros(run: Run, micros: int, text: str, head: int) -> Resolved:
    """The newest event at or before a time: `recorded_at` never goes back, so a binary search on seq finds it."""
    run_id = run._run_id()
    if run_id is None:
        return Resolved(0)
    low, high, clock = 0, head, None
    while low < high:
        middle = (low + high + 1) // 2
        place = run._backend.at_seq(run_id, middle)
        if place is None or place.recorded_at <= micros:
            low, clock = middle, place and (None if place.clock is None else place.recorded_at - place.clock)
        else:
            high = place.seq - 1
    warning = None
    if micros > run.now_us() + CLOCK_GAP_US:
        warning = f"{text} lies ahead: this is as of now, seq {head}"
    elif clock is not None and abs(clock) > CLOCK_GAP_US:
        warning = (
            f"{text}: around seq {low} the writer's clock and the recorded time differ by {clock / 1e6:.1f} s; "
            "order is by seq, check the seq"
        )
    found = _whole(run, low, 0, head)
    return Resolved(found.seq, warning)


def _whole(run: Run, seq: int, forward: int, head: int) -> Resolved:
    """`seq`, moved out of the middle of a transaction: to its end for a turn, to before it for a time."""
    run_id = run._run_id()
    if not seq or run_id is None:
        return Resolved(seq)
    place = run._backend.at_seq(run_id, seq)
    if place is None or place.txn is None or place.seq < seq:
        return Resolved(seq)
    last = run._backend.txn_end(place.run, place.txn, min(head, MAX_SEQ))
    if last == seq:
        return Resolved(seq)
    return Resolved(last if forward else place.txn - 1)


class Moment:
    """A run at one seq. Its answers never change."""

    def __init__(self, run: Run, seq: int, warning: str | None = None) -> None:
        self.run = run
        self.seq = seq
        self.warning = warning

    def read_state(self, key: str, *, reader: str | None = None) -> Read:
        """The version of a key at this moment; recorded if a reader is named."""
        run = self.run
        declared = key_for_reading(run, key)
        if declared.scope != "run" and run.scope == 0:
            raise NoSuchMoment(
                f"key {key!r} has scope {declared.scope!r}: its past lies in another run; history() shows it",
                moment=self.seq,
            )
        found = look_unseen(run, key, self.seq)
        recorded = reader is not None and run.store._records
        read = Read(run, key, declared, found, self.seq, recorded)
        if reader is not None:
            draft = Draft(READ, reader, None, key, read.version, self.seq, trace=run.store._trace())
            run._note(read, draft, run.schema())
        return read

    def state(self) -> State:
        """Every key that held a value at this moment."""
        return look_state(self.run, self.seq)

    def __repr__(self) -> str:
        return f"<Moment seq {self.seq} of {self.run.name!r}>"

"""What a run's head knows of its turns: their numbers, their attempts, the interrupts that wait for an answer.

Rules of this module
- Used under the committer's lock, on a head that the insert at `seq + 1` proves: so two processes never get one turn
  number, and an attempt that lost its turn cannot commit.
- Everything is read from the log when it is first asked for, and follows what is sealed from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from refold_store import jsontext
from refold_store.backend import MAX_SEQ
from refold_store.events import (
    TURN_COMMITTED,
    TURN_INTERRUPTED,
    TURN_RESUMED,
    TURN_ROLLED_BACK,
    TURN_STARTED,
    Draft,
    Row,
)
from refold_store.turn_errors import InterruptInvalid, InterruptsOpen, StateLocked, TurnEnded, TurnFenced, TurnUnknown

if TYPE_CHECKING:
    from refold_store.backend import Backend
    from refold_store.heads import RunHead
    from refold_store.requests import Resume, TurnStart

ABANDONED = "abandoned"
"""Why an attempt ended that another one took the place of."""
_ENDINGS = (TURN_COMMITTED, TURN_ROLLED_BACK, TURN_INTERRUPTED)


@dataclass(slots=True)
class TurnHead:
    """The newest attempt of one turn. `ended` is the kind of event that ended it; None while it is open."""

    attempt: int
    ended: int | None = None
    again: bool = False
    """Whether it was rolled back to be tried again: its turn has not settled."""

    @property
    def settled(self) -> bool:
        """Whether no attempt is open, and none is announced."""
        return self.ended is not None and not self.again


@dataclass(slots=True)
class Asked:
    """An interrupt that waits for an answer. `expires_at` is in µs since the epoch; None: never."""

    turn: int
    expires_at: int | None = None
    question: dict[str, Any] | None = None
    """What was asked, as it was given to `interrupt`; None: not looked up."""


@dataclass(slots=True)
class TurnHeads:
    """The turns of one run, as far as they were asked for."""

    newest: int | None = None
    """The highest number; None: not looked up yet."""
    known: dict[int, TurnHead | None] = field(default_factory=dict)
    asked: dict[str, Asked] | None = None
    """Open interrupts by id; None: not looked up yet."""
    live: int = 0
    """The newest live turn; 0: none. Valid once `newest` is known."""


def turns_of(head: RunHead) -> TurnHeads:
    """What the head knows, made empty if it knows nothing."""
    found = head.turns
    if found is None:
        found = head.turns = TurnHeads()
    return found


def newest_turn(backend: Backend, head: RunHead) -> int:
    """The highest number of a turn of the run; 0 if it has none."""
    turns = turns_of(head)
    if turns.newest is None:
        turns.newest = 0
        if head.id is not None:
            row = backend.last_row(backend.sql.last_of_kind, head.id, (TURN_STARTED,), writer=True)
            refs = {} if row is None else _refs(row)
            if "newest" in refs:
                turns.newest = refs["newest"]
                if row is not None and row.run == head.id:  # a live turn of the run this one was forked from ends there
                    turns.live = refs.get("live", 0)
            else:  # none, or an imported one
                rows = backend.spanning(backend.sql.newest_turn, head.id, (), writer=True)
                turns.newest = max((row[0] for row in rows if row[0] is not None), default=0)
    return turns.newest


def turn_head(backend: Backend, head: RunHead, number: int) -> TurnHead | None:
    """The newest attempt of a turn, or None if it never began."""
    turns = turns_of(head)
    if number not in turns.known:
        turns.known[number] = None if head.id is None else _read_turn(backend, head.id, number)
    return turns.known[number]


def _read_turn(backend: Backend, run: int, number: int) -> TurnHead | None:
    started = backend.last_row(backend.sql.last_of_turn, run, (TURN_STARTED, number), writer=True)
    if started is None:
        return None
    attempt = _refs(started).get("attempt", 1)
    for kind in _ENDINGS:
        row = backend.last_row(backend.sql.last_of_turn, run, (kind, number), after=started.seq, writer=True)
        if row is not None:
            return TurnHead(attempt, kind, bool(_refs(row).get("again")))
    return TurnHead(attempt)


def open_interrupts(backend: Backend, head: RunHead) -> dict[str, Asked]:
    """The interrupts of a run that wait for an answer, by id."""
    turns = turns_of(head)
    if turns.asked is None:
        turns.asked = {} if head.id is None else read_interrupts(backend, head.id, writer=True)
    return turns.asked


def read_interrupts(backend: Backend, run: int, *, writer: bool = False) -> dict[str, Asked]:
    """The same from the log: those asked after the last answer, newest first, as far as there are any."""
    sql = backend.sql.last_of_kind
    resumed = backend.last_row(sql, run, (TURN_RESUMED,), writer=writer)
    after, upto = 0 if resumed is None else resumed.seq, MAX_SEQ
    found: dict[str, Asked] = {}
    while (row := backend.last_row(sql, run, (TURN_INTERRUPTED,), after=after, upto=upto, writer=writer)) is not None:
        found = _asked_by(row.turn or 0, _refs(row), row.body) | found
        upto = row.seq - 1
    return found


def _asked_by(turn: int, refs: dict[str, Any], body: bytes | None) -> dict[str, Asked]:
    listed = jsontext.decode(body or b"{}").get("interrupts", ())
    questions = {one["id"]: one for one in listed}
    return {name: Asked(turn, expires_at, questions.get(name)) for name, expires_at in refs.get("interrupts", ())}


def begin(backend: Backend, head: RunHead, item: TurnStart) -> list[Draft]:
    """The events of a turn that begins; number and attempt are put into `item`.

    Raises InterruptsOpen, TurnEnded, TurnUnknown; TurnFenced if the turn it begins in is over.
    """
    if asked := open_interrupts(backend, head):
        raise InterruptsOpen(run=head.name, ids=sorted(asked))
    check_fence(backend, head, item.fence)
    newest = newest_turn(backend, head)
    number = newest + 1 if item.turn is None else item.turn
    if number > newest + 1:
        raise TurnUnknown(run=head.name, turn=number, newest=newest)
    found = turn_head(backend, head, number) if number <= newest else None
    drafts = []
    attempt = 1
    if found is not None:
        if found.ended in (TURN_COMMITTED, TURN_INTERRUPTED):
            raise TurnEnded(run=head.name, turn=number)
        attempt = found.attempt + 1
        if found.ended is None:
            drafts.append(ended(TURN_ROLLED_BACK, item.actor, number, found.attempt, {"reason": ABANDONED}))
    refs: dict[str, Any] = {"attempt": attempt, "newest": max(newest, number)}
    if item.parent is not None:
        refs["parent"] = item.parent
    turns = turns_of(head)
    live = number if item.live else turns.live
    if live:
        refs["live"] = live
    drafts.append(
        Draft(
            TURN_STARTED, item.actor, turn=number, refs=_text(refs), body=item.body, clock=item.clock, trace=item.trace
        )
    )
    item.number, item.attempt = number, attempt
    turns.newest, turns.live = max(newest, number), live
    turns.known[number] = TurnHead(attempt)
    return drafts


def check_unlocked(backend: Backend, head: RunHead) -> None:
    """Raises StateLocked until a live turn has settled, in whatever process."""
    newest_turn(backend, head)
    number = turns_of(head).live
    found = turn_head(backend, head, number) if number else None
    if found is not None and not found.settled:
        raise StateLocked(run=head.name, turn=number, agent=None)


def check_fence(backend: Backend, head: RunHead, fence: Iterable[tuple[int, int]]) -> None:
    """Raises TurnFenced if an attempt is not the newest of its turn, or has ended."""
    for number, attempt in fence:
        found = turn_head(backend, head, number)
        if found is None or found.attempt != attempt or found.ended is not None:
            raise TurnFenced(run=head.name, turn=number, attempt=attempt, newest=0 if found is None else found.attempt)


def note_end(backend: Backend, head: RunHead, draft: Draft) -> None:
    """An event that ends a turn gets its place: follow it."""
    if draft.kind not in _ENDINGS or draft.turn is None:
        return
    refs = jsontext.decode((draft.refs or "{}").encode())
    found = turn_head(backend, head, draft.turn)
    if found is not None:
        found.ended, found.again = draft.kind, bool(refs.get("again"))
    if draft.kind == TURN_INTERRUPTED:
        open_interrupts(backend, head).update(_asked_by(draft.turn, refs, draft.body))


def resume(backend: Backend, head: RunHead, item: Resume, now: int) -> Draft | None:
    """The event that answers all open interrupts; None if these very answers were given before.

    Raises InterruptInvalid before anything happens.
    """
    asked = open_interrupts(backend, head)
    given = sorted(asked) if item.answers is None else sorted(item.answers)
    body = jsontext.encode({"answers": item.answers} if item.answers is not None else {"dismissed": True})
    if not asked:
        if item.answers is None:
            return None
        row = None
        if head.id is not None:
            row = backend.last_row(backend.sql.last_of_kind, head.id, (TURN_RESUMED,), writer=True)
        if row is not None and row.body == body and _refs(row).get("interrupts") == given:
            return None
        raise InterruptInvalid(run=head.name, missing=[], unknown=given, expired=[])
    expired = (
        []
        if item.answers is None
        else [name for name, one in sorted(asked.items()) if one.expires_at is not None and one.expires_at <= now]
    )
    missing, unknown = sorted(asked.keys() - set(given)), sorted(set(given) - asked.keys())
    if missing or unknown or expired:
        raise InterruptInvalid(run=head.name, missing=missing, unknown=unknown, expired=expired)
    turn = max(one.turn for one in asked.values())
    turns_of(head).asked = {}
    return Draft(
        TURN_RESUMED,
        item.actor,
        turn=turn,
        refs=_text({"interrupts": given}),
        body=body,
        clock=item.clock,
        trace=item.trace,
    )


def ended(kind: int, actor: str | None, turn: int, attempt: int, body: dict[str, Any], **more: Any) -> Draft:
    """The event that ends an attempt."""
    return Draft(kind, actor, turn=turn, refs=_text({"attempt": attempt, **more}), body=jsontext.encode(body))


def _text(refs: dict[str, Any]) -> str:
    return jsontext.encode(refs).decode()


def _refs(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = jsontext.decode((row.refs or "{}").encode())
    return found

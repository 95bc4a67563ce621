"""The life of one attempt of a turn: it begins, and commits, rolls back, is interrupted or loses its turn.

Rules of this module
- No lock of the store is held meanwhile. The commit is one transaction: it conflicts if a drafted key has moved on, and
  an attempt that is not its turn's newest cannot commit.
- Anything else rolls back: the drafted writes go on the record as refused, and never show in a state.
- A child commits into its parent, and is durable, or lost, with it.
- The live state is told after the log, and never while the turn's own lock is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from refold_store import jsontext
from refold_store.drafting import Drafting
from refold_store.errors import ReadOnlyStore, RefoldError, Refused, TransactionInvalid
from refold_store.events import TURN_COMMITTED, TURN_INTERRUPTED, TURN_ROLLED_BACK, TURN_STARTED, Draft
from refold_store.names import check_name, check_turn
from refold_store.plan import refusal
from refold_store.requests import Op, Request, TurnStart, Unit, Written
from refold_store.turn_errors import RolledBack, TurnEnded, TurnFenced
from refold_store.turnheads import ended

if TYPE_CHECKING:
    from refold_store.live import Live
    from refold_store.run import Run

ERROR_MAX = 2_000
"""Characters of an error's text kept with a rolled-back attempt."""


class Attempt:
    """One attempt of a turn. It begins with its `with` block and ends with it; `written` then lists the versions."""

    def __init__(
        self,
        run: Run,
        agent: str,
        *,
        number: int | None = None,
        parent: Attempt | None = None,
        live: bool = False,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        self.run = run
        self.agent = check_name("agent", agent)
        self.number = 0
        """1, 2, 3 ... in its run, once it has begun."""
        self.attempt = 0
        """1, 2, 3 ... of this turn."""
        self.parent = parent
        self.written: list[Written] = []
        self._given = check_turn(number)
        self._is_live = live
        self._body = jsontext.encode(dict(body or {}))
        self._again = False
        self._schema = run.schema()
        self._drafting: Drafting = Drafting(None if parent is None else parent._drafting)
        self._children: list[Attempt] = []
        self._seen: dict[str, int] = {}
        self._state = "new"
        self._after: list[Draft] = []
        self._outcome: dict[str, Any] = {}
        self._lock: threading.RLock = threading.RLock() if parent is None else parent._lock
        self._live: Live = run.live()

    # --- beginning ---------------------------------------------------------------------------

    def begin(self) -> Self:
        """Begin: number and attempt are given now. Raises InterruptsOpen, TurnEnded, TurnUnknown, TurnFenced."""
        with self._lock:
            if self._state != "new":
                raise TransactionInvalid("this turn has begun already; make a new one with run.turn()")
            if self.run.store.read_only:
                raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to begin a turn")
            if self.parent is not None:
                self.parent._check_open()
            self._state = "beginning"
        start = TurnStart(
            TURN_STARTED,
            self.agent,
            turn=self._given,
            body=self._body,
            trace=self.run.store._trace(),
            parent=None if self.parent is None else self.parent.number,
            fence=() if self.parent is None else self.parent._fence(),
            live=self._is_live,
        )
        try:
            self.run._committer.submit(
                Request(self.run._head, self._schema, (start,), opener=self.agent, durable=False)
            )
        except BaseException:
            self._state = "new"
            raise
        self.number, self.attempt, self._state = start.number, start.attempt, "open"
        self._live.opened(self)
        return self

    def _fence(self) -> list[tuple[int, int]]:
        """(turn, attempt) of this one and those it is in: what must be open for it to go on."""
        above = [] if self.parent is None else self.parent._fence()
        return [(self.number, self.attempt), *above]

    def _check_open(self) -> None:
        if self._state in ("new", "beginning"):
            raise TransactionInvalid("this turn has not begun; use it in a with block")
        if self._state == "fenced":
            raise TurnFenced(run=self.run.name, turn=self.number, attempt=self.attempt, newest=self.attempt + 1)
        if self._state != "open":
            raise TurnEnded(run=self.run.name, turn=self.number)

    # --- committing --------------------------------------------------------------------------

    def commit(self) -> list[Written]:
        """Commit the draft. Raises Conflict if a key has moved on, TurnFenced if another attempt took over.

        A commit that fails has rolled back; the attempt is over.
        """
        self._finish(None)
        return self.written

    async def acommit(self) -> list[Written]:
        """`commit` for async callers. A cancelled await has committed or rolled back: the turn knows which."""
        await to_its_end(self.commit)
        return self.written

    def interrupt(self, asked: Sequence[Mapping[str, Any]]) -> None:
        """Commit, and let the run wait for answers: `[{"id": "ok?", "reason": "...", "expires_at": µs or None}]`.

        Until `run.resume` answers all of them no turn begins; `set_state` works. Raises as `commit` does.
        """
        if self.parent is not None:
            raise TransactionInvalid("a child turn cannot interrupt; its parent can")
        self._check_open()
        self._finish(_questions(asked))

    def _finish(self, asked: list[dict[str, Any]] | None) -> None:
        with self._lock:
            self._check_open()
            if any(child._state == "open" for child in self._children):
                raise TransactionInvalid(f"turn {self.number} has a child that is still open; end it first")
            if self.parent is None:
                unit = self._unit(asked)
                self._state = "ending"
        if self.parent is not None:
            self._join(self.parent)
            return
        try:
            results = self.run._committer.submit(Request(self.run._head, self._schema, (unit,)))
        except BaseException as error:
            self._fall_back(error, unit.blamed)
            raise
        self.written = list(results[0])
        for one in self._family():
            one.written = [made for op, made in zip(unit.ops, results[0], strict=True) if op.turn == one.number]
        self.written = list(results[0])
        self._state = "committed"
        self._live.closed(self, set(self._drafting.entries))

    def _unit(self, asked: list[dict[str, Any]] | None) -> Unit:
        """All that the commit appends: the writes, what was kept for it, the ends of the children, its own end."""
        family = self._family()
        self._drafting.bases()
        tail = [draft for one in family for draft in one._after]
        tail += [child._ending() for child in family[1:]]
        tail.append(self._ending() if asked is None else self._interrupting(asked))
        fence = [(one.number, one.attempt) for one in family]
        trace = self.run.store._trace()
        return Unit(self._drafting.ops, turn=self.number, trace=trace, whole=True, fence=fence, tail=tail)

    def _join(self, parent: Attempt) -> None:
        """A child's commit: the parent takes its draft over."""
        try:
            with self._lock:
                self._check_open()
                parent._check_open()
                parent._drafting.absorb(self._drafting)
                for key, version in self._seen.items():
                    parent._seen.setdefault(key, version)
                self._state = "committed"
        except Refused as error:
            self.roll_back(error)
            raise
        self._live.closed(self, set(self._drafting.entries))

    def _fall_back(self, error: BaseException, told: Op | None) -> None:
        """A commit that failed: the attempt is over. `told`: the write whose refusal is on the record already."""
        self._state = "open"
        try:
            self._roll_back(error, told)
        except RefoldError as other:
            error.add_note(f"that it was rolled back could not be recorded: {other}")

    def _family(self) -> list[Attempt]:
        """This turn and its committed children, deepest last."""
        return [self, *(one for child in self._children if child._state == "committed" for one in child._family())]

    def _ending(self) -> Draft:
        body = {"writes": self._count(), **self._outcome}
        return ended(TURN_COMMITTED, self.agent, self.number, self.attempt, body)

    def _interrupting(self, asked: list[dict[str, Any]]) -> Draft:
        ids = [[one["id"], one.get("expires_at")] for one in asked]
        body = {"interrupts": asked, "writes": self._count(), **self._outcome}
        return ended(TURN_INTERRUPTED, self.agent, self.number, self.attempt, body, interrupts=ids)

    def _count(self) -> int:
        return len(self._drafting.ops)

    # --- rolling back ------------------------------------------------------------------------

    def roll_back(self, reason: BaseException | str = "rolled back") -> None:
        """Drop the draft. What was drafted is recorded as refused, with the reason. Nothing happens if it has ended."""
        self._roll_back(reason, None)

    async def aroll_back(self, reason: BaseException | str = "rolled back") -> None:
        """`roll_back` for async callers."""
        await to_its_end(self._roll_back, reason, None)

    def _roll_back(self, reason: BaseException | str, told: Op | None) -> None:
        for child in self._children:
            child.roll_back(reason)
        with self._lock:
            if self._state != "open":
                return
            family = self._family()
            unit = Unit([], turn=self.number, tail=self._rolled(family, reason, told))
            unit.fence = [(one.number, one.attempt) for one in family]
            keys = set(self._drafting.entries)
            self._drafting = Drafting(None if self.parent is None else self.parent._drafting)
            for one in family:
                one._state = "rolled back"
        try:
            self._record(unit)
        finally:
            self._live.closed(self, keys)

    def _record(self, unit: Unit) -> None:
        """Put a rollback on the record. Whoever took a turn of the family over has said so already."""
        for _one in unit.fence:
            try:
                self.run._committer.submit(Request(self.run._head, self._schema, (unit,)))
                return
            except TurnFenced as error:
                if error.turn == self.number:  # ended: a commit that seemed to fail did not
                    self._state = "fenced" if error.newest != error.attempt else "committed"
                    return
                unit.fence = [pair for pair in unit.fence if pair[0] != error.turn]
                unit.tail = [one for one in unit.tail if one.kind != TURN_ROLLED_BACK or one.turn != error.turn]

    def _rolled(self, family: list[Attempt], reason: BaseException | str, told: Op | None) -> list[Draft]:
        """The record of an attempt that is dropped, with its committed children."""
        body = _why(reason)
        if "message" in body and (secret := self._sensitive(reason)) is not None:
            body["message"] = f"not kept: it might quote {secret!r}, which is sensitive"
        drafts = [_dropped(op, self.number, body["reason"]) for op in self._drafting.ops if op is not told]
        lost = {"reason": f"turn {self.number}, which it was in, was rolled back"}
        drafts += [ended(TURN_ROLLED_BACK, one.agent, one.number, one.attempt, lost) for one in family[1:]]
        refs = {"again": True} if self._again else {}
        drafts.append(ended(TURN_ROLLED_BACK, self.agent, self.number, self.attempt, body, **refs))
        return drafts

    def _sensitive(self, reason: object) -> str | None:
        """A sensitive key among those that the turn has read or drafted, or that an error is about."""
        touched = [*self._drafting.entries, *self._seen, getattr(reason, "key", None)]
        names = sorted({name for name in touched if isinstance(name, str) and name in self._schema})
        return next((name for name in names if self._schema.key(name).sensitive), None)

    def _overtaken(self) -> set[str]:
        """Another attempt of this turn has begun in this process. The keys that were drafted."""
        with self._lock:
            if self._state == "open":
                self._state = "fenced"
            return set(self._drafting.entries)

    # --- as a block --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.begin() if self._state == "new" else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state == "fenced" and error is None:
            self._check_open()
        if self._state == "open":
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        if error is not None:
            self._fall_back(error, None)
            return
        try:
            self.commit()
        except BaseException as failed:
            if self._state == "open":
                self._fall_back(failed, None)
            raise

    async def __aenter__(self) -> Self:
        try:
            if self._state == "new":
                await to_its_end(self.begin)
        except BaseException as error:
            if self._state == "open":  # it began, and nobody waits for it any more
                await to_its_end(self._fall_back, error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_its_end(self.__exit__, kind, error, trace)


def _questions(asked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What an interrupt asks, checked: each has an id of its own, and may expire."""
    listed = [dict(one) for one in asked]
    if not listed or any("id" not in one for one in listed) or len({str(one["id"]) for one in listed}) < len(listed):
        raise TransactionInvalid("an interrupt asks at least one thing, and each has an id of its own")
    for one in listed:
        check_name("interrupt", one["id"])
        if type(one.get("expires_at")) not in (int, type(None)):
            raise TransactionInvalid(f"expires_at is a time in µs since the epoch, or None, not {one['expires_at']!r}")
    return listed


def _why(reason: BaseException | str) -> dict[str, Any]:
    """Why an attempt was rolled back, as its event's body says it."""
    if isinstance(reason, str):
        return {"reason": reason}
    name = type(reason).__name__
    if isinstance(reason, (KeyboardInterrupt, GeneratorExit, SystemExit)) or name == "CancelledError":
        return {"reason": "cancelled"}
    word = "conflict" if isinstance(reason, Refused) and reason.code == "conflict" else "error"
    text = str(reason)[:ERROR_MAX].encode("utf-8", "replace").decode()
    return {"reason": word, "error": name, "message": text}


def _dropped(op: Op, turn: int, reason: str) -> Draft:
    """A drafted write that is not committed, on the record as refused."""
    error = RolledBack(f"turn {turn} was rolled back: {reason}", key=op.name, writer=op.writer)
    update = None if op.prepared is None else op.prepared.text
    draft = refusal(error, writer=op.writer, key=op.name, owner=op.key.owner, update=update, delete=update is None)
    draft.turn = op.turn
    return draft


async def to_its_end(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread. A caller that is cancelled hears of it when the call has come to its end."""
    import asyncio  # an async caller has it loaded

    task = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # it is known to the turn; the cancellation is what the caller hears of
        raise


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread; a cancelled caller does not wait for it."""
    import asyncio

    return await asyncio.to_thread(function, *args)

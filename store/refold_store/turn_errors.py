"""The errors of turns and of the shared live state, below the tree in `errors`.

RefoldError
├── Refused
│   └── RolledBack         a draft that was not committed; only on the record, never raised
├── TurnInvalid            a turn cannot do this now
│   ├── TurnFenced         another attempt took its place; nothing was committed
│   ├── TurnEnded          it is over
│   ├── TurnUnknown        no turn of this number
│   ├── InterruptsOpen     the run waits for answers
│   ├── InterruptInvalid   answers that do not fit what was asked
│   ├── StateLocked        the shared live state belongs to a turn just now
│   └── DeltaOutdated      a delta for another base version; carries a snapshot
└── PatchInvalid           a JSON Patch does not fit its document; names the operation
"""

from __future__ import annotations

from collections.abc import Sequence

from refold_store.errors import RefoldError, Refused


class TurnInvalid(RefoldError):
    """A turn cannot do this now. Nothing happened."""

    def __init__(self, message: str, *, run: str, turn: int | None = None) -> None:
        super().__init__(message)
        self.run, self.turn = run, turn


class TurnFenced(TurnInvalid):
    """An attempt that is not the newest of its turn, or has ended, tried to go on. Nothing was committed."""

    def __init__(self, *, run: str, turn: int, attempt: int, newest: int) -> None:
        self.attempt, self.newest = attempt, newest
        why = f"attempt {newest} took its place" if newest > attempt else "it has ended"
        super().__init__(
            f"attempt {attempt} of turn {turn} cannot go on: {why}; nothing was committed", run=run, turn=turn
        )


class TurnEnded(TurnInvalid):
    """A turn that was committed is not begun again."""

    def __init__(self, *, run: str, turn: int) -> None:
        super().__init__(f"turn {turn} of run {run!r} is over; begin a new one, without a number", run=run, turn=turn)


class TurnUnknown(TurnInvalid):
    """A number names a turn that never began; `newest` is the highest that did."""

    def __init__(self, *, run: str, turn: int, newest: int) -> None:
        self.newest = newest
        super().__init__(
            f"turn {turn} of run {run!r} never began, the newest is {newest}; begin a new one, without a number",
            run=run,
            turn=turn,
        )


class InterruptsOpen(TurnInvalid):
    """No turn begins while interrupts wait for answers; `ids` names them."""

    def __init__(self, *, run: str, ids: Sequence[str]) -> None:
        self.ids = tuple(ids)
        super().__init__(
            f"run {run!r} waits for answers to {', '.join(map(repr, ids))}; give all of them with resume()", run=run
        )


class InterruptInvalid(TurnInvalid):
    """Answers that do not fit the open interrupts: `missing`, `unknown` (or answered before), `expired`."""

    def __init__(self, *, run: str, missing: Sequence[str], unknown: Sequence[str], expired: Sequence[str]) -> None:
        self.missing, self.unknown, self.expired = tuple(missing), tuple(unknown), tuple(expired)
        named = (("missing", missing), ("not open", unknown), ("expired", expired))
        what = "; ".join(f"{word}: {', '.join(map(repr, ids))}" for word, ids in named if ids) or "nothing is asked"
        hint = "dismiss() ends them" if expired else "answer all open interrupts, each by its id"
        super().__init__(f"run {run!r} cannot resume: {what}; {hint}", run=run)


class StateLocked(TurnInvalid):
    """The shared live state belongs to a turn from its scheduling to its end."""

    def __init__(self, *, run: str, turn: int | None, agent: str | None) -> None:
        self.agent = agent
        who = "a scheduled turn" if turn is None else f"turn {turn}"
        whose = "" if agent is None else f" of {agent!r}"
        gone = turn is not None and agent is None  # found in the log: no turn of this process
        lost = f" (if its process is gone: begin it again, with number={turn}, and end it)" if gone else ""
        super().__init__(
            f"the live state of run {run!r} belongs to {who}{whose}; set it when that has ended{lost}",
            run=run,
            turn=turn,
        )


class DeltaOutdated(TurnInvalid):
    """A delta made for another base version. `snapshot` is the document now, `base` its version."""

    def __init__(self, *, run: str, turn: int, given: int, base: int, snapshot: object) -> None:
        self.given, self.base, self.snapshot = given, base, snapshot
        super().__init__(
            f"a delta for version {given} of the live state, which is at {base}; begin from the snapshot",
            run=run,
            turn=turn,
        )


class PatchInvalid(RefoldError):
    """A JSON Patch that is none, or does not fit the document, which stays as it was.

    `index` is the failing operation's place, counted from 1 (None: the patch as a whole), `op` and `path` are its own.
    """

    def __init__(
        self, reason: str, *, count: int, index: int | None = None, op: object = None, path: object = None
    ) -> None:
        self.reason, self.count, self.index = reason, count, index
        self.op = op if isinstance(op, str) else None
        self.path = path if isinstance(path, str) else None
        shown = " ".join(repr(part[:200]) for part in (self.op, self.path) if part is not None)
        what = "the patch" if index is None else f"operation {index} of {count}" + (f" ({shown})" if shown else "")
        super().__init__(f"{what}: {reason}; the document is unchanged")


class RolledBack(Refused):
    """A drafted write whose attempt was not committed: how the record names it."""

    code = "rolled_back"

"""The virtual machine of what-if: goes through a log once, keeps what each key holds and what it would hold, and says
where the two part.

Rules of this module
- Nothing is written, no model is called. Memory: one value for each key, and what differs.
- An event is judged again only if something it was judged by is another: itself, the rules, the key's previous value
  or version, a key of an invariant. All others stand as recorded; so without a change nothing differs, on any log.
- A transaction is judged whole: all of it, or none.
- Erased updates count as none; what an erased value decided cannot be judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold_replay.changing import KEEP, SKIP, Changes
from refold_replay.differences import Difference, KeyDifference, Sides, Values, What
from refold_replay.grounds import Ground
from refold_replay.holding import Held, Recorded, Virtual
from refold_replay.judging import Attempt, Judge, Unjudged, Verdict, pairs_of, refs_of
from refold_replay.laws import Laws
from refold_replay.resting import Ripple
from refold_replay.rolledup import RolledUp, rolled_up
from refold_store.errors import Refused
from refold_store.events import DELETED, KINDS, READ, REFUSED, RUN_OPENED, SCHEMA_DECLARED, WRITTEN, Event
from refold_store.jsontext import decode, encode
from refold_store.plan import Change
from refold_store.run import Run
from refold_store.schema import Schema

Resting = tuple[Sequence[Ground[str]], int]
"""Grounds that would be others, and how many more there are."""


class Refolding:
    """One pass over a run with a change."""

    def __init__(self, run: Run, changes: Changes) -> None:
        self._run = run
        self._changes = changes
        self._recorded = Recorded()
        self._virtual = Virtual(self._recorded)
        self._judge = Judge(self._recorded, self._virtual)
        self._ripple = Ripple()
        self._laws = Laws(Schema([]), Schema([]))
        self._unit: list[Attempt] = []
        self._txn: int | None = None
        self._values = Values()
        self._rolled = _in_order(rolled_up(run))
        self.seq = 0
        self.found: list[Difference] = []

    def feed(self, event: Event) -> None:
        """Take in the next event."""
        row = event.row
        kind, self.seq = row.kind, row.seq
        if self._unit and (row.txn is None or row.txn != self._txn):
            self._flush()
        while self._rolled and self._rolled[-1][0] < row.seq:
            self._read_rolled(*self._rolled.pop())
        if kind in (WRITTEN, DELETED, REFUSED):
            attempt = Attempt(event, self._changes.of(event))
            if kind == REFUSED and not attempt.edited and _was_dropped(event):
                return
            self._unit.append(attempt)
            self._txn = row.txn
            if row.txn is None:
                self._flush()
        elif kind == READ:
            self._read(event)
        elif kind == RUN_OPENED:
            self._judge.opener = event.actor
        elif kind == SCHEMA_DECLARED and row.body is not None:
            self._declared(str(event.body.get("fingerprint")))

    def end(self) -> list[KeyDifference]:
        """The log is over: the keys that would hold another value."""
        if self._unit:
            self._flush()
        final = []
        for name in sorted(self._virtual.differing, key=str.encode):
            held, real = self._virtual.differing[name], self._recorded.held(name)
            if not held.equals(real):
                sides = self._values.sides(real.whole(), held.whole())
                final.append(KeyDifference(name, sides, None if held.absent else held.seq, held.erased))
        return final

    def _declared(self, fingerprint: str) -> None:
        brought = (self._changes.rules.schema, self._run.store.schema)
        recorded = next((one for one in brought if one is not None and one.fingerprint == fingerprint), None)
        if recorded is None:
            recorded = self._run.store._schema_of(fingerprint)
            self._judge.foreign |= {key.reducer for key in recorded.keys if key.reducer.custom}
        self._laws = Laws(recorded, self._changes.rules.applied(recorded))

    # --- reads -------------------------------------------------------------------------------

    def _read(self, event: Event) -> None:
        row = event.row
        refs = refs_of(event)
        if "scope" in refs:
            return  # served from another run
        pairs = pairs_of(refs.get("keys")) if row.key is None else [(event.key or "", row.version or 0)]
        for key, version in pairs:
            sees = self._ripple.read(
                event.actor or "", key, version, seq=row.seq, seen=row.seen_seq or 0, turn=row.turn
            )
            if sees is not None:
                self.found.append(
                    Difference(row.seq, "state.read", event.actor, key, version, "saw another value", sees=sees)
                )

    def _read_rolled(self, seq: int, one: RolledUp) -> None:
        """Reads that were pruned, at the place of the first and of the last of them."""
        seen = self._ripple.seen_at(one.key, one.newest, seq)
        sees = self._ripple.read(one.reader, one.key, one.version, seq=seq, seen=seen, turn=None)
        if sees is not None and seq == one.first_seq:
            message = f"{one.reads} reads up to seq {one.last_seq}, pruned"
            self.found.append(
                Difference(
                    seq, "state.read", one.reader, one.key, one.version, "saw another value", message=message, sees=sees
                )
            )

    # --- units -------------------------------------------------------------------------------

    def _flush(self) -> None:
        unit, self._unit, self._txn = self._unit, [], None
        if not self._is_affected(unit):
            for attempt in unit:
                self._as_it_was(attempt)
            return
        before = {name: self._snapshot(name) for attempt in unit for name in attempt.keys}
        live = [attempt for attempt in unit if attempt.answer is not SKIP]
        try:
            verdict = self._verdict(unit, live) if live else Verdict([])
        except Unjudged as reason:
            self._unjudged(unit, before, str(reason))
            return
        changes = dict(zip((attempt.seq for attempt in live), verdict.changes, strict=False))
        for attempt in self._taken_in(unit, before):
            if attempt.answer is SKIP:
                self._removed(attempt, before)
            elif verdict.refused is not None:
                self._refused(attempt, before, verdict.refused)
            else:
                self._accepted(attempt, before, changes[attempt.seq], attempt.key in verdict.moved)

    def _taken_in(self, unit: Sequence[Attempt], before: dict[str, Held]) -> Iterator[Attempt]:
        """Each event of a unit once the record has taken it in. Where a turn wrote a key twice: one after the other."""
        names = [attempt.key for attempt in unit if attempt.kind != REFUSED]
        if len(set(names)) == len(names):
            for attempt in unit:
                self._take_in(attempt)
            yield from unit
            return
        for attempt in unit:
            self._take_in(attempt)
            yield attempt
            if attempt.key is not None:
                before[attempt.key] = self._snapshot(attempt.key)

    def _is_affected(self, unit: Sequence[Attempt]) -> bool:
        """Whether anything the unit was judged by is another."""
        if any(attempt.answer is not KEEP for attempt in unit):
            return True
        differing = self._virtual.differing
        if not differing and self._laws.same:
            return False
        if unit[0].fixed:
            return False
        for attempt in unit:
            for name in attempt.keys:
                if self._laws.differs(name):
                    return True
                if name in differing and (
                    attempt.kind == REFUSED or attempt.expected is not None or self._laws.folds(name)
                ):
                    return True
                if attempt.key is not None and self._laws.invariants_touch(name, differing):
                    return True
        return False

    def _verdict(self, unit: Sequence[Attempt], live: Sequence[Attempt]) -> Verdict:
        laws = self._laws
        alike = not any(laws.differs(name) for attempt in unit for name in attempt.keys)
        if alike and not (len(unit) == 1 and unit[0].edited):
            self._judge.by_record(unit, laws.recorded)
        return self._judge.by_change(live, laws.changed, laws.recorded if alike else None)

    def _snapshot(self, name: str) -> Held:
        held = self._virtual.held(name)
        return held.moved(held.seq, held.writer, held.version) if not held.instead else held

    def _take_in(self, attempt: Attempt) -> None:
        """What the record says."""
        name = attempt.key
        if attempt.kind == REFUSED or name is None:
            return
        self._ripple.made(name, attempt.seq)
        if attempt.kind == DELETED:
            self._recorded.delete(name, attempt.seq, attempt.actor, attempt.version)
        elif attempt.body is None:
            self._recorded.erase(name, self._laws.key(name), attempt.seq, attempt.actor, attempt.version)
        else:
            key = self._laws.key(name)
            self._recorded.write(name, key, attempt.seq, attempt.actor, attempt.version, attempt.body)

    def _settle(self, attempt: Attempt, held: Held) -> None:
        """What the change would make of the key."""
        assert attempt.key is not None
        differs = self._virtual.settle(attempt.key, held)
        sees = _seen(attempt.key, held, self._recorded.held(attempt.key)) if differs else ""
        self._ripple.stands(attempt.key, attempt.seq, differs, sees)

    # --- what becomes of one event -----------------------------------------------------------

    def _as_it_was(self, attempt: Attempt) -> None:
        self._take_in(attempt)
        if attempt.kind == REFUSED or attempt.key is None:
            return
        if attempt.key in self._virtual.differing:
            self._settle(attempt, self._recorded.held(attempt.key))
        resting = self._rests_on(attempt)
        if resting[0]:
            self._doubt(attempt, resting)

    def _removed(self, attempt: Attempt, before: dict[str, Held]) -> None:
        if attempt.kind != REFUSED and attempt.key is not None:
            self._gone(attempt, before)
        self._say(attempt, "removed", self._sides(attempt, None))

    def _gone(self, attempt: Attempt, before: dict[str, Held]) -> None:
        assert attempt.key is not None
        self._judge.gone.add((attempt.key, attempt.version))
        self._ripple.alter(attempt.key, attempt.version)
        self._settle(attempt, before[attempt.key])

    def _refused(self, attempt: Attempt, before: dict[str, Held], error: Refused) -> None:
        if attempt.kind == REFUSED:
            if attempt.edited:
                self._say(attempt, "edited", reason=error.reason, message=error.detail)
            return
        self._gone(attempt, before)
        self._say(attempt, "refused", self._sides(attempt, None), reason=error.reason, message=error.detail)

    def _accepted(self, attempt: Attempt, before: dict[str, Held], change: Change, moved: bool) -> None:
        assert attempt.key is not None
        held = _held_after(attempt, before[attempt.key], change)
        if attempt.kind == REFUSED:
            held.version, held.instead = before[attempt.key].version - before[attempt.key].instead + 1, True
            self._settle(attempt, held)
            self._say(attempt, "accepted instead", self._values.sides(None, held.whole()))
            return
        real = self._recorded.held(attempt.key)
        differs = not held.equals(real)
        resting = self._rests_on(attempt)
        if differs:
            self._ripple.alter(attempt.key, attempt.version)
        self._settle(attempt, held if differs else real)
        if differs or attempt.edited:
            what: What = "edited" if attempt.edited else "value changed"
            self._say(attempt, what, self._values.sides(real.whole(), held.whole()), resting=resting)
        elif resting[0] or moved:
            self._doubt(attempt, resting, f"expected version {attempt.expected}, which is gone" if moved else None)

    def _unjudged(self, unit: Sequence[Attempt], before: dict[str, Held], why: str) -> None:
        """Nothing can be told: each event stands as recorded, in doubt. What was skipped is gone in any case."""
        for attempt in self._taken_in(unit, before):
            if attempt.answer is SKIP:
                self._removed(attempt, before)
                continue
            self._say(attempt, "cannot be judged", message=why)
            if attempt.kind == REFUSED or attempt.key is None:
                continue
            self._ripple.doubt(attempt.key, attempt.version)
            key = self._laws.key(attempt.key)
            if attempt.body is None and attempt.kind == WRITTEN and key is not None and key.stores == "update":
                self._settle(attempt, before[attempt.key].moved(attempt.seq, attempt.actor, attempt.version))
            else:
                self._settle(attempt, self._recorded.held(attempt.key))

    # --- saying it ---------------------------------------------------------------------------

    def _rests_on(self, attempt: Attempt) -> Resting:
        assert attempt.key is not None
        return self._ripple.rests_on(
            attempt.actor,
            attempt.key,
            attempt.version,
            turn=attempt.turn,
            stated=attempt.stated,
            folds=attempt.kind == WRITTEN and self._laws.folds(attempt.key),
        )

    def _doubt(self, attempt: Attempt, resting: Resting, message: str | None = None) -> None:
        assert attempt.key is not None
        self._ripple.doubt(attempt.key, attempt.version)
        self._say(attempt, "depends", message=message, resting=resting)

    def _sides(self, attempt: Attempt, after: bytes | None) -> Sides:
        """A recorded write against what would stand there."""
        if attempt.kind != WRITTEN or attempt.key is None:
            return self._values.sides(None, after)
        return self._values.sides(self._recorded.held(attempt.key).whole(), after)

    def _say(
        self,
        attempt: Attempt,
        what: What,
        sides: Sides | None = None,
        *,
        reason: str | None = None,
        message: str | None = None,
        resting: Resting = ((), 0),
    ) -> None:
        self.found.append(
            Difference(
                attempt.seq,
                KINDS[attempt.kind],
                attempt.actor,
                attempt.key,
                None if attempt.kind == REFUSED else attempt.version,
                what,
                Sides() if sides is None else sides,
                reason,
                message,
                rests_on=tuple(resting[0]),
                more_grounds=resting[1],
            )
        )


def _was_dropped(event: Event) -> bool:
    """Whether a refused write was the draft of a turn that rolled back: no rule refused it, none would accept it."""
    return event.row.body is not None and event.body.get("reason") == "rolled_back"


def _in_order(rolled: Sequence[RolledUp]) -> list[tuple[int, RolledUp]]:
    """The first and the last read of each roll-up, the next one last."""
    return sorted({(seq, one) for one in rolled for seq in (one.first_seq, one.last_seq)}, reverse=True)


def _held_after(attempt: Attempt, before: Held, change: Change) -> Held:
    """What a key would hold after an accepted write or delete."""
    held = Held(attempt.version, attempt.seq, attempt.actor)
    prepared = change.op.prepared
    if prepared is None:
        return held
    held.absent = False
    if change.text is not None:
        held.text = change.text
    else:
        text = None if before.absent else before.whole()
        old = None if text is None else decode(text)
        held.text = encode(change.op.key.fold(old, decode(prepared.text)))
    return held


def _seen(key: str, held: Held, real: Held) -> str:
    """What a reader would see of a key, in a few words."""
    if held.instead:
        return f"the value of seq {held.seq}"
    if not held.version:
        return "nothing"
    if held.erased:
        return f"{key}@{held.version} (erased)"
    if held.absent:
        return f"{key}@{held.version} (deleted)"
    return f"{key}@{held.version}" + (" with another value" if held.version == real.version else "")

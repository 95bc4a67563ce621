"""A turn: one go of one agent. Its reads are recorded with its number; its writes are a draft until it commits.

    with run.turn("liability_agent") as turn:
        routing = turn.read_state("routing")
        turn.write_state("settlement", {"amount": 12000}, basis="within the limit")

Rules of this module
- Reads see the newest committed state and the own draft; a read of the draft says so.
- A child sees its parent's draft; other turns do not.
- Threads may share a turn. In asyncio use `async with` and the awaitable calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from refold_store import jsontext
from refold_store.attempts import Attempt, in_thread
from refold_store.drafting import Drafting, DraftRead, Entry
from refold_store.errors import Refused, TransactionInvalid
from refold_store.events import READ, Draft
from refold_store.reads import Read
from refold_store.requests import Request, Unit
from refold_store.writing import DELETE, BasedOn, checked_op, event_draft, refuse


class Turn(Attempt):
    """One attempt of a turn, as the agent uses it."""

    def child(self, agent: str, *, number: int | None = None, body: Mapping[str, Any] | None = None) -> Turn:
        """A turn of another agent inside this one: it sees this draft and commits into it. Otherwise as `run.turn`."""
        self._check_open()
        made = Turn(self.run, agent, number=number, parent=self, body=body)
        self._children.append(made)
        return made

    # --- reading -----------------------------------------------------------------------------

    def read_state(self, key: str) -> Read | DraftRead:
        """A key as this turn sees it: its draft, else the newest version. On the record with this turn's number."""
        with self._lock:
            self._check_open()
            if self._drafting.find(key) is not None:
                return self._read_draft(key)
        read = self.run.read_state(key, reader=self.agent, turn=self.number)
        self._note_seen(read)
        return read

    def _read_draft(self, key: str) -> DraftRead:
        store, head = self.run.store, self.run.head_seq()
        entry = self._drafting.look(key)
        assert entry is not None
        made = DraftRead(key, entry, seen_seq=head, recorded=store._records, written_by=self._writer_of(key))
        refs = jsontext.encode({"draft": entry.writes}).decode()
        draft = Draft(READ, self.agent, None, key, entry.base, head, self.number, refs=refs, trace=store._trace())
        self._note(draft)
        return made

    def _writer_of(self, key: str) -> str:
        """Who drafted a key last."""
        drafting: Drafting | None = self._drafting
        while drafting is not None:
            for op in reversed(drafting.ops):
                if op.name == key:
                    return op.writer
            drafting = drafting.parent
        return self.agent

    def _note(self, draft: Draft) -> None:
        store, run = self.run.store, self.run
        if store._records and store.strict_reads:
            run._committer.submit(Request(run._head, self._schema, (draft,)))
        elif store._records:
            run._committer.note(run._head, self._schema, draft)

    async def aread_state(self, key: str) -> Read | DraftRead:
        """`read_state` for async callers."""
        found: Read | DraftRead = await in_thread(self.read_state, key)
        return found

    def read_many(self, keys: Sequence[str]) -> dict[str, Read | DraftRead]:
        """Several keys: those that are not drafted in one snapshot and one event."""
        with self._lock:
            self._check_open()
            plain = [key for key in keys if self._drafting.find(key) is None]
        found: dict[str, Read | DraftRead] = {}
        if plain:
            found |= self.run.read_many(plain, reader=self.agent, turn=self.number)
        for read in found.values():
            self._note_seen(read)
        return {key: found[key] if key in found else self.read_state(key) for key in keys}

    def _note_seen(self, read: Read | DraftRead) -> None:
        with self._lock:
            if read.key not in self._drafting.entries:
                self._seen[read.key] = read.version

    def peek(self, key: str) -> Read | DraftRead:
        """A key as this turn sees it, not recorded: for code that reports itself what it looked at."""
        with self._lock:
            entry = self._drafting.find(key)
            if entry is not None:
                return DraftRead(key, entry, seen_seq=0, recorded=False, written_by=self._writer_of(key))
        return self.run.peek(key)

    def look_around(self) -> tuple[int, dict[str, tuple[int, int, bytes]]]:
        """(seq, {key: (version, drafts, value text)}) of all keys that hold a value, draft included. Not recorded."""
        state = self.run.state()
        found = {key: (read.version, 0, read.text) for key, read in state.items() if not read.erased}
        with self._lock:
            for key, entry in self._drafted().items():
                text = entry.value_text()
                found.pop(key, None)
                if text is not None:
                    found[key] = entry.base, entry.writes, text
        return state.seq, found

    def _drafted(self) -> dict[str, Entry]:
        """What this turn, and those it is in, have drafted."""
        drafting: Drafting | None = self._drafting
        found: dict[str, Entry] = {}
        while drafting is not None:
            found = drafting.entries | found
            drafting = drafting.parent
        return found

    def note_reads(self, versions: Mapping[str, int], seen_seq: int) -> None:
        """Record that this turn read these keys at these versions, as one event."""
        if not versions:
            return
        refs = jsontext.encode({"keys": [[key, version] for key, version in versions.items()]}).decode()
        trace = self.run.store._trace()
        self._note(Draft(READ, self.agent, None, None, None, seen_seq, self.number, refs=refs, trace=trace))
        with self._lock:
            for key, version in versions.items():
                if self._drafting.find(key) is None:
                    self._seen[key] = version
                else:
                    self._drafting.look(key)

    def note_read(self, read: Read | DraftRead, *, seen_seq: int, scope: str | None = None) -> None:
        """Record what was peeked as a read of this turn. `seen_seq`: the newest seq the peek can vouch for.

        `scope`: where a shared key lies, None for a key of this run.
        """
        refs: dict[str, Any] = {} if scope is None else {"scope": scope}
        if isinstance(read, DraftRead):
            refs["draft"] = read.ground[1] - read.version
            with self._lock:
                self._drafting.look(read.key)
        else:
            self._note_seen(read)
        text = jsontext.encode(refs).decode() if refs else None
        trace = self.run.store._trace()
        self._note(Draft(READ, self.agent, None, read.key, read.version, seen_seq, self.number, refs=text, trace=trace))

    # --- drafting ----------------------------------------------------------------------------

    def write_state(
        self, key: str, value: object, *, basis: str | None = None, based_on: BasedOn | None = None
    ) -> None:
        """Draft a write. Owner, type and reducer are checked now, invariants when the turn commits.

        A key may be written again: every write becomes a version of its own. Raises a Refused, which is recorded.
        """
        self._add([(key, value)], basis, based_on)

    def delete_state(self, key: str, *, basis: str | None = None, based_on: BasedOn | None = None) -> None:
        """Draft a delete."""
        self._add([(key, DELETE)], basis, based_on)

    async def awrite_state(
        self, key: str, value: object, *, basis: str | None = None, based_on: BasedOn | None = None
    ) -> None:
        """`write_state` for async callers."""
        await in_thread(self._add, [(key, value)], basis, based_on)

    async def adelete_state(self, key: str, *, basis: str | None = None, based_on: BasedOn | None = None) -> None:
        """`delete_state` for async callers."""
        await in_thread(self._add, [(key, DELETE)], basis, based_on)

    def _add(self, writes: Sequence[tuple[str, object]], basis: str | None, based_on: BasedOn | None) -> None:
        """Draft all of them or none."""
        with self._lock:
            self._check_open()
            saved = self._drafting.saved() if len(writes) > 1 else None
            try:
                for key, value in writes:
                    self._add_one(key, value, basis, based_on)
            except BaseException:
                if saved is not None:
                    self._drafting.restore(saved)
                raise
        self._live.drafted({key for key, _value in writes})

    def _add_one(self, key: str, value: object, basis: str | None, based_on: BasedOn | None) -> None:
        op = checked_op(self.run, self._schema, key, value, self.agent, basis, None, based_on, turn=self.number)
        if op.key.scope != "run" and self.run.scope == 0:
            raise TransactionInvalid(
                f"key {key!r} has scope {op.key.scope!r} and lives in another run; write it with run.write_state"
            )
        op.turn = self.number
        under = self.run.peek(key) if self._drafting.find(key) is None else None
        try:
            self._drafting.add(op, under, self._seen_of(key))
        except Refused as error:
            error.key, error.writer = key, self.agent
            refuse(self.run, self._schema, error, op.key, value, turn=self.number)

    def _seen_of(self, key: str) -> int | None:
        """The version this turn, or one it is a child of, has read last."""
        at: Attempt | None = self
        while at is not None:
            if key in at._seen:
                return at._seen[key]
            at = at.parent
        return None

    # --- other events ------------------------------------------------------------------------

    def append(
        self,
        kind: str,
        *,
        key: str | None = None,
        body: Mapping[str, Any] | None = None,
        refs: Mapping[str, Any] | None = None,
        durable: bool = True,
    ) -> int:
        """Record an event of this turn that changes no state (`model.answered` ...); it stays if the turn rolls back.

        Returns its seq. Raises TurnFenced once another attempt took over.
        """
        return self.append_all([event_draft(kind, self.agent, key, self.number, body, refs)], durable=durable)[0]

    def append_all(self, drafts: Sequence[Draft], *, durable: bool = True) -> list[int]:
        """`append` of several at once."""
        self._check_open()
        trace = self.run.store._trace()
        for draft in drafts:
            draft.trace = trace
        unit = Unit([], turn=self.number, fence=self._fence(), tail=drafts)
        self.run._committer.submit(Request(self.run._head, self._schema, (unit,), durable=durable))
        return unit.tail_seqs

    def at_commit(
        self, kind: str, *, body: Mapping[str, Any] | None = None, refs: Mapping[str, Any] | None = None
    ) -> None:
        """Record an event with the commit, in its transaction (`handoff.made`, `route.decided`, `message.added`)."""
        draft = event_draft(kind, self.agent, None, self.number, body, refs)
        with self._lock:
            self._check_open()
            self._after.append(draft)

    def conclude(self, outcome: Mapping[str, Any]) -> None:
        """What the turn came to, as members of the body of the event that ends it."""
        self._outcome = dict(outcome)

    # --- the live document -------------------------------------------------------------------

    def snapshot(self, document: Mapping[str, Any]) -> bool:
        """Draft the whole state as one document: changed keys are written, missing ones that are its own deleted.

        False: the attempt is over; the call was ignored, and counted.
        """
        return self._live.take_snapshot(self, document)

    def delta(self, operations: Sequence[Mapping[str, Any]], *, base: int | None = None) -> bool:
        """Draft an RFC 6902 patch of the document. `base`: the version it was made for; raises DeltaOutdated.

        All of it is drafted or nothing. False: the attempt is over; the call was ignored, and counted.
        """
        return self._live.take_delta(self, operations, base)

    def unlocked(self) -> AbstractContextManager[None]:
        """A block in which `set_state` works although this turn is live: while a tool of the user's side runs."""
        return self._live.unlocked()

    def __repr__(self) -> str:
        return f"<Turn {self.number} of {self.agent!r}, attempt {self.attempt}, {self._state}>"

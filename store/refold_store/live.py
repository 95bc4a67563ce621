"""The shared live state of a run: one document that observers follow, and that the outside may set between turns.

Rules of this module
- The document is the state at one seq with the drafts of open turns on top. Each change of it has a base version and
  the next; applying what is told to the document before gives the document after, to the byte.
- Whoever changes the document tells the observers, in its own thread and in order, and holds no lock meanwhile. What
  other processes commit is found by looking at the log.
- `set_state` is locked from the scheduling of a live turn to its end, retries and pauses included; the process that
  holds the lock knows it at once, every other one by the log.
- Locks are taken in this order: an edit's, the live state's, a turn's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from refold_store import jsontext
from refold_store.errors import InvalidValue, RefoldError
from refold_store.fold import ABSENT
from refold_store.looking import look_unseen
from refold_store.reads import Read
from refold_store.requests import Written
from refold_store.turn_errors import DeltaOutdated, StateLocked
from refold_store.watching import Change, Watch
from refold_store.writing import DELETE, refuse

if TYPE_CHECKING:
    from refold_store.run import Run
    from refold_store.turns import Turn

_MOVING = ("state.written", "state.deleted", "value.erased")


class Live:
    """The live state of one run in one process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.RLock()
        self._edits = threading.RLock()
        self._watches: list[Watch] = []
        self._turns: list[Any] = []
        """Open turns, children included, the innermost last."""
        self._following = False
        """Whether the document is kept up to date."""
        self._document: dict[str, bytes] = {}
        self._seq = 0
        self._version = 0
        self._draft_told = False
        self._holders: list[tuple[str, int | None]] = []
        self._unlocked = 0
        self._outbox: deque[tuple[Watch, Change]] = deque()
        self._telling = False
        self.ignored = 0
        """Snapshots and deltas of attempts that were over."""

    # --- observers ---------------------------------------------------------------------------

    def watch(self, callback: Callable[[Change], None] | None = None) -> Watch:
        """Follow the document: first a snapshot, then each change. With a callback each is told as it happens."""
        with self._lock:
            self._refresh()
            made = Watch(self, callback)
            self._watches.append(made)
            self._outbox.append((made, self._snapshot()))
        self._deliver()
        return made

    def forget(self, watch: Watch) -> None:
        """An observer has gone."""
        with self._lock:
            self._watches = [one for one in self._watches if one is not watch]
            self._outbox = deque(one for one in self._outbox if one[0] is not watch)
            self._rest()

    def instead(self, watch: Watch) -> Change:
        """One snapshot in the place of all that an observer was still to be told."""
        with self._lock:
            self._outbox = deque(one for one in self._outbox if one[0] is not watch)
            return self._snapshot()

    def document(self) -> dict[str, Any]:
        """The document as plain JSON."""
        with self._lock:
            self._refresh()
            found = _decoded(self._document)
            self._rest()
            return found

    @property
    def version(self) -> int:
        """The version of the document; it counts in this process only."""
        return self._version

    def refresh(self) -> None:
        """Look at the log for what others committed, and tell it."""
        with self._lock:
            self._refresh()
            self._rest()
        self._deliver()

    def _rest(self) -> None:
        """Keep the document only while somebody needs it."""
        if not self._watches and not self._turns:
            self._following = False

    def _refresh(self) -> None:
        run = self._run
        if not self._following:
            self._load()
            return
        head = run.head_seq()
        if head <= self._seq:
            return
        moved: set[str] = set()
        for event in run.events(_MOVING, after=self._seq, until=head):
            moved |= {event.key} if event.key is not None else set(self._document)
        self._seq = head
        self._change(moved)

    def _load(self) -> None:
        """Take the document anew. Who watched it before it was lost is told by a snapshot."""
        state = self._run.state()
        before, self._seq = self._document, state.seq
        self._document = {key: read.text for key, read in state.items() if not read.erased}
        for key in self._drafted_keys():
            self._document.pop(key, None)
            if (text := self._text_now(key)) is not None:
                self._document[key] = text
        self._following = True
        if self._document != before:
            self._version += 1
            self._tell(self._snapshot(self._version - 1))

    def _drafted_keys(self) -> set[str]:
        found: set[str] = set()
        for turn in self._turns:
            with turn._lock:
                found |= turn._drafting.entries.keys()
        return found

    def _change(self, keys: set[str], *, whole: bool = False) -> None:
        """Bring keys of the document up to date, and tell the observers."""
        before = {key: self._document[key] for key in keys if key in self._document}
        after = {key: text for key in keys if (text := self._text_now(key)) is not None}
        if before == after:
            return
        for key in keys:
            self._document.pop(key, None)
        self._document |= after
        base, self._version = self._version, self._version + 1
        if not self._watches:
            return
        if whole:
            self._tell(self._snapshot(base))
            return
        operations = _patching().delta(_decoded(before), _decoded(after))
        draft = bool(self._drafted_keys())
        self._tell(Change("delta", base, self._version, self._seq, draft, operations=operations))

    def _tell(self, change: Change) -> None:
        self._draft_told = change.draft
        self._outbox.extend((watch, change) for watch in self._watches)

    def _text_now(self, key: str) -> bytes | None:
        for turn in reversed(self._turns):
            with turn._lock:
                entry = turn._drafting.entries.get(key)
                if entry is not None:
                    text: bytes | None = entry.value_text()
                    return text
        read = self._committed(key)
        return None if read.absent or read.erased else read.text

    def _committed(self, key: str) -> Read:
        """A key at the document's seq."""
        run = self._run
        return Read(run, key, run.declared(key), look_unseen(run, key, self._seq), self._seq, False)

    def _snapshot(self, base: int | None = None) -> Change:
        base = self._version if base is None else base
        draft = bool(self._drafted_keys())
        return Change("snapshot", base, self._version, self._seq, draft, document=_decoded(self._document))

    def _deliver(self) -> None:
        """Tell what waits, in order, outside the lock: an observer may look, and may try to set the state."""
        while True:
            with self._lock:
                if self._telling or not self._outbox:
                    return
                self._telling = True
                watch, change = self._outbox.popleft()
            try:
                watch.tell(change)
            finally:
                with self._lock:
                    self._telling = False

    # --- turns -------------------------------------------------------------------------------

    def opened(self, turn: Any) -> None:
        """A turn has begun. An older attempt of it in this process is over."""
        with self._lock:
            older = [one for one in self._turns if any(number == turn.number for number, _attempt in one._fence())]
        for one in reversed(older):
            self.closed(one, one._overtaken())
        with self._lock:
            self._turns.append(turn)
            if turn._is_live:
                self._holders.append((turn.agent, turn.number))

    def closed(self, turn: Any, keys: set[str]) -> None:
        """A turn has ended: its draft of these keys is committed, joined to its parent's, or gone."""
        with self._lock:
            known = len(self._turns)
            self._turns = [one for one in self._turns if one is not turn]
            if turn._is_live and len(self._turns) < known:
                self._holders.remove((turn.agent, turn.number))
            if self._following and self._watches:
                try:
                    self._follow_end(turn, keys)
                except RefoldError:  # the turn has ended all the same; the next look takes the document anew
                    self._following = False
            self._rest()
        self._deliver()

    def _follow_end(self, turn: Any, keys: set[str]) -> None:
        if turn._state != "committed":
            self._change(keys, whole=True)
            return
        if turn.parent is None:
            self._refresh()
        self._change(keys)
        if self._draft_told and not self._drafted_keys():  # the document is the same, and committed now
            self._tell(Change("delta", self._version, self._version, self._seq, False, operations=[]))

    def drafted(self, keys: set[str]) -> None:
        """A turn has drafted keys."""
        if self._following:
            with self._lock:
                self._change(keys)
            self._deliver()

    # --- documents from turns ----------------------------------------------------------------

    def take_snapshot(self, turn: Turn, document: Mapping[str, Any]) -> bool:
        """See Turn.snapshot."""
        if turn._state != "open":
            self.ignored += 1
            return False
        with self._edits:
            _seq, before = self._seen_by(turn)
            mine = {key for key in before.keys() - document.keys() if turn.agent in turn._schema.key(key).actors}
            self._write(turn, before, dict(document), mine)
        return True

    def take_delta(self, turn: Turn, operations: Sequence[Mapping[str, Any]], base: int | None) -> bool:
        """See Turn.delta."""
        if turn._state != "open":
            self.ignored += 1
            return False
        with self._edits:
            seq, before = self._seen_by(turn)
            now = {key: jsontext.decode(text) for key, text in before.items()}
            if base is not None and base != self._version:
                raise DeltaOutdated(run=self._run.name, turn=turn.number, given=base, base=self._version, snapshot=now)
            after = _patching().apply(now, operations)
            if not isinstance(after, dict):
                raise InvalidValue("the state is an object of keys; the delta makes it something else", path="$")
            changed = {key: value for key, value in after.items() if value is not now.get(key, ABSENT)}
            self._note_ground(turn, changed.keys() & now.keys(), seq)
            self._write(turn, before, changed, before.keys() - after.keys())
        return True

    def _note_ground(self, turn: Turn, keys: set[str], seq: int) -> None:
        """A patch rests on the values it changes, unless it only adds to a list: they must still be there."""
        schema = turn._schema
        rests = [key for key in sorted(keys) if key in schema and schema.key(key).reducer.name != "append"]
        with turn._lock:
            drafted = {key for key in rests if turn._drafting.look(key) is not None}
        turn.note_reads({key: self._committed(key).version for key in rests if key not in drafted}, seq)

    def _seen_by(self, turn: Turn) -> tuple[int, dict[str, bytes]]:
        """(seq, the document as a turn sees it): without what other turns have drafted."""
        with self._lock:
            self._refresh()
            drafts = turn._drafted()
            found = dict(self._document)
            for key in self._drafted_keys() | drafts.keys():
                found.pop(key, None)
                if key in drafts:
                    with turn._lock:
                        text = drafts[key].value_text()
                else:
                    read = self._committed(key)
                    text = None if read.absent or read.erased else read.text
                if text is not None:
                    found[key] = text
            return self._seq, found

    def _write(self, turn: Turn, before: Mapping[str, bytes], after: Mapping[str, Any], gone: set[str]) -> None:
        """Draft what differs, and delete what is gone, all of it or nothing."""
        writes: list[tuple[str, object]] = []
        for key, value in after.items():
            old = before.get(key)
            if old is None or old != jsontext.encode(value):
                writes.append((key, self._update(turn, key, ABSENT if old is None else jsontext.decode(old), value)))
        writes += [(key, DELETE) for key in sorted(gone)]
        if writes:
            turn._add(writes, None, None)

    def _update(self, turn: Turn, key: str, old: Any, value: Any) -> Any:
        """What to write so that the key holds `value`: itself, or what its reducer adds."""
        declared = turn._schema.key(key)
        if declared.reducer.name == "last":
            return value
        if declared.reducer.name == "append" and isinstance(value, list):
            start = [] if old is ABSENT else old
            if value[: len(start)] == start:
                return value[len(start) :]
        error = InvalidValue(
            f"{key!r} accumulates by {declared.reducer.name}: a document can only add at the end of a list; "
            "hand the update to write_state",
            path="$",
        )
        error.key, error.writer = key, turn.agent
        refuse(turn.run, turn._schema, error, declared, value, turn=turn.number)

    # --- setting it from outside -------------------------------------------------------------

    def hold(self, agent: str) -> Callable[[], None]:
        """Lock `set_state` for a turn that is scheduled. Call what is returned when it has settled."""
        mark = [(agent, None)]
        with self._lock:
            self._holders += mark

        def release() -> None:
            with self._lock:
                if mark:
                    self._holders.remove(mark.pop())

        return release

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """A block in which `set_state` works all the same, in this process."""
        with self._lock:
            self._unlocked += 1
        try:
            yield
        finally:
            with self._lock:
                self._unlocked -= 1

    def set_state(self, values: Mapping[str, object], *, writer: str, basis: str | None = None) -> list[Written]:
        """Write keys of the document from outside a turn, all or none. Raises StateLocked, and what a write raises."""
        with self._lock:
            if self._holders and not self._unlocked:
                agent, number = self._holders[-1]
                raise StateLocked(run=self._run.name, turn=number, agent=agent)
            allowed = self._unlocked > 0
        with self._run.transaction() as transaction:
            transaction._unless_live = not allowed
            for key, value in values.items():
                transaction.write_state(key, value, writer=writer, basis=basis)
        if self._watches:
            self.refresh()
        return transaction.written


def _decoded(texts: Mapping[str, bytes]) -> dict[str, Any]:
    return {key: jsontext.decode(text) for key, text in texts.items()}


def _patching() -> ModuleType:
    """RFC 6902. It loads when a document is first compared or patched: jsonpatch takes longer to load than a turn."""
    from refold_store import patch

    return patch

"""The draft of a turn: writes that are not in the log yet, and the values they would make.

Rules of this module
- Every drafted write becomes an event of its own when the turn commits; nothing is merged or dropped.
- A key's base is the version the turn last read of it, else the newest when it was first drafted. A key that
  accumulates, and that the turn never read, has none: its updates fold onto whatever is newest. Looking at the draft
  reads what lies under it, too.
- What holds between a turn and the log holds between a child and its parent: a child whose parent's draft of a key has
  moved on since cannot commit, unless it only adds.
- Values are folded when they are looked at, and from texts, so that nobody holds an object of somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from refold_store import jsontext
from refold_store.errors import Conflict
from refold_store.fold import ABSENT
from refold_store.keys import Key
from refold_store.reads import Read
from refold_store.requests import Op


@dataclass(slots=True)
class Entry:
    """One drafted key. `text` is its value before `updates`; None: absent."""

    key: Key
    base: int
    """The version it goes on from."""
    tied: bool
    """Whether the commit must find the key at `base`."""
    text: bytes | None = None
    updates: list[bytes] = field(default_factory=list)
    writes: int = 0
    """How many writes are drafted, the parent's included."""
    start: int = 0
    """How many of them the parent had drafted when this one began."""
    held: bool = False
    """Whether the parent's draft must still be there when a child commits into it."""
    under: Read | None = None
    """What is committed, where `text` is still to be taken from it: adding to a long list must not cost the list."""

    def value_text(self) -> bytes | None:
        """The text of the drafted value; None: absent."""
        if self.under is not None:
            read, self.under = self.under, None
            self.text = None if read.absent or read.erased else read.text
        if self.updates:
            before = None if self.text is None else jsontext.decode(self.text)
            folded = self.key.fold_many(before, [jsontext.decode(one) for one in self.updates])
            self.text, self.updates = jsontext.encode(folded), []
        return self.text

    def take(self, op: Op) -> None:
        """Draft one more write. Raises Refused, and leaves the entry as it was."""
        prepared = op.prepared
        if prepared is None:
            self.text, self.updates, self.under = None, [], None
        elif prepared.value_text is not None:
            self.text, self.updates, self.under = prepared.value_text, [], None
        elif self.key.stores == "value":
            self.text, self.updates = self.key.reduce(prepared, self.value_text()), []
        else:
            if self.key.needs_previous:
                self.key.reduce(prepared, self.value_text())
            self.updates.append(prepared.text)
        self.writes += 1

    def copy(self) -> Entry:
        """The same, to change."""
        return replace(self, updates=list(self.updates))


class Drafting:
    """The drafted writes of one attempt. A child's begin where its parent's are."""

    def __init__(self, parent: Drafting | None = None) -> None:
        self.parent = parent
        self.ops: list[Op] = []
        self.entries: dict[str, Entry] = {}
        self._looked: dict[str, int] = {}
        """How many writes of a key the parent had drafted when a child looked at it."""

    def find(self, name: str) -> Entry | None:
        """The draft of a key: its own, else the parent's."""
        found = self.entries.get(name)
        return found if found is not None or self.parent is None else self.parent.find(name)

    def look(self, name: str) -> Entry | None:
        """`find` for a reader: what it saw must still hold when the turn commits."""
        found = self.find(name)
        if found is not None:
            found.tied = True
            if name in self.entries:
                found.held = True
            else:
                self._looked[name] = found.writes
        return found

    def add(self, op: Op, under: Read | None, seen: int | None) -> None:
        """Draft a write. `under`: the key as committed, if no draft is above; `seen`: the version the turn has read."""
        entry = self.entries.get(op.name)
        if entry is None:
            entry = self._begun(op, under, seen)
        replaces = op.prepared is None or op.prepared.value_text is not None
        entry.take(op)
        entry.tied, entry.held = entry.tied or replaces, entry.held or replaces
        self.entries[op.name] = entry
        self.ops.append(op)

    def _begun(self, op: Op, under: Read | None, seen: int | None) -> Entry:
        above = None if self.parent is None else self.parent.find(op.name)
        if above is None:
            assert under is not None
            base = under.version if seen is None else seen
            return Entry(op.key, base, seen is not None, held=seen is not None, under=under)
        looked = self._looked.get(op.name)
        base = above.base if seen is None else min(seen, above.base)
        start = above.writes if looked is None else looked
        held = looked is not None or seen is not None
        return replace(above.copy(), key=op.key, base=base, start=start, held=held)

    def saved(self) -> tuple[int, dict[str, Entry]]:
        """What `restore` needs to come back to this moment."""
        return len(self.ops), {name: entry.copy() for name, entry in self.entries.items()}

    def restore(self, saved: tuple[int, dict[str, Entry]]) -> None:
        """Drop what was drafted since."""
        del self.ops[saved[0] :]
        self.entries = saved[1]

    def absorb(self, child: Drafting) -> None:
        """Take over what a child drafted. Raises Conflict, or Refused, and leaves both as they were."""
        self.entries |= {name: self._joined(name, entry, child.ops) for name, entry in child.entries.items()}
        self.ops += child.ops

    def _joined(self, name: str, entry: Entry, ops: list[Op]) -> Entry:
        mine = self.find(name)
        own = self.entries.get(name)
        if mine is None or mine.writes == entry.start:
            joined = entry.copy()
        elif entry.held:
            writer = next(op.writer for op in ops if op.name == name)
            other = next((op.writer for op in reversed(self.ops) if op.name == name), None)
            raise Conflict(
                key=name,
                writer=writer,
                expected=entry.base + entry.start,
                actual=mine.base + mine.writes,
                actual_writer=other,
            )
        else:
            joined = mine.copy()
            for op in ops:
                if op.name == name:
                    joined.take(op)
        joined.tied = joined.tied or entry.tied
        joined.base = entry.base if mine is None else min(entry.base, mine.base)
        if own is not None:
            joined.start, joined.held = own.start, own.held or entry.held
        elif mine is None:
            joined.start = 0
        return joined

    def bases(self) -> None:
        """Set what each key's first write expects to find."""
        for op in self.ops:
            op.expected = None
        done: set[str] = set()
        for op in self.ops:
            entry = self.entries[op.name]
            if op.name not in done and entry.tied:
                op.expected = entry.base
            done.add(op.name)


class DraftRead:
    """A key as its turn has drafted it. `version` is the committed version that the draft goes on from."""

    draft = True
    erased = False

    __slots__ = ("_key", "_text", "ground", "key", "recorded", "seen_seq", "version", "written_by")

    def __init__(self, name: str, entry: Entry, *, seen_seq: int, recorded: bool, written_by: str) -> None:
        self._key = entry.key
        self._text = entry.value_text()
        self.key = name
        self.version = entry.base
        self.ground = name, entry.base + entry.writes
        """(key, the version the draft becomes): what a write that rests on it is based on."""
        self.seen_seq = seen_seq
        self.recorded = recorded
        self.written_by = written_by

    @property
    def absent(self) -> bool:
        """Whether the draft holds no value: it deletes the key."""
        return self._text is None

    @property
    def owner(self) -> str:
        """The declared owner."""
        return self._key.owner

    @property
    def sensitive(self) -> bool:
        """Whether the key is declared sensitive."""
        return self._key.sensitive

    @property
    def text(self) -> bytes:
        """The exact JSON text of the value. Empty if absent."""
        return self._text or b""

    @property
    def json(self) -> Any:
        """The value as plain JSON; ABSENT if there is none."""
        return ABSENT if self._text is None else jsontext.decode(self._text)

    @property
    def value(self) -> Any:
        """The value in its declared type; ABSENT if there is none."""
        return ABSENT if self._text is None else self._key.typed(self._text)

    def __repr__(self) -> str:
        return f"<DraftRead {self.key!r} on version {self.version}>"

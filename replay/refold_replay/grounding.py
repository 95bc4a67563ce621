"""What versions rest on: the reads and writes of a log up to a seq, and a walk back from one of them, nearest first.

Rules of this module
- The same grounds as grounds.py gives, looked up for any write: of each key the newest version its actor had read.
- Of one write GROUNDS_MAX grounds are told, those of its own turn and the newest first, and EFFECTS_MAX effects.
- The write of a scope's key stands in another run: the walk ends there.
- Nothing rests on itself or on what came later, whatever an odd log says: the walk has no cycles.
- Memory: some numbers for each read and write, no bodies.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from refold_replay.grounds import GroundKind
from refold_replay.lineage import Address, Item, Versions, home_of
from refold_replay.sketch import Draft, Pieces, Sketch, identity, look_up, read_draft, write_draft
from refold_replay.spreading import GROUNDS_MAX, identity_of
from refold_store.events import DELETED, READ
from refold_store.run import Run

_SEQ = itemgetter(Item._fields.index("seq"))
EFFECTS_MAX = 20
"""Effects told of one write, the newest of its turn."""


class _Saw:
    """The reads of one key by one actor, in the order of the log."""

    __slots__ = ("counting", "reads", "seqs")

    def __init__(self) -> None:
        self.seqs = array("Q")
        self.reads: list[Item] = []
        self.counting: list[Item] = []
        """The read that counts as of each: the newest version so far, at its last read."""

    def add(self, item: Item) -> None:
        """One more read. A line of pruned reads that comes again stands for its first."""
        seq = item.seq
        if not item.reads:
            item = self._first_of(item)
        best = self.counting[-1] if self.counting else item
        self.seqs.append(seq)
        self.reads.append(item)
        self.counting.append(best if best.version > item.version else item)

    def of(self, version: int, before: int) -> Item | None:
        """The last read of a version before a seq."""
        for at in range(bisect_left(self.seqs, before) - 1, -1, -1):
            if self.reads[at].version == version:
                return self.reads[at]
        return None

    def _first_of(self, again: Item) -> Item:
        found = (read for read in reversed(self.reads) if read.last_seq == again.last_seq)
        return next((read for read in found if read.version == again.version), again)


class Ground(NamedTuple):
    """What a write rests on: a version, and the read behind it if there is one."""

    kind: GroundKind
    address: Address
    version: int
    read: Item | None


class Memory:
    """The reads, writes and effects of a log."""

    def __init__(self, run: Run, items: Iterable[Item]) -> None:
        self.versions = Versions(run)
        self.writes: dict[int, Item] = {}
        self.effects: dict[int, Item] = {}
        self._reads: dict[str, dict[Address, _Saw]] = {}
        self._acts: dict[tuple[str, int | None], list[int]] = {}
        """Seqs of an actor's effects in a turn; without a turn its writes, too: they part one go from the next."""
        for item in items:
            if item.kind == READ:
                self._read(item)
                continue
            if item.kind <= DELETED:
                self.writes[item.seq] = item
                self.versions.made(item)
                if item.turn is not None:
                    continue
            else:
                self.effects[item.seq] = item
            self._acts.setdefault((item.actor, item.turn), []).append(item.seq)

    def _read(self, item: Item) -> None:
        keys = self._reads.get(item.actor)
        if keys is None:
            keys = self._reads[item.actor] = {}
        saw = keys.get(item.address)
        if saw is None:
            saw = keys[item.address] = _Saw()
        saw.add(item)

    def grounds(self, write: Item, folds: Callable[[str, int], bool]) -> tuple[list[Ground], int]:
        """What a write rests on, and how many grounds more."""
        keys = self._reads.get(write.actor, {})
        found: list[Ground] = []
        more = 0
        if write.stated is not None:
            for address, version in write.stated:
                saw = keys.get(address)
                read = None if saw is None else saw.of(version, write.seq)
                found.append(Ground("stated", address, version, read))
        else:
            seq, turn = write.seq, write.turn
            reads = [saw.counting[at - 1] for saw in keys.values() if (at := bisect_left(saw.seqs, seq))]
            reads.sort(key=_SEQ, reverse=True)
            more = max(0, len(reads) - GROUNDS_MAX)
            nearest = [read for read in reads if read.turn == turn][:GROUNDS_MAX]
            left = GROUNDS_MAX - len(nearest)
            for read in (*nearest, *islice((read for read in reads if read.turn != turn), left)):
                found.append(Ground("direct" if read.turn == turn else "carried", read.address, read.version, read))
        if write.version > 1 and folds(write.key, write.seq):
            found.append(Ground("folded", write.key, write.version - 1, None))
        return found, more

    def effects_before(self, write: Item) -> list[Item]:
        """The effects of the same actor and turn before a write; without a turn, those since its last write."""
        seqs = self._acts.get((write.actor, write.turn), [])
        at = bisect_left(seqs, write.unit)
        found: list[Item] = []
        for seq in reversed(seqs[max(0, at - EFFECTS_MAX) : at]):
            if seq not in self.effects:
                break
            found.append(self.effects[seq])
        return found


class Backwards:
    """The walk back from one write."""

    def __init__(self, run: Run, memory: Memory, folds: Callable[[str, int], bool], limit: int | None) -> None:
        self._run = run
        self._memory = memory
        self._folds = folds
        self._pieces = Pieces(run)
        self._waiting: deque[tuple[int, Item]] = deque()
        self.sketch = Sketch(run, limit)

    def walk(self, root: Item) -> None:
        """Everything a write rests on, nearest first; then the tool calls that imported writes name."""
        self._write(root, 0)
        while self._waiting:
            place, item = self._waiting.popleft()
            if item.kind == READ:
                self._behind_read(place, item)
            else:
                self._behind_write(place, item)
        self._causes()

    def alone(self, address: Address, version: int) -> None:
        """The write of a key that another run holds: nothing more is known here."""
        self._elsewhere(address, version, 0)

    def _write(self, item: Item, depth: int) -> int | None:
        holder = self._pieces.holder(item.seq)
        name = identity(holder, item.seq)
        new = not self.sketch.known(name)
        place = self.sketch.node(name, write_draft(item, holder, depth))
        if new and place is not None:
            self._waiting.append((place, item))
        return place

    def _read(self, item: Item, depth: int) -> int | None:
        holder = self._pieces.holder(item.seq)
        name = (*identity_of(item, holder), item.version)
        new = not self.sketch.known(name)
        if new and self.sketch.full:
            self.sketch.skip(name)
            return None
        place = self.sketch.node(name, read_draft(item, holder, self._memory.versions.seen(item), depth))
        if new and place is not None:
            self._waiting.append((place, item))
        return place

    def _version(self, address: Address, version: int, depth: int, before: int) -> int | None:
        """The node of the write that made a version; None if there is none: before that seq it was not made."""
        if not version:
            return None
        if not isinstance(address, str):
            return self._elsewhere(address, version, depth)
        seq = self._memory.versions.seq_of(address, version)
        return None if seq is None or seq >= before else self._write(self._memory.writes[seq], depth)

    def _elsewhere(self, address: Address, version: int, depth: int) -> int | None:
        home, name = home_of(self._run, address)
        backend, run_id = self._run._backend, home._run_id()
        number = backend.id_of(name)
        found = None if run_id is None or number is None else backend.version(run_id, number, version)
        if found is None or run_id is None:
            return None
        actor = backend.text_of(found.actor) or ""
        scope = address if isinstance(address, str) else address[0]
        draft = Draft("write", run_id, scope, found.seq, found.kind, actor, depth, name, version)
        return self.sketch.node(identity(run_id, found.seq), draft)

    def _behind_read(self, place: int, item: Item) -> None:
        source = self._version(item.address, item.version, self.sketch.nodes[place].depth + 1, item.seq)
        self.sketch.edge(source, place, "read")

    def _behind_write(self, place: int, write: Item) -> None:
        sketch, depth = self.sketch, self.sketch.nodes[place].depth + 1
        grounds, sketch.nodes[place].more = self._memory.grounds(write, self._folds)
        for ground in grounds:
            if ground.read is None:
                sketch.edge(self._version(ground.address, ground.version, depth, write.seq), place, ground.kind)
                continue
            read = self._read(ground.read, depth)
            sketch.edge(read, place, ground.kind)
            if isinstance(ground.address, str):
                newest = self._memory.versions.before(ground.address, write.unit)
                sketch.superseded(read, ground.version, newest)
        for effect in self._memory.effects_before(write):
            self._effect(place, effect)

    def _effect(self, place: int, effect: Item) -> None:
        holder, depth = self._pieces.holder(effect.seq), self.sketch.nodes[place].depth + 1
        draft = Draft("effect", holder, "run", effect.seq, effect.kind, effect.actor, depth, turn=effect.turn)
        self.sketch.edge(self.sketch.node(identity(holder, effect.seq), draft), place, "effect")

    def _causes(self) -> None:
        """Imported writes name the line of their tool call, as they number lines themselves: `source_seq`."""
        named: dict[int, list[tuple[int, int]]] = {}
        details = self.sketch.details()
        for place, draft in enumerate(self.sketch.nodes):
            detail = details.get((draft.holder, draft.seq))
            if draft.kind != "write" or detail is None or detail.cause is None or detail.source_seq is None:
                continue
            seq = draft.seq - detail.source_seq + detail.cause
            if seq in self._memory.effects:
                named.setdefault(seq, []).append((place, detail.cause))
        for seq in sorted(named):
            [(_, detail)] = look_up(self._run, self._pieces.holder(seq), [seq])
            for place, cause in named[seq]:
                if detail.source_seq == cause:
                    self._effect(place, self._memory.effects[seq])

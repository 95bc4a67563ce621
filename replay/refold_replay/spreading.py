"""How a version spreads: one pass forwards over a log, which may part into forks.

Rules of this module
- A read of a reached version is reached; so is a write that rests on a reached read or version.
- Everything is counted; the sketch keeps as many nodes as it may. Of one write GROUNDS_MAX grounds are told.
- Memory: one entry for each pair of an actor and a key it read, and what was reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from refold_replay.grounds import GroundKind, Grounds
from refold_replay.lineage import Address, Item, Versions
from refold_replay.sketch import Pieces, Sketch, identity, read_draft, write_draft
from refold_store.events import DELETED, READ

GROUNDS_MAX = 20
"""Grounds of one write that become edges."""


@dataclass(slots=True)
class Reached:
    """What a spread has come to, over all logs."""

    sketch: Sketch
    reads: int = 0
    writes: int = 0
    agents: set[str] = field(default_factory=set)
    runs: dict[int, None] = field(default_factory=dict)


Place = int | None
"""Where the sketch has a node; None if it was one too many."""


class Spread:
    """What is reached so far in one log."""

    def __init__(self, reached: Reached, versions: Versions) -> None:
        self._reached = reached
        self._versions = versions
        self._grounds: Grounds[str, Address] = Grounds()
        self._versions_reached: dict[tuple[Address, int], Place] = {}
        self._counting: dict[str, dict[Address, Place]] = {}
        """By actor: those of its newest reads that are reached."""
        self._reads: dict[tuple[str, Address, int], Place] = {}
        """By actor, key and version: the last reached read."""
        self._rolled: dict[tuple[str, Address, int, int], Place] = {}
        """Pruned reads that come again: by actor, key, version and last seq."""

    def copy(self) -> Spread:
        """The same, to go on from here in a fork."""
        found = Spread(self._reached, self._versions.copy())
        found._grounds = self._grounds.copy()
        found._versions_reached = dict(self._versions_reached)
        found._counting = {actor: dict(keys) for actor, keys in self._counting.items()}
        found._reads = dict(self._reads)
        found._rolled = dict(self._rolled)
        return found

    def know(self, address: str, version: int, seq: int) -> None:
        """Where the version that spreads was made: the pass begins behind it."""
        self._versions.know(address, version, seq)

    def begin(self, address: Address, version: int, place: Place) -> None:
        """The version that spreads."""
        self._versions_reached[address, version] = place

    def take(self, item: Item, pieces: Pieces, folds: Callable[[str, int], bool]) -> None:
        """The next item of the log."""
        if item.kind == READ:
            self._read(item, pieces)
        elif item.kind <= DELETED:
            self._write(item, pieces, folds)
            self._versions.made(item)

    def _read(self, item: Item, pieces: Pieces) -> None:
        address, actor = item.address, item.actor
        counts = self._grounds.read(actor, address, item.version, seq=item.seq, turn=item.turn)
        key = (address, item.version)
        if key not in self._versions_reached:
            if counts and actor in self._counting:
                self._counting[actor].pop(address, None)
            return
        if item.reads:
            place = self._reach_read(item, pieces, self._versions_reached[key])
        else:
            place = self._rolled.get((actor, address, item.version, item.last_seq))
        self._reads[actor, address, item.version] = place
        if counts:
            counting = self._counting.setdefault(actor, {})
            counting.pop(address, None)  # the newest read goes last
            counting[address] = place

    def _reach_read(self, item: Item, pieces: Pieces, source: Place) -> Place:
        reached, holder = self._reached, pieces.holder(item.seq)
        reached.reads += item.reads
        reached.agents.add(item.actor)
        reached.runs[holder] = None
        if reached.sketch.full:
            reached.sketch.left += 1
            return None
        depth = 1 if source is None else reached.sketch.nodes[source].depth + 1
        draft = read_draft(item, holder, self._versions.seen(item), depth)
        place = reached.sketch.node((*identity_of(item, holder), item.last_seq, item.version), draft)
        reached.sketch.edge(source, place, "read")
        if item.last_seq != item.seq:
            self._rolled[item.actor, item.address, item.version, item.last_seq] = place
        return place

    def _write(self, item: Item, pieces: Pieces, folds: Callable[[str, int], bool]) -> None:
        reached, sketch, holder = self._reached, self._reached.sketch, pieces.holder(item.seq)
        sources, more = self._sources(item, folds, 1 if sketch.full else GROUNDS_MAX)
        if not sources:
            return
        reached.writes += 1
        reached.agents.add(item.actor)
        reached.runs[holder] = None
        if sketch.full:
            sketch.left += 1
            self._versions_reached[item.key, item.version] = None
            return
        depths = [sketch.nodes[place].depth for place, _kind, _key, _version in sources if place is not None]
        draft = write_draft(item, holder, min(depths, default=0) + 1)
        draft.more = more
        place = sketch.node(identity(holder, item.seq), draft)
        for source, kind, key, version in sources:
            sketch.edge(source, place, kind)
            if source is not None and sketch.nodes[source].kind == "read" and isinstance(key, str):
                sketch.superseded(source, version, self._versions.before(key, item.unit))
        self._versions_reached[item.key, item.version] = place

    def _sources(
        self, item: Item, folds: Callable[[str, int], bool], most: int
    ) -> tuple[list[tuple[Place, GroundKind, Address, int]], int]:
        """The reached grounds of a write: node, kind, key and version; and how many more there are."""
        found: list[tuple[Place, GroundKind, Address, int]] = []
        more = 0
        actor = item.actor
        if item.stated is not None:
            for key, version in item.stated:
                if (key, version) in self._versions_reached:
                    place = self._reads.get((actor, key, version), self._versions_reached[key, version])
                    found.append((place, "stated", key, version))
        elif known := self._counting.get(actor):
            among = list(islice(reversed(known), most))
            more = len(known) - len(among)
            for ground in self._grounds.of(actor, item.key, item.version, turn=item.turn, among=among):
                found.append((known[ground.key], ground.kind, ground.key, ground.version))
        before = (item.key, item.version - 1)
        if before in self._versions_reached and folds(item.key, item.seq):
            found.append((self._versions_reached[before], "folded", *before))
        return found, more


def identity_of(item: Item, holder: int) -> tuple[int, int, Address]:
    """What a read is known by."""
    return holder, item.seq, item.address

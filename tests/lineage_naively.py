"""Lineage by its definition, for tests: every ground of every write, looked for among all events before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from refold import Event, Run

Version = tuple[str, int]


@dataclass
class Naive:
    """The versions each write rests on with the kind of each ground, and the reads of each version."""

    grounds: dict[Version, set[tuple[Version, str]]] = field(default_factory=dict)
    reads: dict[Version, set[tuple[int, str]]] = field(default_factory=dict)

    def back(self, version: Version) -> set[Version]:
        """All that a version rests on, itself not."""
        return _closure(version, lambda one: {ground for ground, _kind in self.grounds.get(one, ())})

    def forth(self, version: Version) -> set[Version]:
        """All that rests on a version, itself not."""
        return _closure(
            version, lambda one: {made for made, all_of in self.grounds.items() if one in {g for g, _ in all_of}}
        )

    def reads_of(self, versions: set[Version]) -> set[tuple[int, str, int]]:
        """(seq, key, version) of all reads of some versions."""
        return {(seq, key, version) for key, version in versions for seq, _ in self.reads.get((key, version), ())}


def _closure(start: Version, step: Callable[[Version], set[Version]]) -> set[Version]:
    found: set[Version] = set()
    waiting = [start]
    while waiting:
        for one in step(waiting.pop()) - found:
            found.add(one)
            waiting.append(one)
    return found


def naive(run: Run, folding: set[str]) -> Naive:
    """Looks at every pair of events. `folding` are keys whose reducer is not `last`."""
    found = Naive()
    before: list[tuple[Event, list[Any]]] = []
    for event in run.events(["state.written", "state.deleted", "state.read"]):
        if event.kind == "state.read":
            pairs = event.refs.get("keys", [[event.key, event.version]])
            before.append((event, pairs))
            for key, version in pairs:
                found.reads.setdefault((key, version), set()).add((event.seq, event.actor or ""))
            continue
        key, version = event.key or "", event.version or 0
        grounds: set[tuple[Version, str]] = set()
        if "based_on" in event.refs:
            grounds = {((k, v), "stated") for k, v in event.refs["based_on"]}
        else:
            newest: dict[str, tuple[int, int | None]] = {}
            for read, pairs in before:
                for k, v in pairs:
                    if read.actor == event.actor and v >= newest.get(k, (-1, None))[0]:
                        newest[k] = (v, read.turn)
            grounds = {((k, v), "direct" if turn == event.turn else "carried") for k, (v, turn) in newest.items()}
        if key in folding and version > 1:
            grounds.add(((key, version - 1), "folded"))
        found.grounds[key, version] = grounds
    return found

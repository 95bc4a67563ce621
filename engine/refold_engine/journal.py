"""The journal of a turn: its effects, found again by what was asked.

Rules of this module
- The log is the journal. An effect is identified by its turn, its kind, the digest of its request, and its ordinal
  among equal requests of the turn. What is on record is served; the rest is done, and recorded before it is used.
- So a turn that is begun again after a crash or a failure repeats no finished effect, and a replay makes none.
- An effect that may not be repeated is announced first (`tool.called`). Announced and not answered means: whether it
  happened cannot be known.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from refold_store.events import Event

ANSWERS = {"model.answered": "model", "tool.returned": "tool"}
"""Kinds of events that hold an effect's answer, and the kind of effect."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An effect on record. `event` is None if it was announced and never answered."""

    event: Event | None


class Journal:
    """The recorded effects of one turn. Threads may share it."""

    def __init__(self, events: Iterable[Event] = (), children: Iterable[int] = ()) -> None:
        self._children = list(dict.fromkeys(children))[::-1]
        self._found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        self._announced: dict[tuple[str, str], int] = defaultdict(int)
        self._asked: dict[tuple[str, str], int] = defaultdict(int)
        self._lock = threading.Lock()
        for event in events:
            request = event.refs.get("request")
            if not isinstance(request, str):
                continue
            if event.kind in ANSWERS:
                self._found[ANSWERS[event.kind], request].append(event)
            elif event.kind == "tool.called":
                self._announced["tool", request] += 1

    def next_child(self) -> int | None:
        """The number of the next task's turn, if an earlier attempt began it; None: it is a new one."""
        with self._lock:
            return self._children.pop() if self._children else None

    def ask(self, kind: str, request: str) -> Recorded | None:
        """The next answer on record to this request; None: it was never asked so often."""
        with self._lock:
            ordinal = self._asked[kind, request]
            self._asked[kind, request] += 1
            found = self._found.get((kind, request), [])
            if ordinal < len(found):
                return Recorded(found[ordinal])
            if ordinal < self._announced.get((kind, request), 0):
                return Recorded(None)
            return None

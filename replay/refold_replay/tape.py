"""The record of one step, as a replay is served from it: answers, results, and when what came from outside was seen.

Rules of this module
- An answer is the next one that the agent got. The engine puts the digest of what it asked beside it, and every digest
  is compared with the record's: another request is a difference, and what follows from it can still be told. When no
  answer is left it is NotRecorded.
- A tool's result is found by the digest of name and arguments, with its reads, its writes and its failure.
- What came from outside inside a turn is applied at the latest point that keeps what the recorded reads saw.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from refold_engine.errors import NotRecorded
from refold_engine.ports import Json, ModelRequest, digest_of
from refold_replay.course import EFFECTS, Input, Step
from refold_store.events import Event

Apply = Callable[[Input], None]


class Tape:
    """What is on record of the step that is replayed just now. Threads may share it."""

    def __init__(self, apply: Apply) -> None:
        self._apply = apply
        self._lock = threading.RLock()
        self.load(None)

    def load(self, step: Step | None) -> None:
        """Begin a step; None: nothing is on record."""
        self._course: Sequence[Event] = () if step is None else step.course
        self._used: set[int] = set()
        self._reads_used: set[int] = set()
        self._at = 0
        self._floor = 0 if step is None else step.start
        self._inside = [] if step is None else list(step.inside)
        self._applying = False
        self.requests: list[ModelRequest] = []
        """What was asked and answered, in order."""
        self.stuck: tuple[str, str, Any] | None = None
        """(agent, "request" or "tool", what was asked) that nothing on record could answer."""

    # --- effects -----------------------------------------------------------------------------

    def answer_to(self, request: ModelRequest) -> Event:
        """The answer that stands next on the agent's record. Raises NotRecorded when none is left."""
        with self._lock:
            at = self._find("model.answered", lambda one: one.actor == request.agent)
            if at is None:
                self.stuck = (request.agent, "request", request)
                raise self._missing(f"a further request of {request.agent!r}", "", request.model)
            self.requests.append(request)
            return self._pass(at)

    def result_of(self, tool: str, arguments: Json, agent: str) -> Event:
        """The recorded result of a call. Raises NotRecorded."""
        digest = digest_of({"name": tool, "arguments": dict(arguments)})
        with self._lock:
            at = self._find("tool.returned", lambda one: one.refs.get("request") == digest)
            if at is None:
                self.stuck = (agent, "tool", {"tool": tool, "arguments": dict(arguments)})
                raise self._missing(f"call of {tool!r} by {agent!r}", digest, f"tool {tool}")
            self._used.add(at)
            return self._course[at]

    def reads_before(self, event: Event) -> list[str]:
        """The keys that tools of this answer read, each read once."""
        with self._lock:
            found = []
            for one in self._course[self._at :]:
                if one.kind == "tool.returned":
                    break
                if one.kind == "state.read" and one.key is not None and one.seq not in self._reads_used:
                    self._reads_used.add(one.seq)
                    found.append(one.key)
            return found

    def returned(self) -> None:
        """A call's result was put on the replay's record."""
        with self._lock:
            at = next((at for at in range(self._at, len(self._course)) if self._is("tool.returned", at)), None)
            if at is not None:
                self._pass(at)

    def _is(self, kind: str, at: int) -> bool:
        return self._course[at].kind == kind

    def _find(self, kind: str, fits: Callable[[Event], bool]) -> int | None:
        for at, one in enumerate(self._course):
            if one.kind == kind and at not in self._used and not one.erased and fits(one):
                return at
        return None

    def _pass(self, at: int) -> Event:
        self._used.add(at)
        self._at = max(self._at, at + 1)
        self._floor = max(self._floor, self._course[at].seq)
        return self._course[at]

    def _missing(self, what: str, digest: str, model: str) -> NotRecorded:
        text = f"the record of this turn holds no answer to {what}; a replay asks nobody else"
        return NotRecorded(text, digest=digest, model=model, nearest=None, path=None, role=None)

    # --- what came from outside meanwhile -------------------------------------------------------

    def before_look(self) -> None:
        """Something is looked up: what the record shows it saw has happened by now."""
        if self._inside:
            self._let(self._seen_next(None))

    def before_read(self, key: str) -> None:
        """A key is read on the record."""
        if self._inside:
            self._let(self._seen_next(key))

    def before_commit(self) -> None:
        """The turn commits: everything that fell into it comes first."""
        while self._inside and not self._applying:
            self._let(self._inside[-1].seq)

    def _seen_next(self, key: str | None) -> int:
        """Up to which seq the log was seen at this point."""
        for one in self._course[self._at :]:
            if one.kind == "state.read" and key is not None and one.key == key and one.seq not in self._reads_used:
                return max(self._floor, one.seen_seq or 0)
            if one.kind in EFFECTS:
                return max(self._floor, int(one.refs.get("seen", 0)))
            if one.kind == "route.decided" and key is None:
                return max(self._floor, self._seen_by(one))
        return self._floor

    def _seen_by(self, decided: Event) -> int:
        """The newest input that a route rested on."""
        seen = {(key, version) for key, version in decided.refs.get("seen", ())}
        made = [one.seq for given in self._inside for one in given.events if (one.key, one.version) in seen]
        return max(made, default=0)

    def _let(self, upto: int) -> None:
        with self._lock:
            if self._applying:
                return
            self._applying = True
            try:
                while self._inside and self._inside[0].seq <= upto:
                    self._apply(self._inside.pop(0))
            finally:
                self._applying = False

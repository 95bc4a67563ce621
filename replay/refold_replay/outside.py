"""What came from outside the engine, applied again to a replayed run.

Rules of this module
- It goes the way it went: the same checks, the same reducers. What is refused now, or makes another version or other
  bytes, is a difference like any other.
- Interrupts are answered by their order: their ids hold turn numbers, and a replay may count fewer turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refold_replay.course import WRITES, Input
from refold_replay.divergence import Fact, facts_of
from refold_store.errors import RefoldError
from refold_store.events import Event
from refold_store.requests import Op, Request, Unit
from refold_store.run import Run
from refold_store.writing import DELETE, checked_op

OUTSIDE = "user"
"""Who opens a replayed run whose record does not say."""


class Outside:
    """Applies inputs to one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.count = 0
        self.erased: list[int] = []
        """Seqs of inputs whose content was erased: they cannot be applied."""
        self.asked: Sequence[str] = ()
        """Ids of what the record waits for, in order; `waiting` are those of the replay."""
        self.waiting: Sequence[str] = ()

    def apply(self, given: Input) -> tuple[list[Fact], list[Fact]]:
        """Apply one. Returns the facts of it on record and now: only writes have any."""
        event = given.events[0]
        self.count += 1
        if event.kind in WRITES:
            return self._write(given.events)
        if event.erased:
            self.erased.append(event.seq)
        elif event.kind == "run.opened":
            self._run._committer.submit(Request(self._run._head, self._run.schema(), (), opener=event.actor or OUTSIDE))
        elif event.kind == "turn.resumed":
            self._resume(event)
        else:
            refs = event.refs or None
            self._run.append(event.kind, actor=event.actor, key=event.key, body=event.body, refs=refs)
        return [], []

    def waste(self, event: Event) -> None:
        """Count what a model call cost that the replay does not make."""
        body = event.body
        usage = body.get("usage") if event.kind == "failure.raised" else (body.get("answer") or {}).get("usage")
        if usage and usage.get("cost"):
            self._run.append("failure.raised", actor=event.actor, body={"of": "model", "usage": usage})

    def _write(self, events: Sequence[Event]) -> tuple[list[Fact], list[Fact]]:
        recorded = list(facts_of(events))
        if any(event.erased for event in events):
            self.erased += [event.seq for event in events]
            return [], []
        head = self._run.head_seq()
        try:
            ops = [self._op(event) for event in events]
            unit = Unit(ops, whole=events[0].txn is not None)
            self._run._committer.submit(Request(self._run._head, self._run.schema(), (unit,), opener=ops[0].writer))
        except RefoldError:  # it is on the replay's record, and told as a difference
            pass
        self._run.store.flush()
        return recorded, list(facts_of(list(self._run.events(after=head))))

    def _op(self, event: Event) -> Op:
        body, refs = event.body, event.refs
        value: Any = DELETE if event.kind == "state.deleted" else body.get("update", body.get("value"))
        grounds = [(key, version) for key, version in refs["based_on"]] if "based_on" in refs else None
        initial = bool(refs.get("initial"))
        return checked_op(
            self._run, self._run.schema(), event.key or "", value, event.actor or "", body.get("basis"), None, grounds,
            initial=initial,
        )  # fmt: skip

    def _resume(self, event: Event) -> None:
        by, answers = event.actor or OUTSIDE, event.body.get("answers")
        if not self.waiting:
            return
        if answers is None:
            self._run.dismiss(by=by)
            return
        names = dict(zip(self.asked, self.waiting, strict=False))
        self._run.resume({names[name]: answer for name, answer in answers.items() if name in names}, by=by)

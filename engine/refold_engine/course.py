"""How far a workflow has come in a run, as a fold over its log: which steps are done, which branches are open.

Rules of this module
- Pure but for following one log. What a workflow adds carries `refs.step`: `WORKFLOW#PASS/PATH`, the path as places
  counted from 1 (`2.3`), `:ROUND` behind it for a further round of a debate.
- A step with an agent is done when a turn after its message is committed with an answer; a step with branches when they
  are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from refold_engine.conversation import message_of
from refold_engine.ports import ModelAnswer
from refold_engine.voting import Verdict
from refold_store.events import Event
from refold_store.run import Run


@dataclass(frozen=True, slots=True)
class Failed:
    """A try of a branch that failed, in which round of its step. `again`: going on with it may help."""

    round: int
    why: str
    again: bool


@dataclass(slots=True)
class Course:
    """The fold. Step ids are the keys."""

    seq: int = 0
    current: str | None = None
    """The step whose answer the run is waiting for, or waited for last."""
    done: dict[str, str] = field(default_factory=dict)
    """Results."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    """Messages that want no answer: inputs and results."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Inputs by `WORKFLOW#PASS`."""
    rounds: dict[str, int] = field(default_factory=dict)
    """How often a step with branches failed as a whole."""
    failed: list[Failed] = field(default_factory=list)
    """Of a branch's own log: its failures."""
    judging: dict[str, int] = field(default_factory=dict)
    """Turns of judges."""
    judged: dict[str, str] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    """The newest pass of each workflow."""
    _texts: dict[int, str] = field(default_factory=dict)

    def follow(self, run: Run) -> None:
        """Count what the log has gained."""
        for event in run.events(after=self.seq):
            self.feed(event)

    def feed(self, event: Event) -> None:
        """Count one event."""
        self.seq = event.seq
        match event.kind:
            case "message.added" if event.turn is None:
                self._message(event)
            case "model.answered" if event.turn is not None and not event.erased:
                self._texts[event.turn] = ModelAnswer.from_json(event.body["answer"]).content
            case "turn.started":
                if isinstance(step := event.body.get("judge"), str):
                    self.judging[step] = event.turn or 0
            case "turn.committed":
                self._committed(event)
            case "branch.merged":
                self._merged(event)
            case "branch.opened":
                self._seen(event.refs.get("step"))
            case "failure.raised":
                self._failure(event)

    def _message(self, event: Event) -> None:
        refs = event.refs
        message, step = message_of(event), refs.get("step")
        self._seen(step)
        if isinstance(step, str) and refs.get("input") is True and message is not None:
            self.inputs[step.rpartition("/")[0]] = message.content
        if refs.get("told") is True:
            if isinstance(step, str):
                self.told[step] = "" if message is None else message.content
        elif message is None or message.role == "user":
            self.current = step if isinstance(step, str) else None

    def _committed(self, event: Event) -> None:
        body = event.body
        text = self._texts.pop(event.turn or 0, "")
        if body.get("outcome") == "answered" and self.current is not None:
            self.done[self.current] = text
        elif isinstance(step := body.get("judge"), str):
            self.judged[step] = text

    def _merged(self, event: Event) -> None:
        step, body = event.refs.get("step"), event.body
        if isinstance(step, str):
            self._seen(step)
            self.done[step] = str(body.get("result", self.told.get(step, "")))
            if isinstance(body.get("vote"), dict):
                self.verdicts[step] = Verdict.from_json(body["vote"])

    def _failure(self, event: Event) -> None:
        body = event.body
        if body.get("of") == "step" and isinstance(step := event.refs.get("step"), str):
            self.rounds[step] = self.rounds.get(step, 0) + 1
        elif body.get("of") == "branch":
            self.failed.append(Failed(int(body["round"]), str(body["message"]), bool(body["again"])))

    def _seen(self, step: object) -> None:
        if isinstance(step, str) and (found := parted(step)) is not None:
            workflow, number = found
            self.passes[workflow] = max(number, self.passes.get(workflow, 0))


def parted(step: str) -> tuple[str, int] | None:
    """The workflow and the pass of a step's id."""
    workflow, _mark, number = step.rpartition("/")[0].rpartition("#")
    return (workflow, int(number)) if number.isdecimal() else None

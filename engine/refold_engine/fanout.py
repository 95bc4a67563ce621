"""Steps with branches: tasks done together, each in a run of its own, then merged in their declared order; and votes.

Rules of this module
- All branches are opened before any of them works, in their order; what they leave in the parent's log does not depend
  on which is done first.
- A branch that is done keeps its result and is not run again, whatever becomes of its siblings or of the process. A
  failure is on the branch's own record.
- `fail`: a failed branch fails the step, nothing is merged. `partial`: the others are merged. `retry`: it is tried
  again, `retries` times. A branch that failed by a model goes on where it was; else it begins anew, in a new run.
- A step that failed may be begun again: then its failed branches are, and only they.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from refold_engine.config import Task
from refold_engine.course import Failed
from refold_engine.judging import judge
from refold_engine.ports import Message
from refold_engine.steps import Asked, Pass, Place, StepResult, ask, do, failed, is_done
from refold_engine.voting import Ballot, Verdict, debate, majority, outputs, told
from refold_store.branching import branches_of, merge, open_branch
from refold_store.errors import Refused, SchemaChanged
from refold_store.names import MAX_NAME_BYTES
from refold_store.writing import event_draft

ATTEMPTS_MAX = 1_000
"""Runs made for one branch: retries are few, so this bounds a loop that cannot be."""


@dataclass(slots=True)
class Branch:
    """One branch of a step: its task, its newest run, and how it stands."""

    task: Task
    path: str
    attempt: int = 0
    place: Place | None = None
    before: list[Failed] = field(default_factory=list)
    """Failures of older runs of it."""
    result: StepResult | None = None

    @property
    def failures(self) -> list[Failed]:
        """All failures, oldest first."""
        return self.before + ([] if self.place is None else self.place.course.failed)

    def ballot(self) -> Ballot:
        """What it says in a vote."""
        result, agent = self.result, self.task.agent or self.task.name
        assert result is not None
        if result.how == "done":
            return Ballot(self.task.name, agent, result.text)
        return Ballot(self.task.name, agent, None, result.text)


def branch_name(root: str, workflow: str, number: int, path: str, attempt: int) -> str:
    """The name of a branch's run: `clm-1/checks.1/2.3`, its second attempt `clm-1/checks.1/2.3~2`."""
    name = f"{root}/{workflow}.{number}/{path}" + (f"~{attempt}" if attempt > 1 else "")
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    return sha256(name.encode()).hexdigest()


def fan_out(work: Pass, place: Place, task: Task, path: str) -> StepResult:
    """Do a step with branches, or what is left of it."""
    return FanOut(work, place, task, path).do()


class FanOut:
    """A step with branches, in the run it belongs to."""

    def __init__(self, work: Pass, place: Place, task: Task, path: str) -> None:
        self.work, self.place, self.task, self.path = work, place, task, path
        self.step = work.id(path)
        self.round = place.course.rounds.get(self.step, 0)
        self.branches = [Branch(one, f"{path}.{position}") for position, one in enumerate(task.tasks, 1)]
        self._answers: dict[int, list[Ballot]] = {}

    def do(self) -> StepResult:
        """Do it, or what is left of it."""
        course, task = self.place.course, self.task
        if self.step in course.done:
            return StepResult(
                self.path, task.name, "done", course.done[self.step], course.verdicts.get(self.step)
            )  # fmt: skip
        self.work.tell("step", {"step": self.path, "name": task.name, "branches": len(self.branches),
                                "run": self.place.run.name})  # fmt: skip
        self._find()
        last = task.vote.debate_rounds if task.kind == "vote" else 1
        for number in range(1, last + 1):
            self._settle(number)
            if ended := self._not_done():
                return ended
            self._answers[number] = [one.ballot() for one in self.branches]
        return self._merge()

    # --- the branches' runs ------------------------------------------------------------------

    def _name(self, branch: Branch, attempt: int) -> str:
        work = self.work
        return branch_name(work.root, work.workflow, work.number, branch.path, attempt)

    def _find(self) -> None:
        """The newest run of each branch, and a first one for those that have none, in their order."""
        known = branches_of(self.place.run)
        for branch in self.branches:
            while self._name(branch, branch.attempt + 1) in known and branch.attempt < ATTEMPTS_MAX:
                self._open(branch)
            if branch.place is None:
                self._open(branch)

    def _open(self, branch: Branch) -> None:
        """The branch's next run."""
        branch.before = branch.failures
        branch.attempt += 1
        work = self.work
        run = open_branch(
            self.place.run,
            self._name(branch, branch.attempt),
            by=work.workflow,
            keys_shared=[key for key in work.keys_shared if key in self.place.run.schema()],
            refs={"step": self.step},
        )
        branch.place = Place.at(run)

    # --- work --------------------------------------------------------------------------------

    def _settle(self, number: int) -> None:
        """Let all branches work until each is done with a round of the debate, has failed for good, or waits."""
        tries = 1 + (self.task.retries if self.task.on_failure == "retry" else 0)
        if number > 1:
            for branch in self.branches:
                if branch.result is not None and branch.result.how == "done":
                    branch.result = None
        while True:
            todo = []
            for branch in self.branches:
                used = sum(one.round == self.round for one in branch.failures)
                if used >= tries and not self._is_done(branch, number):
                    branch.result = StepResult(branch.path, branch.task.name, "failed", branch.failures[-1].why)
                elif branch.result is None:
                    if branch.failures and not branch.failures[-1].again and self._newest_failed(branch):
                        self._open(branch)
                    todo.append(branch)
            if not todo:
                return
            self._wave(todo, number)

    def _is_done(self, branch: Branch, number: int) -> bool:
        """Whether the branch is done with a round, by its own record."""
        if branch.place is None or not is_done(self.work, branch.place.course, branch.task, branch.path):
            return False
        done, step = branch.place.course.done, self.work.id(branch.path)
        return all(f"{step}:{round_}" in done for round_ in range(2, number + 1))

    def _newest_failed(self, branch: Branch) -> bool:
        assert branch.place is not None
        return bool(branch.place.course.failed)

    def _wave(self, todo: Sequence[Branch], number: int) -> None:
        """One try of each, side by side. What is no branch's failure is raised when all have come to rest."""
        most = min(len(todo), self.work.engine.config.breakers.max_parallel_fan_out)
        with ThreadPoolExecutor(most, thread_name_prefix="refold-branch") as pool:
            futures = [pool.submit(self._try, branch, number) for branch in todo]
            wait(futures)
        for future in futures:
            future.result()

    def _try(self, branch: Branch, number: int) -> None:
        place, work = branch.place, self.work
        assert place is not None
        work.tell("branch", {"step": branch.path, "name": branch.task.name, "run": place.run.name})
        work.begin(place, [branch.task], branch.path)
        result = do(work, place, branch.task, branch.path)
        for round_ in range(2, number + 1):
            if result.how == "done":
                text = debate(branch.task.name, self._answers[round_ - 1])
                asked = Asked(branch.task.name, branch.path, f"{work.id(branch.path)}:{round_}", text)
                result = ask(work, place, asked)
        if result.how == "failed":
            body = {"of": "branch", "round": self.round, "message": result.text, "again": result.again}
            place.run.append("failure.raised", actor=work.workflow, body=body, refs={"step": self.step})
            place.course.follow(place.run)
        else:
            branch.result = result
        work.tell(
            "branch_ended",
            {"step": branch.path, "name": branch.task.name, "run": place.run.name, "how": result.how,
             "text": result.text},
        )  # fmt: skip

    def _not_done(self) -> StepResult | None:
        """Why the step cannot be merged yet."""
        results = [one.result for one in self.branches if one.result is not None]
        asked = {run: found for one in results for run, found in one.asked.items()}
        if asked:
            return StepResult(self.path, self.task.name, "interrupted", asked=asked)
        bad = [one for one in results if one.how == "failed"]
        if not bad or (self.task.on_failure == "partial" and len(bad) < len(results)):
            return None
        why = "; ".join(f"branch {one.name!r} failed: {one.text}" for one in bad)
        return self._failed(StepResult(self.path, self.task.name, "failed", why))

    def _failed(self, result: StepResult) -> StepResult:
        """Put on the record that the step failed: beginning it again is another round."""
        body = {"of": "step", "message": result.text}
        self.place.run.append("failure.raised", actor=self.work.workflow, body=body, refs={"step": self.step})
        self.place.course.follow(self.place.run)
        return result

    # --- the end -----------------------------------------------------------------------------

    def _merge(self) -> StepResult:
        work, task = self.work, self.task
        ballots = [one.ballot() for one in self.branches]
        body: dict[str, Any] = {}
        verdict = None
        if task.kind == "vote":
            verdict = self._verdict(ballots)
            text, body["vote"] = told(task.name, ballots, verdict), verdict.to_json()
            result = text if verdict.winner is None else verdict.winner
            body["result"] = result
        else:
            result = text = f"Step {task.name!r} is done.\n\n{outputs(ballots)}"
        places = [one.place for one in self.branches if one.place is not None]
        if cost := sum(work.engine.progress(one.run).cost for one in places):
            body["cost"] = cost
        message = event_draft(
            "message.added", work.workflow, None, None, {"message": Message("user", text).to_json()},
            {"step": self.step, "told": True},
        )  # fmt: skip
        done = [one.place.run for one in self.branches
                if one.place is not None and one.result is not None and one.result.how == "done"]  # fmt: skip
        try:
            merged = merge(
                self.place.run, done, by=work.workflow, body=body, refs={"step": self.step}, also=[message]
            )  # fmt: skip
        except SchemaChanged:
            raise
        except Refused as error:
            return self._failed(failed(self.path, task.name, error))
        self.place.course.follow(self.place.run)
        work.tell("merged", {"step": self.path, "name": task.name, "branches": list(merged.branches),
                             "conflicts": list(merged.conflicts), "overwrote": list(merged.overwrote),
                             "vote": body.get("vote")})  # fmt: skip
        return StepResult(self.path, task.name, "done", result, verdict)

    def _verdict(self, ballots: Sequence[Ballot]) -> Verdict:
        vote = self.task.vote
        if vote.strategy == "majority":
            return majority(ballots, vote.min_agreement)
        asked = next((one.task.instruction for one in self.branches if one.task.instruction), "")
        text = "\n\n".join(part for part in (asked, self.work.input) if part)
        place = self.place
        return judge(self.work.engine, place.run, place.course, self.step, text, ballots)

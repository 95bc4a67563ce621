"""The judge of a vote: one question to one model, within a turn of the run, so that it is asked once whatever happens.

Rules of this module
- What the judge said is on record before it counts; a process that starts again is served from there.
- It is asked of `model.fallback`, else of `model.primary`. A judge that fails is no error here: the verdict says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from refold_engine.asks import Asker
from refold_engine.config import AgentConfig
from refold_engine.course import Course
from refold_engine.errors import ModelFailed
from refold_engine.voting import JUDGE, JUDGE_PROMPT, Ballot, Verdict, judge_request, judged
from refold_store.run import Run

if TYPE_CHECKING:
    from refold_engine.engine import Engine


def judge(engine: Engine, run: Run, course: Course, step: str, task: str, ballots: Sequence[Ballot]) -> Verdict:
    """The verdict of a judge on these answers."""
    if not any(one.voted for one in ballots):
        return judged(ballots, None)
    try:
        return judged(ballots, _asked(engine, run, course, step, task, ballots))
    except ModelFailed as error:
        return judged(ballots, None, str(error))


def _asked(engine: Engine, run: Run, course: Course, step: str, task: str, ballots: Sequence[Ballot]) -> str:
    if step in course.judged:
        return course.judged[step]
    request = judge_request(engine.config.model.cheap, task, ballots)
    progress = engine.progress(run)
    with run.turn(JUDGE, number=course.judging.get(step), body={"by": "workflow", "judge": step}) as turn:
        body = {"message": request.messages[-1].to_json()}
        seq = turn.append("message.added", body=body, refs={"task": True}, durable=False)
        asker = Asker(engine, turn, AgentConfig(JUDGE, JUDGE_PROMPT), engine.journal_of(turn), progress)
        _seq, answer = asker.answer(request, {"for": "vote", "step": step, "upto": 0, "asked": [[seq, seq]]})
        turn.conclude({"judge": step})
    return answer.content

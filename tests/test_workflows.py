"""Workflows: tasks in order, branches side by side, votes, policies for failures, and going on after kill -9."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import workflow_worker
from workflow_team import Answers, branches, team, write

from refold import Store, open_store
from refold_engine import fanout
from refold_engine.engine import Engine
from refold_engine.errors import ModelFailed
from refold_engine.loading import load
from refold_engine.ports import ModelAnswer, ToolCall, Usage
from refold_engine.workflows import run_workflow
from refold_replay.verify import verify
from refold_store.errors import ConfigError, StoreUnavailable, TransactionInvalid

Open = Callable[..., Store]


def noting(agent: str, text: str, _before: int) -> ModelAnswer | str:
    """Notes that it was here, then says so."""
    return write(notes=[agent], count=1, best=agent) if text.startswith("do ") else f"{agent} is done"


def down(model: str = "test/model") -> ModelFailed:
    """A provider that is away."""
    return ModelFailed("away", model=model, why="connection", repeatable=False)


def test_tasks_see_what_was_said_before(open_new: Open, tmp_path: Path) -> None:
    """A later task's agent has the input, the earlier tasks and the branches' results in its conversation."""
    last = "    - {name: end, agent: lead, instruction: sum up}\n"
    config = team(
        tmp_path, "    - {name: plan, agent: lead, instruction: make a plan}\n" + branches("parallel", 2) + last
    )
    model = Answers(lambda agent, text, _n: f"{agent}: {text}")
    with Engine(config, open_new(config.schema), model) as engine:
        result = run_workflow(engine, "r", "job", "the moon")
    said = [one.content for one in model.requests[-1].messages[1:]]
    assert result.how == "done"
    assert result.text == "lead: sum up"
    assert said[:3] == ["the moon", "make a plan", "lead: make a plan"]
    assert all(part in said[3] for part in ("a0: do 0", "a1: do 1"))
    assert said[4:] == ["sum up"]


def test_a_branch_sees_neither_parent_nor_siblings(open_new: Open, tmp_path: Path) -> None:
    """P1: a branch begins with nothing but the shared memory; it sees no write of its parent or its siblings."""
    config = team(tmp_path, branches("parallel", 3))
    model = Answers(noting)
    store = open_new(config.schema)
    with store.run("r").transaction() as tx:
        tx.write_state("notes", ["parent"], writer="lead")
        tx.write_state("long_term_memory", "likes tea", writer="lead")
    with Engine(config, store, model) as engine:
        run_workflow(engine, "r", "job")
    first = [one.messages[0].content for one in model.requests if one.messages[-1].role == "user"]
    assert len(first) == 3
    assert all('{"long_term_memory":"likes tea"}' in one and "parent" not in one for one in first)
    assert store.run("r").state().json()["notes"] == ["parent", "a0", "a1", "a2"]


def test_a_second_pass_adds_as_much_as_the_first(open_new: Open, tmp_path: Path) -> None:
    """P1: a workflow runs twice cleanly: twice the items, not more; the same call without `again` does nothing."""
    config = team(tmp_path, branches("parallel", 3))
    model = Answers(noting)
    with Engine(config, open_new(config.schema), model) as engine:
        first = run_workflow(engine, "r", "job", "x")
        assert run_workflow(engine, "r", "job", "x").steps == first.steps
        assert len(model.requests) == 6
        assert run_workflow(engine, "r", "job", again=True).number == 2
        state = engine.store.run("r").state().json()
    assert state == {"notes": ["a0", "a1", "a2"] * 2, "count": 6, "best": "a2"}


def test_the_finishing_order_changes_nothing(tmp_path: Path) -> None:
    """P2: real threads that finish in any order leave the same events, to the byte, in the parent's log."""
    config = team(tmp_path, branches("parallel", 5), agents=5)
    logs = set()
    for seed in range(20):
        chance = random.Random(seed)
        delays = {f"a{number}": chance.random() * 0.02 for number in range(5)}

        def slowly(agent: str, text: str, before: int, delays: dict[str, float] = delays) -> ModelAnswer | str:
            time.sleep(delays[agent])
            return noting(agent, text, before)

        with open_store("sqlite://", config.schema) as store, Engine(config, store, Answers(slowly)) as engine:
            run_workflow(engine, "r", "job", "x")
            events = store.run("r").events()
            logs.add(str([(e.kind, e.actor, e.txn, e.key, e.version, e.row.refs, e.text) for e in events]))
    assert len(logs) == 1


def test_a_conflict_is_on_the_record(open_new: Open, tmp_path: Path) -> None:
    """P2: of branches that overwrite one key the later declared one wins, and the merge says so."""
    config = team(tmp_path, branches("parallel", 3))
    with Engine(config, open_new(config.schema), Answers(noting)) as engine:
        run_workflow(engine, "r", "job")
        run = engine.store.run("r")
        [merged] = run.events(("branch.merged",))
        names = [f"r/job.1/1.{number}" for number in (1, 2, 3)]
        assert merged.body["conflicts"] == [{"key": "best", "paths": ["$"], "branches": names, "kept": names[2]}]
        assert [one.refs["branch"] for one in (e for e in run.events(("state.written",))) if one.key == "best"] == names
        assert verify(engine.store).ok


def test_what_is_written_meanwhile_is_named(open_new: Open, tmp_path: Path) -> None:
    """P3: what the parent wrote while its branches worked stays where it adds up, and is named where it is replaced."""
    config = team(tmp_path, branches("parallel", 1))
    store = open_new(config.schema)

    def meddling(agent: str, text: str, before: int) -> ModelAnswer | str:
        if text.startswith("do "):
            store.run("r").write_state("best", "lead", writer="lead")
            store.run("r").write_state("notes", ["lead"], writer="lead")
        return noting(agent, text, before)

    with Engine(config, store, Answers(meddling)) as engine:
        run_workflow(engine, "r", "job")
    run = store.run("r")
    [merged] = run.events(("branch.merged",))
    assert run.state().json() == {"notes": ["lead", "a0"], "count": 1, "best": "a0"}
    assert [(one["key"], one["version"], one["writer"]) for one in merged.body["overwrote"]] == [("best", 1, "lead")]


@pytest.mark.parametrize("policy", ["fail", "partial", "retry"])
def test_a_branch_fails(open_new: Open, tmp_path: Path, policy: str) -> None:
    """P4: `fail` merges nothing, `partial` the others, `retry` tries again; finished branches are never run again."""
    config = team(tmp_path, branches("parallel", 3, more=f"      on_failure: {policy}\n"))
    away = threading.Event()

    def failing(agent: str, text: str, before: int) -> ModelAnswer | str:
        if agent == "a1" and before < 2 and not away.is_set():  # the model, then its fallback
            raise down()
        return noting(agent, text, before)

    model = Answers(failing)
    with Engine(config, open_new(config.schema), model) as engine:
        result = run_workflow(engine, "r", "job")
        run = engine.store.run("r")
        state = run.state().json()
        assert result.how == ("failed" if policy == "fail" else "done")
        assert state.get("notes", []) == {"fail": [], "partial": ["a0", "a2"], "retry": ["a0", "a1", "a2"]}[policy]
        assert (model.asked("a0"), model.asked("a2")) == (2, 2)
        if policy != "retry":
            assert "'t1' failed" in result.text or "'t1' (a1) failed" in result.text
        if policy == "fail":  # called again, it goes on with the failed branch alone
            assert run_workflow(engine, "r", "job").how == "done"
            assert run.state().json()["notes"] == ["a0", "a1", "a2"]
            assert (model.asked("a0"), model.asked("a2")) == (2, 2)
        assert verify(engine.store).ok


def test_a_retry_repeats_no_finished_effect(open_new: Open, tmp_path: Path) -> None:
    """P4: a branch whose model failed half way goes on there: what it was answered before is not asked again."""
    config = team(tmp_path, branches("parallel", 2, more="      on_failure: retry\n"), fallback="null")

    def failing(agent: str, text: str, before: int) -> ModelAnswer | str:
        if agent == "a1" and before == 1:
            raise down()
        return noting(agent, text, before)

    model = Answers(failing)
    with Engine(config, open_new(config.schema), model) as engine:
        assert run_workflow(engine, "r", "job").how == "done"
        [merged] = engine.store.run("r").events(("branch.merged",))
        assert engine.store.run("r").state().json()["notes"] == ["a0", "a1"]
    assert model.asked("a1") == 3
    assert merged.refs["branches"] == ["r/job.1/1.1", "r/job.1/1.2"]


def test_what_branches_cost_counts_in_their_parent(open_new: Open, tmp_path: Path) -> None:
    """E11: the cost of branches is on the merge, and counts where a limit is checked."""
    config = team(tmp_path, branches("parallel", 3))
    model = Answers(lambda _agent, _text, _n: ModelAnswer("ok", usage=Usage(1, 1, 0.25)))
    with Engine(config, open_new(config.schema), model) as engine:
        run_workflow(engine, "r", "job")
        assert engine.progress(engine.store.run("r")).cost == 0.75


def test_retries_end(open_new: Open, tmp_path: Path) -> None:
    """P4: a branch that goes on failing is tried so often as declared, then the step fails."""
    config = team(
        tmp_path, branches("parallel", 2, more="      on_failure: retry\n      retries: 2\n"), fallback="null"
    )

    def failing(agent: str, text: str, before: int) -> ModelAnswer | str:
        if agent == "a1":
            raise down()
        return noting(agent, text, before)

    model = Answers(failing)
    with Engine(config, open_new(config.schema), model) as engine:
        assert run_workflow(engine, "r", "job").how == "failed"
        assert model.asked("a1") == 3
        assert run_workflow(engine, "r", "job").how == "failed"
        assert model.asked("a1") == 6
        assert model.asked("a0") == 2


def test_a_branch_at_a_limit_begins_anew(open_new: Open, tmp_path: Path) -> None:
    """P4: a branch that failed otherwise than by a model begins anew, in a run of its own: nothing of it is merged."""
    config = team(tmp_path, branches("parallel", 2, more="      on_failure: retry\n"))

    def looping(agent: str, text: str, before: int) -> ModelAnswer | str:
        return write(notes=["again"]) if agent == "a1" and before < 3 else noting(agent, text, before)

    with Engine(config, open_new(config.schema), Answers(looping)) as engine:
        assert run_workflow(engine, "r", "job").how == "done"
        run = engine.store.run("r")
        [merged] = run.events(("branch.merged",))
        assert run.state().json()["notes"] == ["a0", "a1"]
        assert merged.refs["branches"] == ["r/job.1/1.1", "r/job.1/1.2~2"]


def test_what_a_failed_branch_wrote_is_not_merged(open_new: Open, tmp_path: Path) -> None:
    """P4: with `partial` a failed branch's writes stay in its own log, also those of a turn that was committed."""
    config = team(tmp_path, branches("parallel", 2, more="      on_failure: partial\n"))

    def looping(agent: str, text: str, before: int) -> ModelAnswer | str:
        return write(notes=["again"]) if agent == "a1" else noting(agent, text, before)

    with Engine(config, open_new(config.schema), Answers(looping)) as engine:
        assert run_workflow(engine, "r", "job").how == "done"
        assert engine.store.run("r").state().json()["notes"] == ["a0"]
        assert "again" in engine.store.run("r/job.1/1.2").state().json()["notes"]


def test_trouble_of_the_store_is_no_failure_of_a_branch(open_new: Open, tmp_path: Path) -> None:
    """P4: what is no branch's fault is raised, on no branch's record, and the workflow goes on when called again."""
    config = team(tmp_path, branches("parallel", 2, more="      on_failure: partial\n"))

    def unlucky(agent: str, text: str, before: int) -> ModelAnswer | str:
        if agent == "a1" and before == 0:
            raise StoreUnavailable("gone")
        return noting(agent, text, before)

    model = Answers(unlucky)
    with Engine(config, open_new(config.schema), model) as engine:
        with pytest.raises(StoreUnavailable):
            run_workflow(engine, "r", "job")
        assert run_workflow(engine, "r", "job").how == "done"
        assert engine.store.run("r").state().json()["notes"] == ["a0", "a1"]
        assert model.asked("a0") == 2


@pytest.mark.parametrize(
    ("answers", "winner"), [(["Yes", "yes ", "no"], "Yes"), (["a", "b", "c"], None), (["a", "a", "b", "b"], None)]
)
def test_a_majority(open_new: Open, tmp_path: Path, answers: list[str], winner: str | None) -> None:
    """P5: equal answers win, else no winner is guessed and every answer told; no model is asked about it."""
    more = "      vote: {min_agreement: 0.6}\n"
    config = team(tmp_path, branches("vote", len(answers), more=more), agents=len(answers))
    model = Answers(lambda agent, _text, _n: answers[int(agent[1:])])
    with Engine(config, open_new(config.schema), model) as engine:
        result = run_workflow(engine, "r", "job")
    verdict = result.steps[0].verdict
    assert verdict is not None
    assert verdict.winner == winner
    assert len(model.requests) == len(answers)
    if winner is None:
        assert "no consensus" in result.text
        assert all(answer in result.text for answer in answers)
    else:
        assert (result.text, verdict.count, verdict.of) == ("Yes", 2, 3)


def test_a_failed_branch_abstains(open_new: Open, tmp_path: Path) -> None:
    """P5: with `partial`, a failed branch counts in no share and is told."""
    config = team(tmp_path, branches("vote", 3, more="      on_failure: partial\n      vote: {min_agreement: 1.0}\n"))

    def voting(agent: str, _text: str, _before: int) -> str:
        if agent == "a1":
            raise down()
        return "yes"

    with Engine(config, open_new(config.schema), Answers(voting)) as engine:
        verdict = run_workflow(engine, "r", "job").steps[0].verdict
        said = engine.progress(engine.store.run("r")).said[-1].message.content
    assert verdict is not None
    assert (verdict.winner, verdict.count, verdict.of, verdict.abstained) == ("yes", 2, 2, ("t1",))
    assert "'t1' (a1) failed" in said


@pytest.mark.parametrize(("fallback", "asked"), [("test/cheap", "test/cheap"), ("null", "test/model")])
def test_a_judge_is_asked_once(open_new: Open, tmp_path: Path, fallback: str, asked: str) -> None:
    """P5: `llm_judge` is one call, on the fallback model, else the primary; its answer wins."""
    config = team(tmp_path, branches("vote", 2, more="      vote: {strategy: llm_judge}\n"), fallback=fallback)
    model = Answers(lambda agent, _text, _n: "so it is" if agent == "judge" else agent)
    with Engine(config, open_new(config.schema), model) as engine:
        result = run_workflow(engine, "r", "job", "is it?")
        assert verify(engine.store).ok
    [request] = [one for one in model.requests if one.agent == "judge"]
    assert (request.model, result.text) == (asked, "so it is")
    assert all(part in request.messages[-1].content for part in ("a0", "a1", "is it?"))


def test_a_judge_that_has_spoken_is_not_asked_again(
    open_new: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P6: if the process ends between the judge and the merge, the judge's answer is taken from the record."""
    config = team(tmp_path, branches("vote", 2, more="      vote: {strategy: llm_judge}\n"))
    model = Answers(lambda agent, _text, _n: agent)

    def gone(*_args: object, **_options: object) -> None:
        raise StoreUnavailable("gone")

    with Engine(config, open_new(config.schema), model) as engine:
        with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
            patch.setattr(fanout, "merge", gone)
            run_workflow(engine, "r", "job")
        assert run_workflow(engine, "r", "job").text == "judge"
    assert model.asked("judge") == 1


def test_a_judge_that_fails_names_no_winner(open_new: Open, tmp_path: Path) -> None:
    """P5: a failed judge is reported as such, with every answer, and never a silent winner."""
    config = team(tmp_path, branches("vote", 2, more="      vote: {strategy: llm_judge}\n"))

    def judging(agent: str, _text: str, _before: int) -> str:
        if agent == "judge":
            raise down()
        return f"says {agent}"

    with Engine(config, open_new(config.schema), Answers(judging)) as engine:
        result = run_workflow(engine, "r", "job")
        [merged] = engine.store.run("r").events(("branch.merged",))
    assert merged.body["vote"]["winner"] is None
    assert "The judge failed" in result.text
    assert all(part in result.text for part in ("says a0", "says a1"))


def test_a_debate_shows_each_branch_the_others(open_new: Open, tmp_path: Path) -> None:
    """P5: in further rounds each branch sees what the others said, in its own conversation, and may change its mind."""
    config = team(tmp_path, branches("vote", 3, more="      vote: {min_agreement: 1.0, debate_rounds: 2}\n"))

    def debating(agent: str, text: str, before: int) -> str:
        return ("left" if agent == "a0" else "right") if before == 0 else "right"

    model = Answers(debating)
    with Engine(config, open_new(config.schema), model) as engine:
        result = run_workflow(engine, "r", "job")
    last = next(one for one in reversed(model.requests) if one.agent == "a0")
    assert result.text == "right"
    assert len(model.requests) == 6
    assert [one.content for one in last.messages[1:3]] == ["do 0", "left"]
    assert ("right" in last.messages[3].content, "left" in last.messages[3].content) == (True, False)


def test_min_agreement_outside_its_range(tmp_path: Path) -> None:
    """P5: `min_agreement` outside 0..1 is a configuration error."""
    with pytest.raises(ConfigError, match="min_agreement"):
        team(tmp_path, branches("vote", 2, more="      vote: {min_agreement: 1.5}\n"))


def test_fifty_branches_a_few_at_a_time(open_new: Open, tmp_path: Path) -> None:
    """P2: fifty branches are merged in order, and no more work at once than max_parallel_fan_out allows."""
    config = team(tmp_path, branches("parallel", 50), agents=50, fan_out=7)
    lock, now, most = threading.Lock(), [0], [0]

    def counting(agent: str, text: str, before: int) -> ModelAnswer | str:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.002)
        with lock:
            now[0] -= 1
        return noting(agent, text, before)

    with Engine(config, open_new(config.schema), Answers(counting)) as engine:
        assert run_workflow(engine, "r", "job").how == "done"
        state = engine.store.run("r").state().json()
        assert verify(engine.store).ok
    assert state["notes"] == [f"a{number}" for number in range(50)]
    assert 1 < most[0] <= 7


NESTED = """
    - name: outer
      type: parallel
      tasks:
        - name: group
          tasks:
            - {name: first, agent: a0, instruction: do 0}
            - name: inner
              type: parallel
              tasks:
                - {name: x, agent: a1, instruction: do 1}
                - {name: y, agent: a2, instruction: do 2}
        - {name: alone, agent: a2, instruction: do 3}
"""


def test_branches_have_branches(open_new: Open, tmp_path: Path) -> None:
    """P1, P2: a branch may be tasks in a row and have branches of its own; what they wrote comes up level by level."""
    config = team(tmp_path, NESTED)
    with Engine(config, open_new(config.schema), Answers(noting)) as engine:
        assert run_workflow(engine, "r", "job").how == "done"
        runs = [one.name for one in engine.store.runs()]
        assert engine.store.run("r").state().json()["notes"] == ["a0", "a1", "a2", "a2"]
        assert "r/job.1/1.1.2.2" in runs
        assert verify(engine.store).ok


APPROVAL = """
    - name: step
      type: parallel
      tasks:
        - {name: t0, agent: a0, instruction: do 0}
        - {name: t1, agent: a1, instruction: do 1}
"""


def test_a_person_is_asked_in_a_branch(open_new: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: a branch that waits for a person leaves the others done; answered, the workflow goes on with it alone."""
    (tmp_path / "pay_tools.py").write_text("def pay() -> str:\n    '''Pay.'''\n    return 'paid'\n")
    path = tmp_path / "team.yaml"
    team(tmp_path, APPROVAL)
    path.write_text(
        path.read_text().replace(
            "a1: {system_prompt: I am a1.}",
            "a1: {system_prompt: I am a1., tools: [{name: pay, function: pay_tools.pay, requires_approval: true}]}",
        )
    )
    config = load(path)

    def paying(agent: str, text: str, before: int) -> ModelAnswer | str:
        if agent == "a1" and before == 0:
            return ModelAnswer("", (ToolCall("1", "pay", {}),))
        return noting(agent, text, before)

    model = Answers(paying)
    with Engine(config, open_new(config.schema), model) as engine:
        waiting = run_workflow(engine, "r", "job")
        assert waiting.how == "interrupted"
        [(branch, asked)] = waiting.asked.items()
        engine.resume(branch, dict.fromkeys(asked, True), by="ann")
        assert run_workflow(engine, "r", "job").how == "done"
        assert model.asked("a0") == 2
        assert model.asked("a1") == 2


def test_another_input_waits_for_the_pass_under_way(open_new: Open, tmp_path: Path) -> None:
    """Another input is another pass, and never mixed into one that is not finished."""
    config = team(tmp_path, "    - {name: one, agent: lead, instruction: answer}\n", fallback="null")
    model = Answers(lambda _agent, text, before: text if before else (_ for _ in ()).throw(down()))
    with Engine(config, open_new(config.schema), model) as engine:
        assert run_workflow(engine, "r", "job", "first").how == "failed"
        with pytest.raises(TransactionInvalid, match="another input"):
            run_workflow(engine, "r", "job", "second")
        assert run_workflow(engine, "r", "job").how == "done"
        assert run_workflow(engine, "r", "job", "second").number == 2
    assert [one.content for one in model.requests[-1].messages[1:]] == ["first", "answer", "answer", "second", "answer"]


def test_a_task_without_instruction_gets_the_input(open_new: Open, tmp_path: Path) -> None:
    """A task that says nothing itself is told the workflow's input, once; an unknown workflow is named."""
    config = team(tmp_path, "    - {name: one, agent: lead}\n")
    model = Answers(lambda _agent, text, _n: text)
    with Engine(config, open_new(config.schema), model) as engine:
        assert run_workflow(engine, "r", "job", "the moon").text == "the moon"
        assert run_workflow(engine, "r", "job", "the moon").number == 1
        with pytest.raises(ConfigError, match="did you mean 'job'"):
            run_workflow(engine, "r", "jobs")
    assert len(model.requests[0].messages) == 2


def test_a_conversation_goes_on_after_a_workflow(open_new: Open, tmp_path: Path) -> None:
    """A person's message after a workflow is answered, and disturbs no later call of it."""
    config = team(tmp_path, branches("parallel", 2) + "    - {name: end, agent: lead, instruction: sum up}\n")
    model = Answers(lambda agent, text, _n: f"{agent}: {text}")
    with Engine(config, open_new(config.schema), model) as engine:
        first = run_workflow(engine, "r", "job")
        assert engine.send("r", "thanks").text == "lead: thanks"
        assert run_workflow(engine, "r", "job").steps == first.steps


# --- kill -9 -------------------------------------------------------------------------------------


class Killed:
    """A forking worker, and one trial: killed at an append, then done again until it ends."""

    def __init__(self, process: subprocess.Popen[str], url: str, calls: Path) -> None:
        self._process, self.url, self.calls = process, url, calls

    def go(self, kill_at: int) -> bool:
        """Do the workflow; whether it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self.url}\t{self.calls}\t{kill_at}\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status in (0, 9)
        return status == 9

    def lines(self) -> list[str]:
        """The questions so far."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture(scope="module")
def killer() -> Any:
    """The forking process."""
    command = [sys.executable, workflow_worker.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def finished(store: Store) -> set[str]:
    """The agents' branches that are done, as `agent: instruction` begins."""
    found = set()
    for one in store.runs():
        events = list(store.run(one.name).events(("message.added", "turn.committed")))
        asked = [event for event in events if event.refs.get("to")]
        if one.name != "job" and asked and any(event.kind == "turn.committed" for event in events):
            found.add(f"{asked[0].refs['to']}: user {asked[0].body['message']['content']!r}")
    return found


def outcome(store: Store) -> tuple[Any, ...]:
    """What must be the same however often the process was killed."""
    run = store.run("job")
    kinds = [event.kind for event in run.events()]
    said = [one.body["message"]["content"] for one in run.events(("message.added",)) if one.refs.get("step")]
    counts = [kinds.count(kind) for kind in ("branch.opened", "branch.merged", "model.answered", "turn.committed")]
    return run.state().json(), said, counts, [one.name for one in store.runs()]


def crash(killer: Any, url: str, folder: Path, kill_at: int) -> tuple[Any, ...] | None:
    """Kill at one place, look, go on, and return the outcome; None: it ended before."""
    trial = Killed(killer, url, folder / f"calls{kill_at}")
    if not trial.go(kill_at):
        return None
    with open_store(url) as store:
        done = finished(store)
    before = trial.lines()
    assert not trial.go(0)
    after = trial.lines()[len(before) :]
    assert not [line for line in after if line in done], "a finished branch was run again"
    assert len(trial.lines()) <= CALLS + 3, "at most what was under way was asked again"
    with open_store(url) as store:
        assert verify(store).ok
        return outcome(store)


CALLS = 1 + 2 * 3 + 2 * 2 + 1 + 1
"""Questions of the worker's workflow: plan, dig, vote and debate, judge, report."""


def sweep(killer: Any, folder: Path, places: Iterable[int]) -> int:
    """Kill at these places until the workflow ends before one; how many that were. Each ends as if undisturbed."""
    whole = Killed(killer, f"sqlite:///{folder / 'whole.db'}", folder / "calls")
    assert not whole.go(0)
    assert len(whole.lines()) == CALLS
    with open_store(whole.url) as store:
        expected = outcome(store)
    for trials, kill_at in enumerate(places):
        found = crash(killer, f"sqlite:///{folder / f'{kill_at}.db'}", folder, kill_at)
        if found is None:
            return trials
        assert found == expected, kill_at
    raise AssertionError("the workflow never ended")


def test_killed_here_and_there_the_end_is_the_same(killer: Any, tmp_path: Path) -> None:
    """P6: killed at any append, a second process ends the same way; finished branches are not run again."""
    assert sweep(killer, tmp_path, (at if at % 2 else -at for at in range(3, 200, 7))) >= 8


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_killed_anywhere_the_end_is_the_same(killer: Any, tmp_path: Path) -> None:
    """P6: the same before and behind each single append."""
    assert sweep(killer, tmp_path, (sign * at for at in range(1, 200) for sign in (1, -1))) >= 100


@pytest.mark.parametrize("kill_at", [24, -31])
def test_killed_between_branches(killer: Any, store_url: str, tmp_path: Path, kill_at: int) -> None:
    """P6: the same on both backends, killed while branches work."""
    found = crash(killer, store_url, tmp_path, kill_at)
    assert found is not None
    assert found[0] == {"notes": ["a dug", "b dug", "c dug"], "best": "c"}

"""Processes that do a workflow and are killed within. They are forked from one that has imported refold.

Commands on standard input, one a line: `URL CALLS KILL_AT` (tab between) forks a process that does the workflow of
TEAM in the run `job` and kills itself with signal 9 before (KILL_AT > 0) or behind (KILL_AT < 0) its KILL_AT-th append
to the log; 0: never. Answered with its wait status when it is gone. Each question to the model adds a line to CALLS.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from refold import open_store
from refold_engine.engine import Engine
from refold_engine.loading import load
from refold_engine.ports import ModelAnswer, ModelRequest, ToolCall
from refold_engine.scripted import FunctionModel
from refold_engine.workflows import run_workflow

TEAM = """
default_agent: lead
model: {primary: test/model, retries: 0}
groups: {team: [lead, a, b, c]}
state_schema:
  notes: {type: array, reducer: append, owner: team}
  best: {type: string, owner: team}
agents: {lead: {system_prompt: lead}, a: {system_prompt: a}, b: {system_prompt: b}, c: {system_prompt: c}}
workflows:
  job:
    - {name: plan, agent: lead, instruction: plan}
    - name: dig
      type: parallel
      tasks:
        - {name: one, agent: a, instruction: dig one}
        - {name: two, agent: b, instruction: dig two}
        - {name: three, agent: c, instruction: dig three}
    - name: check
      type: vote
      vote: {strategy: llm_judge, debate_rounds: 2}
      tasks:
        - {name: x, agent: a, instruction: vote x}
        - {name: y, agent: b, instruction: vote y}
    - {name: report, agent: lead, instruction: report}
"""


def main() -> None:
    """Fork as told."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "team.yaml")
        path.write_text(TEAM)
        config = load(path)
        for line in sys.stdin:
            url, calls, kill_at = line.rstrip("\n").split("\t")
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    work(config, url, calls, int(kill_at))
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            print(os.waitpid(pid, 0)[1], flush=True)  # noqa: T201  # the answer


def work(config: Any, url: str, calls: str, kill_at: int) -> None:
    """Do the workflow; die at a place."""
    told = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def answer(request: ModelRequest) -> ModelAnswer | str:
        last = request.messages[-1]
        os.write(told, f"{request.agent}: {last.role} {last.content[:30]!r}\n".encode())
        if last.role == "user" and last.content.startswith("dig"):
            arguments = {"key": "notes", "value": [f"{request.agent} dug"]}
            best = {"key": "best", "value": request.agent}
            return ModelAnswer("", (ToolCall("1", "write_state", arguments), ToolCall("2", "write_state", best)))
        return f"{request.agent} on {last.content[:20]!r}"

    with open_store(url, config.schema) as store:
        count, lock, append = [0], threading.Lock(), store._backend.append

        def counted(rows: Any, **options: Any) -> Any:
            with lock:
                count[0] += 1
                here = count[0]
            if here == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            made = append(rows, **options)
            if here == -kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return made

        store._backend.append = counted  # type: ignore[method-assign]  # the one door to the log
        with Engine(config, store, FunctionModel(answer)) as engine:
            assert run_workflow(engine, "job", "job", "the moon").how == "done"


if __name__ == "__main__":
    main()

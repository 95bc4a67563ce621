"""A process that lets a team of agents work and is killed at the n-th commit: `python engine_worker.py URL FOLDER N`.

N > 0: before the N-th append reaches the store; N < 0: right after the -N-th; 0: never. Prints how often it asked.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from agents import TEAM, calls, engine, team, to, write

from refold import open_store
from refold_engine.ports import ModelAnswer, ModelRequest

TOOLS = '''
from pathlib import Path

PAID = Path(__file__).with_name("paid.txt")


def pay(amount: int) -> str:
    """Pays: a line in a file."""
    with PAID.open("a") as file:
        file.write(f"{amount}\\n")
    return f"paid {amount}"
'''

ANSWERS: dict[str, list[ModelAnswer | str]] = {
    "intake": [
        calls(write("loss", {"n": 1}), ("delegate_task", {"target_agent": "triage", "instruction": "set the limit"})),
        calls(("pay", {"amount": 5}), write("code", "x")),
        calls(write("notes", ["in"]), to("settle")),
    ],
    "triage": [calls(write("limit", 7)), "set"],
    "settle": [calls(write("notes", ["end"]), ("read_state", {"key": "limit"})), "All settled."],
}


def config(folder: Path) -> Any:
    """The team."""
    intake = {**TEAM["agents"]["intake"], "tools": ["pay"], "delegations": ["triage"], "handoffs": ["settle"]}
    tools = [{"name": "pay", "module": f"{folder.name}_tools"}]
    return team(folder, TOOLS, agents={**TEAM["agents"], "intake": intake}, tools=tools)


class ByPlace:
    """Answers by how often the agent has spoken in the conversation: it remembers nothing, as a real model does."""

    def __init__(self) -> None:
        self.asked = 0

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """The answer for this place."""
        self.asked += 1
        spoken = sum(message.role == "assistant" for message in request.messages)
        if request.agent == "settle":
            spoken -= len(ANSWERS["intake"])
        found = ANSWERS[request.agent][spoken]
        return ModelAnswer(found) if isinstance(found, str) else found


def main(url: str, folder: str, kill_at: int) -> None:
    """Work, or die."""
    found = config(Path(folder))
    store = open_store(url, found.schema)
    append, count = store._backend.append, 0

    def counted(rows: Any, *, durable: bool) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        append(rows, durable=durable)
        if count == -kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    store._backend.append = counted  # type: ignore[method-assign]
    model = ByPlace()
    result = engine(found, store, model).send("r", "go", message_id="m")
    store.close()
    print(model.asked, count, result.text)  # noqa: T201  # the answer


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

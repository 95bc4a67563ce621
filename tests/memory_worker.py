"""Processes that let agents contribute to shared memory: `memory_worker.py URL FOLDER RUN TENANT TIMES [KILL_AT]`.

It waits for a line on standard input, so that several begin at once. KILL_AT n: killed before the n-th append.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from agents import TEAM, calls, engine, team, write

from refold import open_store
from refold_engine.ports import ModelAnswer, ModelRequest

SHARED: dict[str, Any] = {
    **TEAM["state_schema"],
    "rates": {"owner": "intake", "type": "object", "scope": "tenant"},
    "news": {"owner": "team", "type": "array", "scope": "global", "reducer": "append", "max_bytes": 200},
}


def config(folder: Path, **changes: Any) -> Any:
    """A team with a memory shared by its tenant, an overwritten shared key, and one that all tenants share."""
    return team(folder, **{"state_schema": SHARED, "memory": {"shared_scope": "tenant"}, **changes})


class Notes:
    """Contributes `RUN N` to a message `go N`, then ends. It remembers nothing, as a real model does."""

    def __init__(self, run: str) -> None:
        self.run = run

    def answer(self, request: ModelRequest, *, timeout_s: float) -> ModelAnswer:
        """By what was said last."""
        last = request.messages[-1]
        if last.role == "tool":
            return ModelAnswer("noted")
        return calls(write("long_term_memory", [f"{self.run} {last.content.removeprefix('go ')}"]))


def main(url: str, folder: str, run: str, tenant: str, times: int, kill_at: int = 0) -> None:
    """Contribute so often."""
    made = config(Path(folder))
    store = open_store(url, made.schema)
    append, count = store._backend.append, 0

    def counted(rows: Any, *, durable: bool) -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        append(rows, durable=durable)

    store._backend.append = counted  # type: ignore[method-assign]  # to be killed in the middle
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    with engine(made, store, Notes(run)) as agents:
        for n in range(times):
            agents.send(run, f"go {n}", tenant=tenant, message_id=str(n))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:5], *map(int, sys.argv[5:]))

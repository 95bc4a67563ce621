"""A team at work with every port given: `determinism_worker.py URL FOLDER SEED` prints each column of each event.

Nothing in it may depend on the process: tools run side by side, each as fast as it likes, and draw and read and write.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from agents import TEAM, Answers, StillClock, calls, engine, team, to, write

from refold import open_store

TOOLS = '''
import os
import time

from refold_engine.toolcontext import ToolContext


def look(key: str, context: ToolContext) -> list:
    """Reads, draws and writes, at a speed of its own."""
    time.sleep(os.urandom(1)[0] / 5_000)
    found = context.read_state(key)
    time.sleep(os.urandom(1)[0] / 5_000)
    drawn = context.random.bytes(4).hex()
    context.write_state("notes", [f"{key} {drawn}"])
    context.read_state("notes")
    return [found, drawn, sorted({"a", "b", "c", key})]
'''

ANSWERS: dict[str, Any] = {
    "intake": [
        calls(write("loss", {"z": 1, "a": {"y", "x"} and ["x", "y"]}), write("code", "q")),
        calls(*[("look", {"key": key}) for key in ("code", "loss", "notes", "code")], ("read_state", {"key": "code"})),
        calls(("delegate_task", {"target_agent": "triage", "instruction": "set it"}), to("settle")),
    ],
    "triage": [calls(write("limit", 3), write("tags", ["b", "a", "c"])), "set"],
    "settle": [calls(write("long_term_memory", ["seen"])), "done"],
}


def config(folder: Path) -> Any:
    """The team."""
    intake = {**TEAM["agents"]["intake"], "tools": ["look"], "delegations": ["triage"], "handoffs": ["settle"]}
    return team(
        folder,
        TOOLS,
        agents={**TEAM["agents"], "intake": intake},
        tools=[{"name": "look", "module": f"{folder.name}_tools"}],
        state_schema={**TEAM["state_schema"], "tags": {"owner": "triage", "type": "array", "reducer": "union"}},
        memory={"shared_scope": "tenant"},
    )


class Seeded:
    """The engine's randomness."""

    def __init__(self, seed: int) -> None:
        self.bytes = random.Random(seed).randbytes


def main(url: str, folder: str, seed: int) -> None:
    """Play, and print the log of the run and of what it shares."""
    made, clock = config(Path(folder)), StillClock()
    store = open_store(url, made.schema, clock=lambda: clock.now, random=random.Random(seed + 1).randbytes)
    with engine(made, store, Answers(**ANSWERS), clock=clock, random=Seeded(seed)) as agents:
        assert agents.send("r", "go").text == "done"
    run = store.run("r")
    for one in (run, run._home(run.declared("long_term_memory"))):
        for event in one.events():
            row = event.row._replace(run=0, actor=None, owner=None, key=None)  # numbers of this database
            sys.stdout.write(json.dumps([event.kind, event.actor, event.owner, event.key, *map(repr, row)]) + "\n")
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

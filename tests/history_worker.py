"""A process that writes and reads one key and records what it did. `history_worker.py URL WRITER COUNT SEED`.

It waits for a line on standard input, then prints one JSON list [kind, who, start, end, version] an operation.
"""

from __future__ import annotations

import json
import random
import sys
import time

from refold import Conflict, Run, compile_schema, open_store

SCHEMA = compile_schema(
    {"keys": {"fact": {"owner": "anybody"}}, "groups": {"anybody": [f"w{number}" for number in range(8)]}}
)


def operate(run: Run, who: str, count: int, seed: str) -> list[tuple[str, str, int, int, int]]:
    """Write, write conditionally and read in a random order; refused writes leave no operation."""
    chance = random.Random(seed)
    done = []
    for number in range(count):
        what = chance.random()
        start = time.monotonic_ns()
        if what < 0.5:
            kind, version = "read", run.read_state("fact", reader=who).version
        elif what < 0.6:
            kind, version = "read", run.peek("fact").version
        elif what < 0.8:
            kind, version = "write", run.write_state("fact", number, writer=who).version
        else:
            expected = run.peek("fact").version
            start = time.monotonic_ns()
            try:
                kind, version = "write", run.write_state("fact", 0, writer=who, expected_version=expected).version
            except Conflict as error:
                # The refusal is a look at the key, too: it was at `actual` at some time during the call.
                kind, version = "read", error.actual
        done.append((kind, who, start, time.monotonic_ns(), version))
    return done


def main(url: str, who: str, count: str, seed: str) -> None:
    """Operate when told to."""
    with open_store(url, SCHEMA) as store:
        run = store.run("job")
        print("ready", flush=True)  # noqa: T201  # the answer
        sys.stdin.readline()
        for one in operate(run, who, int(count), seed):
            print(json.dumps(one))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

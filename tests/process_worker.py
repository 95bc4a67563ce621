"""A process of its own that does one job on a store. `process_worker.py JOB URL NAME ARGUMENT`.

It prints `ready`, waits for a line on standard input, does the job, and prints what came of it as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from refold import Conflict, Run, compile_schema, open_store
from refold_store.migrate import migrate_postgres

SCHEMA = compile_schema(
    {
        "keys": {
            "count": {"owner": "anybody", "type": "integer"},
            "a": {"owner": "anybody"},
            "b": {"owner": "anybody"},
            "entries": {"owner": "anybody", "type": "array", "reducer": "append"},
        },
        "groups": {"anybody": [f"w{number}" for number in range(32)]},
    }
)
DAY_US = 86_400_000_000


def increment(run: Run, who: str, times: int) -> list[int]:
    """Read, add one, write with `expected_version`; again after a conflict. Returns the versions made."""
    made: list[int] = []
    while len(made) < times:
        got = run.read_state("count", reader=who)
        try:
            value = (0 if got.absent else got.value) + 1
            made.append(run.write_state("count", value, writer=who, expected_version=got.version).version)
        except Conflict:
            continue
    return made


def swap(run: Run, who: str, times: int) -> list[int]:
    """Transactions over a and b, or over b and a for workers of an odd number."""
    keys = ("a", "b") if int(who[1:]) % 2 == 0 else ("b", "a")
    made = []
    for number in range(times):
        with run.transaction() as tx:
            for key in keys:
                tx.write_state(key, [who, number], writer=who)
        made.append(tx.written[0].version)
    return made


def add(run: Run, who: str, times: int) -> list[int]:
    """Append entries, in this worker's own run and in the shared one."""
    own = run.store.run(f"own of {who}")
    made = []
    for number in range(times):
        own.write_state("entries", [[who, number]], writer=who)
        made.append(run.write_state("entries", [[who, number]], writer=who).version)
    return made


def repeat(run: Run, who: str, times: int) -> list[int]:
    """Write under request ids that every worker uses. Returns the version each gave."""
    return [
        run.write_state("a", number, writer="w0", request_id=f"request {number}").version for number in range(times)
    ]


JOBS: dict[str, Callable[[Run, str, int], list[int]]] = {
    "increment": increment,
    "swap": swap,
    "add": add,
    "repeat": repeat,
}


def stepping_clock(who: str) -> Callable[[], int]:
    """A clock that goes on by 1 ms a call, and each tenth call jumps an hour back, each fifteenth a day forward."""
    now, calls = time.time_ns() // 1000, 0

    def tell() -> int:
        nonlocal now, calls
        calls += 1
        now += 1000
        if calls % 10 == 0:
            now -= DAY_US // 24
        if calls % 15 == 0:
            now += DAY_US
        return now + int(who[1:]) * DAY_US

    return tell


def main(job: str, url: str, who: str, argument: str) -> None:
    """Wait for the word, then open the store and do the job. A job `x@clocks` has a clock that steps."""
    job, _at, clocks = job.partition("@")
    print("ready", flush=True)  # noqa: T201  # the answer
    sys.stdin.readline()
    if job == "migrate":
        migrate_postgres(url)
        job = "add"
    with open_store(url, SCHEMA, clock=stepping_clock(who) if clocks else None) as store:
        print(json.dumps(JOBS[job](store.run("shared"), who, int(argument))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Processes that do one job on a store, all at once. `process_worker.py JOB URL COUNT ARGUMENT` prints what each made.

They are forked from a process that has imported refold and opened nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier

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
together: Barrier
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


def in_threads(act: Callable[[str], list[int]], count: int) -> list[list[int]]:
    """What `count` threads made of a job."""
    made: dict[int, list[int]] = {}

    def run(number: int) -> None:
        made[number] = act(f"w{number}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[number] for number in range(count)]


def work(task: tuple[str, str, str, int]) -> list[int]:
    """In a process of its own: wait for the others, open the store, do the job. A job `x@clocks` steps the clock."""
    job, url, who, argument = task
    job, _at, clocks = job.partition("@")
    together.wait()
    if job == "migrate":
        migrate_postgres(url)
        job = "add"
    with open_store(url, SCHEMA, clock=stepping_clock(who) if clocks else None) as store:
        return JOBS[job](store.run("shared"), who, argument)


def main(job: str, url: str, count: str, argument: str) -> None:
    """Fork `count` processes, all of which have imported what they need, and print what each made."""
    global together
    if job == "migrate":
        import refold_store.tables  # noqa: F401  # and SQLAlchemy with it
    forking = multiprocessing.get_context("fork")
    together = forking.Barrier(int(count))
    with forking.Pool(int(count)) as pool:
        tasks = [(job, url, f"w{number}", int(argument)) for number in range(int(count))]
        print(json.dumps(pool.map(work, tasks, chunksize=1)))  # noqa: T201  # the answer


if __name__ == "__main__":
    main(*sys.argv[1:])

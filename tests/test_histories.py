"""Recorded concurrent histories, of threads and of processes, held against the checker in histories.py.

The checker is tested first, on hand-made histories that break one rule each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from histories import Operation, faults
from history_worker import SCHEMA, operate
from rawlog import check_log, ram_folder

from refold import Store, open_store

WORKER = Path(__file__).with_name("history_worker.py")
Open = Callable[..., Store]


@pytest.fixture
def sqlite_url() -> Iterator[str]:
    """A file on a RAM disk: more happens at once."""
    with ram_folder() as folder:
        yield f"sqlite:///{folder / 'refold.db'}"


def write(version: int | None, start: int, end: int | None, who: str = "w") -> Operation:
    return Operation("write", who, start, end, version)


def read(version: int, start: int, end: int, who: str = "r") -> Operation:
    return Operation("read", who, start, end, version)


GOOD = {
    "nothing happened": ([read(0, 1, 2)], 0),
    "one after the other": ([write(1, 1, 2), write(2, 3, 4), read(2, 5, 6)], 2),
    "two at once, either order": ([write(2, 1, 10), write(1, 2, 9)], 2),
    "a read beside a write sees either": ([write(1, 1, 10), read(0, 2, 3), read(1, 4, 5)], 1),
    "a lost answer may have written": ([write(1, 1, 2), write(None, 3, None), read(2, 5, 6)], 2),
    "a lost answer may not have written": ([write(1, 1, 2), write(None, 3, None), read(1, 5, 6)], 1),
}
BAD = {
    "a version twice": ([write(1, 1, 2), write(1, 3, 4)], 1, "given twice"),
    "a version skipped": ([write(1, 1, 2), write(3, 3, 4)], 3, "given to nobody"),
    "not from 1": ([write(0, 1, 2)], 0, "the key is at 0"),
    "an acknowledged write lost": ([write(1, 1, 2), write(2, 3, 4)], 1, "the key is at 1"),
    "writes out of order": ([write(2, 1, 2), write(1, 3, 4)], 2, "had returned"),
    "a stale read": ([write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)], 2, "after write of 2 had returned"),
    "a read lost a write": ([write(1, 1, 2), read(0, 3, 4)], 1, "after write of 1 had returned"),
    "reads that go back": ([write(1, 1, 9), read(1, 2, 3), read(0, 4, 5)], 1, "after read of 1 had returned"),
    "a read of the future": ([read(1, 1, 2), write(1, 3, 4)], 1, "before its write began"),
    "a read of a lost answer's future": ([read(1, 1, 2), write(None, 3, None)], 1, "before its write began"),
    "a read of nothing": ([write(1, 1, 2), read(2, 3, 4)], 1, "the key is at 1"),
}


@pytest.mark.parametrize("name", GOOD)
def test_the_checker_accepts(name: str) -> None:
    """A history that some order of its operations explains has no faults."""
    history, newest = GOOD[name]
    assert faults(history, newest) == []


@pytest.mark.parametrize("name", BAD)
def test_the_checker_refuses(name: str) -> None:
    """Each broken rule is found and named."""
    history, newest, message = BAD[name]
    found = faults(history, newest)
    assert any(message in fault for fault in found), found


def test_threads_of_one_process(open_new: Open) -> None:
    """Four threads write and read one key of one store: the history is as if one came after the other."""
    store = open_new(SCHEMA)
    history: list[Operation] = []

    def act(number: int) -> None:
        history.extend(Operation(*one) for one in operate(store.run("job"), f"w{number}", 60, f"threads {number}"))

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history) == 240
    assert faults(history, store.run("job").peek("fact").version) == []


def test_stores_of_several_processes(store_url: str) -> None:
    """Three processes and a thread of this one: the same, across connections and caches of the newest version."""
    with open_store(store_url, SCHEMA) as store:
        run = store.run("job")
        run.write_state("fact", 0, writer="w7")
        history = [Operation("write", "w7", 0, 0, 1)]
        workers = [
            subprocess.Popen(
                [sys.executable, str(WORKER), store_url, f"w{number}", "60", f"processes {number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(3)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        history += [Operation(*one) for one in operate(run, "w6", 60, "here")]
        for worker in workers:
            history += [Operation(*json.loads(line)) for line in worker.communicate()[0].splitlines()]
        assert len(history) == 241
        assert faults(history, run.peek("fact").version) == []
    check_log(store_url)

"""`kill -9` under load, in real processes: what was acknowledged stays, nothing is half there, reads come first.

Two processes with two threads each work on one run; both are killed at random moments, again and again on one store.
After each kill the log is read by the bare driver (rawlog.py).
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_worker import KEYS, SCHEMA
from rawlog import Raw, check_log, ram_folder

from refold import open_store

WORKER = Path(__file__).with_name("crash_worker.py")
PROCESSES = 2
LATEST_S = 0.1
"""The first kill comes at a random moment of this time after both have written, the second up to half of it later."""
START_S = 30.0
"""Longest wait for a worker's first acknowledged write."""

Ack = tuple[str, int, int]
"""Key, version, seq."""


@pytest.fixture
def sqlite_url() -> Iterator[str]:
    """A file on a RAM disk: kills come closer together."""
    with ram_folder() as folder:
        yield f"sqlite:///{folder / 'refold.db'}"


class Killer:
    """Starts workers and kills them; keeps what they were told."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, chance: random.Random) -> None:
        self._process = process
        self._folder = folder
        self._chance = chance
        self._started = 0
        self.acks: list[list[Ack]] = []
        """One list an acknowledged call."""

    def round(self, url: str, job: str) -> None:
        """Let PROCESSES workers run, and kill them."""
        files, pids = [], []
        for n in range(PROCESSES):
            self._started += 1
            files.append(self._folder / f"acks{self._started}")
            pids.append(self._ask("start", url, f"worker{n}", job, f"reader{self._started}", str(files[-1])))
        deadline = time.monotonic() + START_S
        while not all(file.exists() and file.stat().st_size for file in files):
            assert time.monotonic() < deadline, "a worker acknowledged no write"
            time.sleep(0.002)
        for pid in self._chance.sample(pids, PROCESSES):
            time.sleep(self._chance.uniform(0, LATEST_S))
            assert self._ask("kill", str(pid)) == signal.SIGKILL
        for file in files:
            self.acks += [acks_of(line) for line in file.read_text().splitlines()]

    def _ask(self, *words: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture
def killer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Killer]:
    """A killer with a seed of its own; a soak draws a fresh one."""
    seed = time.time_ns() if request.node.get_closest_marker("soak") else 77401
    with subprocess.Popen(
        [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Killer(process, tmp_path, random.Random(seed))


def acks_of(line: str) -> list[Ack]:
    """What one line acknowledges."""
    words = line.split()
    triples = zip(words[::3], words[1::3], words[2::3], strict=True)
    return [(key, int(version), int(seq)) for key, version, seq in triples]


def check_acks(events: list[Raw], acks: list[list[Ack]]) -> None:
    """Every acknowledged write is there, at its seq and version; what one call wrote is one transaction."""
    for call in acks:
        for key, version, seq in call:
            found = events[seq - 1]
            assert (found.key, found.version, found.kind) == (key, version, "state.written")
        assert len({events[seq - 1].txn for _key, _version, seq in call}) == 1


def check_whole(events: list[Raw]) -> None:
    """No transaction is half there: each wrote all of KEYS."""
    keys = defaultdict(list)
    for event in events:
        if event.txn is not None:
            keys[event.txn].append(event.key)
    assert all(tuple(found) == KEYS for found in keys.values())


def check_reads_first(events: list[Raw]) -> int:
    """Before each write stand all the reads that its process had made before it. Returns how many were compared."""
    reads: dict[str, int] = defaultdict(int)
    compared = 0
    for event in events:
        if event.kind == "state.read":
            reads[event.actor or ""] += 1
        elif event.kind == "state.written" and isinstance(event.value, dict):
            for reader, count in event.value["reads"].items():
                assert reads[reader] >= count, f"seq {event.seq}: {reader} had read {count} times, not {reads[reader]}"
                compared += count > 0
    return compared


def kill_and_check(killer: Killer, url: str, rounds: int, job: str = "job") -> None:
    """Kill again and again in one run, and check after each."""
    compared = 0
    killer.acks = []
    for _round in range(rounds):
        killer.round(url, job)
        events = check_log(url, job)["default", 0, job]
        check_acks(events, killer.acks)
        check_whole(events)
        compared = check_reads_first(events)
    assert len(killer.acks) > rounds
    assert compared > rounds
    appends = [event for event in events if event.key == "log" and event.kind == "state.written"]
    with open_store(url) as store:
        run = store.run(job)
        assert run.state().seq == run.head_seq() == len(events)
        assert len(run.peek("log").json) == len(appends)


def test_kill_nine_under_load(killer: Killer, store_url: str) -> None:
    """After a dozen kills everything acknowledged is there, whole, in order, and behind the reads it came after."""
    kill_and_check(killer, store_url, 12 // PROCESSES)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_kills(killer: Killer, store_url: str) -> None:
    """The same with a hundred, at moments that are new each time, in ten runs of one store."""
    for number in range(10):
        kill_and_check(killer, store_url, 10 // PROCESSES, f"job {number}")
    check_log(store_url)


def test_a_killed_process_blocks_nobody(killer: Killer, store_url: str) -> None:
    """A store that was open all the while goes on after the kills: no lock outlives its holder."""
    with open_store(store_url, SCHEMA) as store:
        run = store.run("job")
        run.write_state("a", {"reads": {}}, writer="worker7")
        for _round in range(3):
            killer.round(store_url, "job")
            before = run.peek("a").version
            written = run.write_state("a", {"reads": {}}, writer="worker7")
            assert written.version > before  # a server may finish what a killed client had sent
    check_log(store_url)

"""Many writers: threads of one process and real processes, on one store of each kind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process_worker import DAY_US, SCHEMA, in_threads, increment, swap
from rawlog import Raw, RunName, check_log, ram_folder

from refold import Store, open_store

WORKER = Path(__file__).with_name("process_worker.py")
SHARED = ("default", 0, "shared")
Open = Callable[..., Store]


@pytest.fixture
def sqlite_url() -> Iterator[str]:
    """A file on a RAM disk: more happens at once."""
    with ram_folder() as folder:
        yield f"sqlite:///{folder / 'refold.db'}"


def in_processes(job: str, url: str, count: int, argument: int) -> list[Any]:
    """What `count` processes made of a job that they began together."""
    command = [sys.executable, str(WORKER), job, url, str(count), str(argument)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made: list[Any] = json.loads(done.stdout)
    return made


def of_kind(log: dict[RunName, list[Raw]], *kinds: str) -> list[Raw]:
    """The shared run's events of some kinds."""
    return [event for event in log[SHARED] if event.kind in kinds]


def check_increments(url: str, made: list[list[int]], each: int) -> None:
    """Every increment has a version of its own, none is missing, and no conflict was made up."""
    total = each * len(made)
    assert sorted(version for one in made for version in one) == list(range(1, total + 1))
    log = check_log(url)
    assert [event.value for event in of_kind(log, "state.written")] == list(range(1, total + 1))
    for refusal in of_kind(log, "state.refused"):
        body = json.loads(refusal.body or b"")
        assert body["expected"] < body["actual"], "a conflict with what the writer had seen"


def test_increments_by_threads(store_url: str) -> None:
    """8 threads increment one key 100 times each, by read and conditional write: 800 versions."""
    thread_increments(store_url, 100)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_increments_by_threads(store_url: str) -> None:
    """8 threads increment one key 1,000 times each: 8,000 versions."""
    thread_increments(store_url, 1000)


def thread_increments(url: str, each: int) -> None:
    """8 threads on one store."""
    with open_store(url, SCHEMA) as store:
        run = store.run("shared")
        made = in_threads(lambda who: increment(run, who, each), 8)
    check_increments(url, made, each)


def test_increments_by_processes(store_url: str) -> None:
    """4 processes do the same, 250 times each."""
    check_increments(store_url, in_processes("increment", store_url, 4, 250), 250)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_increments_by_processes(store_url: str) -> None:
    """4 processes do the same, 2,000 times each."""
    check_increments(store_url, in_processes("increment", store_url, 4, 2000), 2000)


def test_crossing_transactions_of_threads(open_new: Open, store_url: str) -> None:
    """4 threads write (a, b) and (b, a) 200 times each: no deadlock, both keys move together."""
    run = open_new(SCHEMA).run("shared")
    made = in_threads(lambda who: swap(run, who, 200), 4)
    check_swaps(store_url, made, 800)


def test_crossing_transactions_of_processes(store_url: str) -> None:
    """4 processes do the same, 100 times each."""
    check_swaps(store_url, in_processes("swap", store_url, 4, 100), 400)


def check_swaps(url: str, made: list[list[int]], total: int) -> None:
    """The two events of each transaction carry one value and one version."""
    assert sorted(version for one in made for version in one) == list(range(1, total + 1))
    events = of_kind(check_log(url), "state.written")
    pairs = list(zip(events[::2], events[1::2], strict=True))
    assert len(pairs) == total
    for first, second in pairs:
        assert {first.key, second.key} == {"a", "b"}
        assert (first.value, first.version, first.txn) == (second.value, second.version, second.txn)


def test_eight_processes_make_a_sqlite_file(sqlite_url: str) -> None:
    """8 processes open a file that does not exist yet and write at once: no error, all events are there."""
    check_additions(sqlite_url, in_processes("add", sqlite_url, 8, 20), 20)


def test_twenty_processes_migrate_postgres(empty_pg_url: str) -> None:
    """20 processes migrate a brand-new PostgreSQL database at once, then write: the same."""
    check_additions(empty_pg_url, in_processes("migrate", empty_pg_url, 20, 10), 10)


def check_additions(url: str, made: list[list[int]], each: int) -> None:
    """Every worker's entries are in its own run, and in the shared one, in the order it made them."""
    assert sorted(version for one in made for version in one) == list(range(1, each * len(made) + 1))
    check_log(url)
    with open_store(url, SCHEMA) as store:
        entries = store.run("shared").peek("entries").json
        assert len(entries) == each * len(made)
        for number in range(len(made)):
            expected = [[f"w{number}", entry] for entry in range(each)]
            assert store.run(f"own of w{number}").peek("entries").json == expected
            assert [one for one in entries if one[0] == f"w{number}"] == expected


def test_one_request_id_in_many_processes(store_url: str) -> None:
    """4 processes write under the same request ids at once: each id makes one version, which all are told."""
    made = in_processes("repeat", store_url, 4, 40)
    assert made[1:] == made[:1] * 3
    assert sorted(made[0]) == list(range(1, 41))
    events = of_kind(check_log(store_url), "state.written", "state.refused")
    assert sorted(event.request_id or "" for event in events) == sorted(f"request {number}" for number in range(40))


def test_clocks_apart_and_stepping(store_url: str) -> None:
    """3 processes a day apart, whose clocks step back an hour and forward a day: order is by seq, time never goes back.

    The clock of each event is kept where it differs from the recorded time.
    """
    made = in_processes("add@clocks", store_url, 3, 50)
    check_additions(store_url, made, 50)  # includes: recorded_at rises with seq
    events = check_log(store_url)[SHARED]
    behind = [event for event in events if event.clock is not None]
    assert any(event.recorded_at - (event.clock or 0) > DAY_US // 2 for event in behind)
    assert all((event.clock or 0) < event.recorded_at for event in behind)
    # One µs at a time behind the furthest clock: the log does not run away from it.
    furthest = max(event.recorded_at for event in events if event.clock is None)
    assert events[-1].recorded_at - furthest <= len(events)

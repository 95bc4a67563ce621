"""A fork in the middle: the child has connections of its own and an empty queue; nothing is stored twice or lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable

import pytest
from process_worker import SCHEMA
from rawlog import check_log

from refold import Run, Store, StoreClosed, open_store
from refold_store import committer

Open = Callable[..., Store]
CHILD_S = 20
"""Longest life of a child: one that hangs is a failure."""


def fork(act: Callable[[], object]) -> int:
    """The process id of a child that does something, then leaves without any clean-up."""
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(CHILD_S)
    try:
        act()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended_well(pid: int) -> bool:
    return os.waitpid(pid, 0)[1] == 0


@pytest.fixture
def slow_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is flushed because of the time."""
    monkeypatch.setattr(committer, "FLUSH_S", 3600.0)


@pytest.fixture
def run(open_new: Open) -> Run:
    """A run that is open, with one version of a."""
    run = open_new(SCHEMA).run("shared")
    run.write_state("a", 0, writer="w0")
    return run


def test_parent_and_child_write(run: Run, store_url: str) -> None:
    """Both go on with the store they have, at once, in threads: every version is given once."""

    def act() -> None:
        threads = [threading.Thread(target=write, args=(run, 25)) for _thread in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    children = [fork(act) for _child in range(2)]
    act()
    assert all(ended_well(child) for child in children)
    events = check_log(store_url)["default", 0, "shared"]
    assert sum(event.kind == "state.written" for event in events) == 1 + 3 * 50
    assert run.peek("a").version == 151


def write(run: Run, times: int) -> None:
    """Write and read in turn."""
    for number in range(times):
        run.write_state("a", number, writer="w0")
        run.read_state("a", reader="r")


def test_pending_reads_stay_with_the_parent(slow_flush: None, run: Run, store_url: str) -> None:
    """Reads that wait at the fork are stored once, by the parent; the child's own are stored by the child."""
    for _read in range(5):
        run.read_state("a", reader="parent")

    def act() -> None:
        run.read_state("a", reader="child")
        run.write_state("a", 1, writer="w0")
        run.store.close()

    assert ended_well(fork(act))
    run.write_state("a", 2, writer="w0")
    events = check_log(store_url)["default", 0, "shared"]
    assert [event.actor for event in events[3:]] == ["child", "w0", *["parent"] * 5, "w0"]


def test_forks_while_others_commit(run: Run, store_url: str) -> None:
    """Threads read and write while the process forks, ten times: each child writes at once, none inherits a lock."""
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            write(run, 1)
            list(run.events(after=run.head_seq() - 3))

    threads = [threading.Thread(target=load) for _thread in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _fork in range(10):
            time.sleep(0.01)
            assert ended_well(fork(lambda: write(run, 3)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    run.store.flush()
    check_log(store_url)


def test_a_grandchild(run: Run, store_url: str) -> None:
    """A child may fork again."""

    def act() -> None:
        run.write_state("a", 1, writer="w0")
        assert ended_well(fork(lambda: run.write_state("a", 2, writer="w0")))
        run.write_state("a", 3, writer="w0")

    assert ended_well(fork(act))
    run.write_state("a", 4, writer="w0")
    assert [event.value for event in check_log(store_url)["default", 0, "shared"][2:]] == [0, 1, 2, 3, 4]


def test_a_child_outlives_its_parent(store_url: str) -> None:
    """The parent's store closes, another process opens and closes the file, the child is killed: its writes stay.

    SQLite keeps file locks by process, so that a child could believe to hold its parent's.
    """
    told, tell = os.pipe()
    go, release = os.pipe()
    with open_store(store_url, SCHEMA) as store:
        run = store.run("shared")
        run.write_state("a", 0, writer="w0")
        run.read_state("a", reader="r")

        def act() -> None:
            run.write_state("a", 1, writer="w0")
            os.write(tell, b"1")
            os.read(go, 1)
            os.write(tell, str(run.write_state("a", 2, writer="w0").version).encode())
            os.kill(os.getpid(), signal.SIGKILL)

        child = fork(act)
        assert os.read(told, 1) == b"1"
    open_and_close = f"from refold import open_store; open_store({store_url!r}).run('shared').head_seq()"
    subprocess.run([sys.executable, "-c", open_and_close], check=True)
    os.write(release, b"1")
    assert os.read(told, 9) == b"3"
    os.waitpid(child, 0)
    for end in (told, tell, go, release):
        os.close(end)
    events = check_log(store_url)["default", 0, "shared"]
    assert [event.value for event in events if event.kind == "state.written"] == [0, 1, 2]


def test_a_child_that_ends_harms_no_parent(run: Run) -> None:
    """A child that ends in good order, with all of Python's clean-up, leaves the parent's connections alone."""

    def end() -> None:
        from refold_store.store import _close_all

        _close_all()

    assert ended_well(fork(end))
    assert ended_well(fork(lambda: None))
    assert run.write_state("a", 1, writer="w0").version == 2
    assert run.read_state("a", reader="r").version == 2


def test_an_in_memory_store_belongs_to_its_process(open_new: Open, store_url: str) -> None:
    """The child cannot use it and is told so; the other stores of that process work in the child all the same."""
    with open_store("sqlite://", SCHEMA) as memory:
        inside, outside = memory.run("shared"), open_new(SCHEMA).run("shared")
        inside.write_state("a", 0, writer="w0")
        outside.write_state("a", 0, writer="w0")

        def act() -> None:
            for call in (lambda: inside.peek("a"), lambda: inside.write_state("a", 1, writer="w0")):
                with pytest.raises(StoreClosed):
                    call()
            outside.write_state("a", 1, writer="w0")

        assert ended_well(fork(act))
        assert inside.write_state("a", 1, writer="w0").version == 2
        assert outside.write_state("a", 2, writer="w0").version == 3

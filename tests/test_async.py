"""Async callers: the event loop never waits, many tasks share commits, a cancelled await may have committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from process_worker import SCHEMA

from refold import Conflict, Refused, Run, Store
from refold_store.events import Row

Open = Callable[..., Store]


@pytest.fixture
def store(open_new: Open) -> Store:
    return open_new(SCHEMA)


@pytest.fixture
def run(store: Store) -> Run:
    """A run that is open, with one version of a."""
    run = store.run("shared")
    run.write_state("a", 0, writer="w0")
    return run


@pytest.fixture
def gate(store: Store, run: Run, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is appended until it is set."""
    gate, append = threading.Event(), store._backend.append

    def wait(rows: list[Row], *, durable: bool) -> None:
        assert gate.wait(30)
        append(rows, durable=durable)

    monkeypatch.setattr(store._backend, "append", wait)
    return gate


async def turns_of_the_loop(gate: threading.Event) -> int:
    """How often the loop came round before the gate was opened."""
    for _turn in range(100):
        await asyncio.sleep(0)
    gate.set()
    return 100


def test_a_write_does_not_block_the_loop(run: Run, gate: threading.Event) -> None:
    """While a commit waits for the disk, other tasks go on: it is one of them that lets the commit through."""

    async def main() -> None:
        written, turns = await asyncio.gather(run.awrite_state("a", 1, writer="w0"), turns_of_the_loop(gate))
        assert (written.version, turns) == (2, 100)

    asyncio.run(main())


def test_no_call_blocks_the_loop(run: Run, gate: threading.Event) -> None:
    """The same for a delete, a transaction, a refused write and a read."""

    async def transaction() -> int:
        async with run.transaction() as tx:
            tx.write_state("b", 1, writer="w0")
        return tx.written[0].version

    async def refused() -> str:
        with pytest.raises(Refused) as caught:
            await run.awrite_state("a", 1, writer="nobody")
        return caught.value.reason

    async def main() -> None:
        deleted, made, reason, read, _turns = await asyncio.gather(
            run.adelete_state("a", writer="w0"),
            transaction(),
            refused(),
            run.aread_state("count", reader="r"),
            turns_of_the_loop(gate),
        )
        assert (deleted.version, made, reason, read.version) == (2, 1, "owner", 0)

    asyncio.run(main())


def test_many_tasks(store: Store, run: Run) -> None:
    """200 tasks write one key and their own: every version is given once, and each task sees its own writes."""

    async def act(number: int) -> int:
        own = store.run(f"run {number}")
        made = await own.awrite_state("a", number, writer="w1")
        assert (await own.aread_state("a", reader="r")).value == number
        assert made.version == 1
        return (await run.awrite_state("a", number, writer="w1")).version

    async def main() -> list[int]:
        return list(await asyncio.gather(*(act(number) for number in range(200))))

    assert sorted(asyncio.run(main())) == list(range(2, 202))


def test_tasks_that_race(run: Run) -> None:
    """20 tasks write on the same version: one succeeds, the others are told the version that it made."""

    async def act(number: int) -> int:
        try:
            return (await run.awrite_state("a", number, writer="w0", expected_version=1)).version
        except Conflict as conflict:
            return -conflict.actual

    async def main() -> list[int]:
        return list(await asyncio.gather(*(act(number) for number in range(20))))

    assert sorted(asyncio.run(main())) == [-2] * 19 + [2]


def test_a_cancelled_write_may_have_committed(run: Run, gate: threading.Event) -> None:
    """It is cancelled on its way to the disk and is stored all the same; its request_id makes the repeat safe."""

    async def main() -> None:
        task = asyncio.create_task(run.awrite_state("a", 1, writer="w0", request_id="r1"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        again = await run.awrite_state("a", 1, writer="w0", request_id="r1")
        assert (again.version, again.seq) == (2, 4)
        assert (await run.awrite_state("a", 2, writer="w0")).version == 3

    asyncio.run(main())


def test_a_timeout_harms_no_neighbour(run: Run, gate: threading.Event) -> None:
    """A task that gives up waiting takes nothing from the others of its commit."""

    async def main() -> None:
        others = [asyncio.create_task(run.awrite_state("a", number, writer="w0")) for number in range(5)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.awrite_state("b", 1, writer="w0"), 0.05)
        gate.set()
        assert [written.version for written in await asyncio.gather(*others)] == [2, 3, 4, 5, 6]

    asyncio.run(main())


def test_sync_and_async_callers_share_one_order(run: Run) -> None:
    """Threads that write and tasks that write get versions from one row of numbers."""
    made: list[int] = []

    def act() -> None:
        made.extend(run.write_state("a", number, writer="w1").version for number in range(50))

    async def main() -> list[int]:
        thread = threading.Thread(target=act)
        thread.start()
        found = [(await run.awrite_state("a", number, writer="w2")).version for number in range(50)]
        await asyncio.to_thread(thread.join)
        return found

    found = asyncio.run(main())
    assert found == sorted(found)
    assert made == sorted(made)
    assert sorted(made + found) == list(range(2, 102))


def test_two_loops_share_a_store(run: Run) -> None:
    """A store is not bound to the event loop that used it first."""
    assert asyncio.run(run.awrite_state("a", 1, writer="w0")).version == 2
    assert asyncio.run(run.awrite_state("a", 2, writer="w0")).version == 3

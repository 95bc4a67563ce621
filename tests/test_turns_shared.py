"""Turns in threads that share one, and in asyncio: nothing of a draft is lost, a cancelled task leaves none behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from turn_cases import SCHEMA, in_threads, refused, told

from refold import Conflict, Run, Store
from refold_replay.verify import verify

Open = Callable[..., Store]


@pytest.fixture
def run(open_new: Open) -> Run:
    return open_new(SCHEMA).run("r")


def test_threads_share_a_turn(run: Run) -> None:
    """8 threads read and write in one turn: every write is a version, the draft never loses one."""
    with run.turn("ann") as turn:

        def work(number: int) -> None:
            for step in range(10):
                turn.write_state("log", [[number, step]])
                turn.write_state("spent", 1)
                turn.read_state("log")

        in_threads(work, 8)
        assert turn.read_state("spent").json == 80
    entries = run.peek("log").json
    assert run.peek("spent").json == 80
    assert len(entries) == 80
    assert [[step for who, step in entries if who == number] for number in range(8)] == [list(range(10))] * 8
    assert verify(run.store).findings == []


def test_turns_in_asyncio(run: Run) -> None:
    """`async with` begins and commits a turn; 20 tasks have a number each."""

    async def one(number: int) -> int:
        async with run.turn("ann") as turn:
            await turn.awrite_state("log", [number])
            await turn.awrite_state("status", "x")
            await turn.adelete_state("status")
            assert (await turn.aread_state("status")).absent
            await turn.aroll_back("not needed") if number % 2 else None
        return turn.number

    async def main() -> list[int]:
        return list(await asyncio.gather(*(quiet(number) for number in range(20))))

    async def quiet(number: int) -> int:
        while True:
            try:
                return await one(number)
            except Conflict:
                continue

    assert len(set(asyncio.run(main()))) == 20
    assert sorted(run.peek("log").json) == list(range(0, 20, 2))
    assert verify(run.store).findings == []


def test_a_cancelled_task_rolls_back(run: Run) -> None:
    """A task that is cancelled within its turn rolls back, as "cancelled", before the cancellation goes on."""

    async def work(began: asyncio.Event) -> None:
        async with run.turn("ann") as turn:
            await turn.awrite_state("count", 1)
            began.set()
            await asyncio.sleep(60)

    async def main() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(work(began))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [event.body for event in run.events(["turn.rolled_back"])] == [{"reason": "cancelled"}]

    asyncio.run(main())
    assert run.state().json() == {}
    assert refused(run) == [("count", "rolled_back", 1)]


@pytest.mark.parametrize("stage", ["begin", "commit"])
def test_a_cancel_while_the_store_works(run: Run, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task cancelled while its turn begins or commits: the store comes to an end, and the turn knows which."""
    run.write_state("status", "open", writer="ann")
    turn, gate, waits = run.turn("ann"), threading.Event(), threading.Event()
    append = run._backend.append

    def slow(rows: Any, *, durable: bool) -> None:
        if waits.is_set():
            assert gate.wait(30)
        append(rows, durable=durable)

    monkeypatch.setattr(run._backend, "append", slow)

    async def work() -> None:
        waits.set() if stage == "begin" else None
        async with turn:
            await turn.awrite_state("count", 1)
            waits.set()

    async def main() -> None:
        task = asyncio.create_task(work())
        while not waits.is_set():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.05)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    ended = {"begin": ("rolled back", {"status": "open"}), "commit": ("committed", {"status": "open", "count": 1})}
    assert (turn._state, run.state().json()) == ended[stage]
    assert len(told(run, "turn.committed", "turn.rolled_back")) == 1

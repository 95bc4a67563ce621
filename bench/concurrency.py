"""Many writers at once, where a flush costs 1 ms: what group commit brings."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from bench import peers
from bench.floors import PostgresFloor, SqliteFloor
from bench.lab import POSTGRES, SQLITE, SYNC_1MS, Lab, ratio_check
from bench.measure import Side
from bench.registry import Line, benchmark
from bench.subject import BenchState, Refold, new_store_url
from bench.values import DOCUMENTS, OWNER, key_names
from refold import open_store

WRITERS = 8
THREADS_AIM, PROCESSES_AIM = 2.5, 4.0
READY_S = 60.0  # a process that has not opened its store by then has failed
TURN_S = 120.0  # longest turn of a process in a round


def one_of(writes: list[Callable[[int], None]], pool: ThreadPoolExecutor) -> Callable[[int], None]:
    """Shares operations among writers, one thread each."""

    def operate(operations: int) -> None:
        share = max(1, operations // len(writes))
        for done in [pool.submit(write, share) for write in writes]:
            done.result()

    return operate


def keyed_writer(run: Any, writer: int) -> Callable[[int], None]:
    """Writes keys of its own into a run."""
    keys = [f"fact/{writer}-{number}" for number in range(10)]

    def write(operations: int) -> None:
        for number in range(operations):
            run.write_state(keys[number % 10], DOCUMENTS[number % len(DOCUMENTS)], writer=OWNER)

    return write


def tasks_writer(run: Any) -> Callable[[int], None]:
    """As many asyncio tasks as writers, each awaiting its writes."""

    async def task(writer: int, operations: int) -> None:
        for number in range(operations):
            await run.awrite_state(f"fact/{writer}", DOCUMENTS[number % len(DOCUMENTS)], writer=OWNER)

    async def all_tasks(operations: int) -> None:
        await asyncio.gather(*(task(writer, operations // WRITERS) for writer in range(WRITERS)))

    return lambda operations: asyncio.run(all_tasks(operations))


@benchmark("writers-threads", "8 writers at once, 1 ms sync, SQLite, one process")
def threads(lab: Lab) -> Iterator[Line]:
    """Throughput of 8 threads against one; beside it runs of their own, asyncio tasks, and bare connections."""
    if SQLITE not in lab.options.backends or SYNC_1MS not in lab.options.places:
        return
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(WRITERS))
        ours = Refold(lab, SQLITE)
        stack.callback(ours.close)
        apart = [ours.store.run(f"run-{writer}") for writer in range(WRITERS)]
        path = lab.fresh_file("floor")
        floors = [SqliteFloor(path, key_names(10), run=number) for number in range(1, WRITERS + 1)]
        for floor in floors:
            stack.callback(floor.close)
        together = Side(
            "8 writers", one_of([keyed_writer(ours.run, writer) for writer in range(WRITERS)], pool), least=80
        )
        sides = [
            Side("one writer", keyed_writer(ours.run, 99), least=40),
            together,
            Side("8 runs", one_of([keyed_writer(run, 0) for run in apart], pool), least=80),
            Side("8 tasks", tasks_writer(ours.run), least=80),
            Side("floor, one", floors[0].write, least=40),
            Side("floor, 8 connections", one_of([floor.write for floor in floors], pool), least=40),
        ]
        with lab.place(SYNC_1MS):
            times, counts = lab.compare(sides, target_s=0.1), lab.count(together, 400)
        line = Line("8 writing threads, one run", SQLITE, SYNC_1MS, counts=counts)
        line.checks.append(
            ratio_check(times, "8 writers", "one writer", THREADS_AIM, what="x the writes of one", sense=">=")
        )
        for name in ("8 runs", "8 tasks"):
            line.peers[f"refold, {name}"] = times.ratio("one writer", name).median
        line.peers["8 bare connections against one"] = times.ratio("floor, one", "floor, 8 connections").median
        line.microseconds = {name: times.microseconds(name) for name in times.rounds}
        yield line


def refold_process(url: str, number: int) -> Callable[[int], None]:
    """refold in a process: its own store object and its own run."""
    return keyed_writer(open_store(url, schema=BenchState).run(f"run-{number}"), 0)


def floor_process(url: str, number: int) -> Callable[[int], None]:
    """The floor in a process: its own connection and its own run."""
    return PostgresFloor(url, key_names(10), run=number).write


def eventsourcing_process(url: str, number: int) -> Callable[[int], None]:
    """eventsourcing in a process: its own application and aggregate."""
    return peers.EventSourcingPostgres(url, key_names(10)).write


MAKERS = {"refold": refold_process, "floor": floor_process, "eventsourcing": eventsourcing_process}


def serve(kind: str, url: str, number: int, orders: Connection) -> None:
    """A writing process: says that it is ready, then does as many operations as it is told, until it is told none."""
    write = MAKERS[kind](url, number)
    write(4)
    orders.send(0)
    while operations := orders.recv():
        write(operations)
        orders.send(operations)


class Crew:
    """The writing processes of one kind."""

    def __init__(self, kind: str, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for number in range(WRITERS):
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(kind, url, number, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)
            answer(mine, READY_S)

    def work(self, writers: int, operations: int) -> None:
        """Shares operations among some of the processes and waits for all."""
        share = max(1, operations // writers)
        for pipe in self._pipes[:writers]:
            pipe.send(share)
        for pipe in self._pipes[:writers]:
            answer(pipe, TURN_S)

    def close(self) -> None:
        """Tells all to end."""
        for pipe in self._pipes:
            pipe.send(0)
        for process in self._processes:
            process.join(timeout=READY_S)


def answer(pipe: Connection, limit_s: float) -> None:
    """Waits for a process, but not for ever."""
    if not pipe.poll(limit_s):
        raise TimeoutError(f"a writing process did not answer within {limit_s:.0f} s")
    pipe.recv()


@benchmark("writers-processes", "8 writers in their own runs, PostgreSQL, 8 processes, 1 ms sync")
def processes(lab: Lab) -> Iterator[Line]:
    """Throughput of 8 processes against one of them."""
    if POSTGRES not in lab.options.backends or SYNC_1MS not in lab.options.places:
        return
    kinds = {"refold": new_store_url(lab, POSTGRES), "floor": lab.fresh_database("floor")}
    PostgresFloor(kinds["floor"], key_names(10)).close()
    if lab.options.peers:
        kinds["eventsourcing"] = lab.fresh_database("eventsourcing")
    with ExitStack() as stack:
        sides = []
        for kind, url in kinds.items():
            crew = Crew(kind, url)
            stack.callback(crew.close)
            sides += [
                Side(f"{kind}, {writers}", partial(crew.work, writers), least=writers * 40) for writers in (1, WRITERS)
            ]
        with lab.place(SYNC_1MS):
            times = lab.compare(sides, target_s=0.15)
            counts = lab.count(sides[1], 800)
        line = Line("8 writing processes, own runs", POSTGRES, SYNC_1MS, counts=counts)
        line.checks.append(
            ratio_check(times, "refold, 8", "refold, 1", PROCESSES_AIM, what="x the writes of one", sense=">=")
        )
        for kind in [kind for kind in kinds if kind != "refold"]:
            line.peers[f"{kind}, 8 against one"] = times.ratio(f"{kind}, 1", f"{kind}, 8").median
        line.microseconds = {name: times.microseconds(name) for name in times.rounds}
        yield line

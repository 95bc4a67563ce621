"""Processes that read and write as fast as they can, and are killed. They are forked from one that has imported refold.

Commands on standard input, one a line: `start URL WRITER RUN NAME ACKS` answers with a process id; `kill PID` kills it
with signal 9 and answers when it is gone. A worker adds a line to its file ACKS after each call that was acknowledged:
`KEY VERSION SEQ`, for a transaction several of them. NAME begins its readers' names. Each value says how many reads
each of the process's threads had made in the run before the write began.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading

from refold import Conflict, Run, compile_schema, open_store

THREADS = 2
KEYS = ("a", "b", "c")
SCHEMA = compile_schema(
    {
        "keys": {
            **{name: {"owner": "anybody"} for name in KEYS},
            "log": {"owner": "anybody", "type": "array", "reducer": "append"},
        },
        "groups": {"anybody": [f"worker{n}" for n in range(8)]},
    }
)


def main() -> None:
    """Fork and kill as told."""
    for line in sys.stdin:
        command, *words = line.rstrip("\n").split("\t")
        if command == "start":
            pid = os.fork()
            if pid == 0:
                start(*words)
            print(pid, flush=True)  # noqa: T201  # the answer
        else:
            os.kill(int(words[0]), signal.SIGKILL)
            print(os.waitpid(int(words[0]), 0)[1], flush=True)  # noqa: T201


def start(url: str, writer: str, run_name: str, name: str, acks: str) -> None:
    """Work on one run with THREADS threads until killed."""
    run = open_store(url, SCHEMA).run(run_name)
    told = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    counts = dict.fromkeys((f"{name}.{n}" for n in range(THREADS)), 0)
    threads = [threading.Thread(target=work, args=(run, writer, reader, counts, told)) for reader in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(1)  # not reached unless a thread failed


def work(run: Run, writer: str, reader: str, counts: dict[str, int], told: int) -> None:
    """Reads, writes, conditional writes, transactions and appends in a random order, for ever."""
    chance = random.Random(reader)
    while True:
        what, key, pad = chance.random(), chance.choice(KEYS), "x" * chance.randrange(300)
        value = {"reads": dict(counts), "pad": pad}
        if what < 0.5:
            counts[reader] += run.read_state(key, reader=reader).recorded
            continue
        if what < 0.7:
            written = [run.write_state(key, value, writer=writer)]
        elif what < 0.8:
            try:
                written = [run.write_state(key, value, writer=writer, expected_version=run.peek(key).version)]
            except Conflict:
                continue
        elif what < 0.9:
            with run.transaction() as tx:
                for each in KEYS:
                    tx.write_state(each, value, writer=writer)
            written = tx.written
        else:
            written = [run.write_state("log", [pad], writer=writer)]
        line = " ".join(f"{one.key} {one.version} {one.seq}" for one in written)
        os.write(told, f"{line}\n".encode())


if __name__ == "__main__":
    main()

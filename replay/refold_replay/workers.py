"""Verification in several processes: stretches go out over pipes, findings come back.

Rules of this module
- A worker is a fresh interpreter that runs this module. It inherits no connection, and imports nothing of the caller's
  program. The store's URL goes in by its standard input, never by its arguments.
- One stretch at a time goes to each worker, so that a long run is shared evenly. A worker that dies ends its stretch
  with a finding, not with silence.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from refold_replay.findings import Finding
from refold_replay.stretches import Source, Stretch, verify_stretch
from refold_store.store import open_store

Result = tuple[int, list[Finding]]


def verify_apart(url: str, stretches: list[Stretch], workers: int) -> Iterator[tuple[Stretch, Result]]:
    """Verify stretches in other processes; results come as they are done."""
    todo: queue.SimpleQueue[Stretch | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Stretch, Result]] = queue.SimpleQueue()
    for stretch in stretches:
        todo.put(stretch)
    for _ in range(workers):
        todo.put(None)
    threads = [threading.Thread(target=_serve, args=(url, todo, done), daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for _ in stretches:
        yield done.get()
    for thread in threads:
        thread.join()


def _serve(url: str, todo: queue.SimpleQueue[Stretch | None], done: queue.SimpleQueue[tuple[Stretch, Result]]) -> None:
    """Feed one worker until nothing is left."""
    paths = [path for path in sys.path if path]
    process = subprocess.Popen(
        [sys.executable, "-m", "refold_replay.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        _write(process.stdin, url)
        while (stretch := todo.get()) is not None:
            done.put((stretch, _ask(process, stretch)))
    finally:
        process.communicate()


def _ask(process: subprocess.Popen[bytes], stretch: Stretch) -> Result:
    try:
        _write(process.stdin, asdict(stretch))
        assert process.stdout is not None
        answer = process.stdout.readline()
        count, findings = json.loads(answer)
    except (OSError, ValueError) as error:
        message = f"the process that verified seq {stretch.first} to {stretch.last} died ({error})"
        return 0, [Finding(stretch.tenant, stretch.name, stretch.first, "unreadable", message)]
    return count, [Finding(*found) for found in findings]


def _write(pipe: Any, message: object) -> None:
    pipe.write(json.dumps(message).encode() + b"\n")
    pipe.flush()


def main() -> None:
    """A worker: the URL, then one stretch a line; answers on standard output."""
    answers = sys.stdout.buffer
    with open_store(json.loads(sys.stdin.buffer.readline()), read_only=True, create=False) as store:
        source = Source(store._backend)
        for line in sys.stdin.buffer:
            count, findings = verify_stretch(source, Stretch(**json.loads(line)))
            _write(answers, [count, [[f.tenant, f.run, f.seq, f.damage, f.message] for f in findings]])


if __name__ == "__main__":
    main()

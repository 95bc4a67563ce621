"""What the tests of turns share: a schema, shorthands for a run's record, and processes that take turns.

`turn_cases.py JOB URL ARGUMENT` is one such process. It prints one line when it is ready, and one for what it made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refold import Conflict, Event, Run, compile_schema, open_store
from refold_store.errors import RefoldError
from refold_store.patch import apply
from refold_store.turn_errors import StateLocked, TurnFenced, TurnInvalid
from refold_store.watching import Change

SCHEMA = compile_schema(
    {
        "keys": {
            "count": {"owner": "all", "type": "integer"},
            "status": {"owner": "all", "type": "string"},
            "low": {"owner": "all", "type": "integer"},
            "high": {"owner": "all", "type": "integer"},
            "log": {"owner": "all", "type": "array", "reducer": "append"},
            "spent": {"owner": "all", "type": "integer", "reducer": "add"},
            "secret": {"owner": "all", "type": "string", "sensitive": True},
            "house": {"owner": "all", "scope": "tenant"},
            "hers": {"owner": "bob", "type": "integer"},
        },
        "groups": {"all": ["ann", "bob", "desk", *(f"w{number}" for number in range(8))]},
        "invariants": {"band": "low <= high"},
    }
)
WORKER = Path(__file__)


def told(run: Run, *kinds: str) -> list[Event]:
    """The events of some kinds, else all."""
    return list(run.events(kinds or None))


def brief(run: Run, *kinds: str) -> list[tuple[str, int | None]]:
    """(kind, turn) of events of some kinds, else of all but reads."""
    return [(event.kind, event.turn) for event in told(run, *kinds) if kinds or event.kind != "state.read"]


def refused(run: Run) -> list[tuple[str | None, str, Any]]:
    """(key, reason, update) of each refusal."""
    return [(one.key, one.body["reason"], one.body.get("update")) for one in told(run, "state.refused")]


class Client:
    """An observer that knows nothing but what it is told."""

    def __init__(self) -> None:
        self.document: Any = None
        self.version = -1
        self.seen: list[Any] = []
        """Each document it had, in order."""
        self.changes: list[Change] = []

    def __call__(self, change: Change) -> None:
        self.changes.append(change)
        if change.kind == "snapshot":
            self.document = change.document
        else:
            assert change.base == self.version, "nothing was left out"
            self.document = apply(self.document, change.operations or [])
        if change.version != self.version:
            self.seen.append(self.document)
        self.version = change.version


class Peer:
    """Another process at work on the same store."""

    def __init__(self, job: str, url: str, argument: object = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), job, url, str(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> Any:
        """What it says next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process ended without a word"
        return json.loads(line)

    def go(self) -> Any:
        """Let it go on; what it says then."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.hear()

    def kill(self) -> None:
        """End it at once, as kill -9 does."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Wait for its end."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(30)


def say(what: object) -> None:
    """Tell the test."""
    print(json.dumps(what), flush=True)  # noqa: T201  # the answer


def heard() -> None:
    """Wait for the test."""
    sys.stdin.readline()


def outcome(act: Callable[[], object]) -> str:
    """What came of a call, by the name of its error."""
    try:
        act()
    except RefoldError as error:
        return type(error).__name__
    return "done"


def drafts(run: Run, argument: str) -> None:
    """Begin a turn, draft, and stop there; then try to go on in every way."""
    turn = run.turn("ann", live=argument == "live").begin()
    turn.read_state("count")
    turn.write_state("count", 99)
    turn.write_state("log", ["lost"])
    turn.append("model.answered", body={"text": "99"}, durable=False)
    say([turn.number, turn.attempt])
    heard()
    asked = [{"id": "ok?"}]
    say([outcome(lambda: turn.append("note.added")), outcome(lambda: turn.interrupt(asked)), outcome(turn.commit)])


def numbers(run: Run, argument: str) -> None:
    """Take so many turns, one after the other; tell their numbers."""
    say("ready")
    heard()
    made = []
    for _ in range(int(argument)):
        with run.turn("ann") as turn:
            turn.write_state("log", [turn.number])
        made.append(turn.number)
    say(made)


def increments(run: Run, argument: str) -> None:
    """Count up so often, in turns that read and write; tell the versions."""
    say("ready")
    heard()
    made: list[int] = []
    while len(made) < int(argument):
        try:
            with run.turn("ann") as turn:
                read = turn.read_state("count")
                turn.write_state("count", 1 if read.absent else read.json + 1)
        except Conflict:
            continue
        made.append(turn.written[0].version)
    say(made)


def races(run: Run, argument: str) -> None:
    """Take over one turn and commit it, as all others try at once; tell who could."""
    say("ready")
    heard()
    won = 0
    for _ in range(20):
        try:
            with run.turn("ann", number=int(argument)) as turn:
                turn.write_state("log", [os.getpid()])
            won += 1
        except TurnFenced:
            continue
        except TurnInvalid:
            break
    say(won)


def sets(run: Run, _argument: str) -> None:
    """Set the live state whenever told to; tell how that went."""
    say("ready")
    while sys.stdin.readline():
        try:
            run.set_state({"status": "set"}, writer="desk")
        except StateLocked as error:
            say(["locked", error.turn])
        else:
            say(["set", None])


JOBS = {"drafts": drafts, "numbers": numbers, "increments": increments, "races": races, "sets": sets}


def in_threads(act: Callable[[int], object], count: int) -> list[Any]:
    """What so many threads made of a call, each given its number."""
    made: dict[int, Any] = {}

    def run(number: int) -> None:
        made[number] = act(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[number] for number in range(count)]


if __name__ == "__main__":
    with open_store(sys.argv[2], SCHEMA) as store:
        JOBS[sys.argv[1]](store.run("r"), sys.argv[3])

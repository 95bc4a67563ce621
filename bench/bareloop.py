"""The bare loop: what an agent loop of one's own does on the bare driver, with the same scripted model.

A message is kept in a list and stored as one row. Four durable commits a message, as many as the engine has: the
question; the first answer; the results of its calls with the second answer; the versioned write. The three reads are
point reads. It rebuilds nothing, checks nothing, and goes on in no other process.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import orjson

from bench.floors import (
    AT,
    POSTGRES_POINT,
    POSTGRES_WRITE,
    SQLITE_INSERT,
    SQLITE_POINT,
    SQLITE_UPSERT,
    SQLITE_VERSION,
    WRITER,
    PostgresFloor,
    SqliteFloor,
)
from bench.lab import SQLITE, Lab
from bench.team import QUESTION, READS, WRITTEN, Scripted
from refold_engine.ports import Message, ModelAnswer

MESSAGES = "CREATE TABLE messages (seq {identity}, run integer NOT NULL, body {blob} NOT NULL)"
SQLITE_SAY = "INSERT INTO messages (run, body) VALUES (?, ?)"
POSTGRES_SAY = "INSERT INTO messages (run, body) SELECT %s, unnest(%s::bytea[])"


class BareLoop:
    """The loop; its store is one of the two below."""

    name = "bare loop"

    def __init__(self) -> None:
        self.model = Scripted()
        self._runs = itertools.count(1)
        self._times = itertools.count(AT)

    def start(self) -> tuple[int, list[Message]]:
        """A fresh run that holds what its agent will read: its number, and its conversation."""
        run = next(self._runs)
        for key in READS:
            self.put(run, key, orjson.dumps({"no": run, "note": "x" * 270}))
        return run, []

    def talk(self, place: tuple[int, list[Message]], turns: int) -> None:
        """So many messages, each answered."""
        run, said = place
        for _ in range(turns):
            said.append(Message("user", QUESTION))
            self.say(run, [body_of(said[-1])])
            answer = self._ask(said)
            self.say(run, [body_of(said[-1])])
            write = answer.tool_calls[-1].arguments["value"]
            results = [self.get(run, call.arguments["key"]) for call in answer.tool_calls[:-1]]
            for call, text in zip(answer.tool_calls, [*results, b'"written"'], strict=True):
                said.append(Message("tool", text.decode(), tool_call_id=call.id))
            answer = self._ask(said)
            self.say(run, [body_of(one) for one in said[-len(READS) - 2 :]])
            self.put(run, WRITTEN, orjson.dumps(write, option=orjson.OPT_SORT_KEYS))

    def _ask(self, said: list[Message]) -> ModelAnswer:
        answer = self.model.reply(said[-1])
        said.append(Message("assistant", answer.content, answer.tool_calls))
        return answer

    def alone(self, place: tuple[int, list[Message]], turns: int) -> None:
        """So many times three point reads and a versioned write, without a model."""
        run = place[0]
        for number in range(turns):
            for key in READS:
                orjson.loads(self.get(run, key))
            self.put(run, WRITTEN, orjson.dumps({"no": number, "note": "x" * 270}))

    def get(self, run: int, key: str) -> bytes:
        """A point read."""
        raise NotImplementedError

    def put(self, run: int, key: str, text: bytes) -> None:
        """A durable versioned write."""
        raise NotImplementedError

    def say(self, run: int, texts: list[bytes]) -> None:
        """Messages, durable together."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes its connection."""
        raise NotImplementedError


class SqliteLoop(BareLoop):
    """On the bare sqlite3 driver."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._floor = SqliteFloor(path, [])
        self._execute = self._floor.connection.execute
        self._execute(MESSAGES.format(identity="INTEGER PRIMARY KEY", blob="BLOB"))

    def get(self, run: int, key: str) -> bytes:
        """As `SqliteFloor.read`."""
        text: bytes = self._execute(SQLITE_POINT, (run, key)).fetchone()[1]
        return text

    def put(self, run: int, key: str, text: bytes) -> None:
        """As `SqliteFloor.write`."""
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        found = execute(SQLITE_VERSION, (run, key)).fetchone()
        version = found[0] + 1 if found else 1
        execute(SQLITE_INSERT, (run, key, version, WRITER, next(self._times), text))
        execute(SQLITE_UPSERT, (run, key, version, text))
        execute("COMMIT")

    def say(self, run: int, texts: list[bytes]) -> None:
        """One transaction."""
        if len(texts) == 1:
            self._execute(SQLITE_SAY, (run, texts[0]))
            return
        self._execute("BEGIN IMMEDIATE")
        self._floor.connection.executemany(SQLITE_SAY, [(run, text) for text in texts])
        self._execute("COMMIT")

    def close(self) -> None:
        """Closes its connection."""
        self._floor.close()


class PostgresLoop(BareLoop):
    """On the bare psycopg driver."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._floor = PostgresFloor(url, [])
        connection = self._floor.connection
        identity = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
        connection.execute(MESSAGES.format(identity=identity, blob="bytea").encode())
        self._cursor = connection.cursor(binary=True)

    def get(self, run: int, key: str) -> bytes:
        """As `PostgresFloor.read`."""
        self._cursor.execute(POSTGRES_POINT, (run, key), prepare=True)
        row: Any = self._cursor.fetchone()
        return bytes(row[1])

    def put(self, run: int, key: str, text: bytes) -> None:
        """As `PostgresFloor.write`."""
        self._cursor.execute(POSTGRES_WRITE, (run, key, text, WRITER, next(self._times)), prepare=True)
        self._cursor.fetchone()

    def say(self, run: int, texts: list[bytes]) -> None:
        """One statement."""
        self._cursor.execute(POSTGRES_SAY, (run, texts), prepare=True)

    def close(self) -> None:
        """Closes its connection."""
        self._floor.close()


def body_of(message: Message) -> bytes:
    """A message as its row holds it."""
    return orjson.dumps(message.to_json())


def bare_loop(lab: Lab, backend: str) -> BareLoop:
    """A loop on an empty store of its own."""
    if backend == SQLITE:
        return SqliteLoop(lab.fresh_file("bareloop"))
    return PostgresLoop(lab.fresh_database("bareloop"))

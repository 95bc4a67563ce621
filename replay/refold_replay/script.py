"""A recorded run as items for the committer: what the import of one run appends, decided line by line.

Rules of this module
- Nothing is stored here. Every line becomes one item, or an error that names the line; a run with an error is dropped.
- Writes take the path live ones take: owner, type, basis here; expected version, size, invariants in the commit.
- The versions the file names are checked against its own order of writes, before anything is stored.
- `refs.source_seq` of every event is the line's seq. What the columns do not hold stays: in the body, and for reads and
  writes in `refs.source`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from refold_replay.hashing import text_hash
from refold_replay.seeds import Seed
from refold_replay.sources import LineError, SourceRun
from refold_replay.times import clock_of
from refold_store.errors import BasisRequired, NotOwner, RefoldError, Refused
from refold_store.events import KIND_ID, KINDS, READ, REFUSED, SEEN_NOW, Draft
from refold_store.jsontext import encode
from refold_store.keys import Key, Prepared
from refold_store.names import check_name
from refold_store.requests import Op, Unit
from refold_store.schema import Schema

IMPORTER = "import"
"""Who opens an imported run, and hands in its seed."""

_COLUMNS = {"run", "seq", "ts", "kind", "agent", "turn"}
_READ_WORDS = _COLUMNS | {"key", "version", "value"}
_WRITE_WORDS = _COLUMNS | {
    "key",
    "version",
    "prev_version",
    "value",
    "deleted",
    "reads",
    "on_behalf_of",
    "txn",
    "basis",
}
_PLAIN = {"turn": "turn.started", "message": "message.added", "tool_call": "tool.returned", "handoff": "handoff.made"}
_TURN_MAX = 2**63 - 1


class _Wrong(RefoldError):
    """A line that does not say what its kind needs."""


class Script:
    """The items of one run. `errors` is empty if it can be stored."""

    def __init__(self, source: SourceRun, schema: Schema, seed: Seed, *, inferred: bool) -> None:
        self.source = source
        self.schema = schema
        self.items: list[Unit | Draft] = []
        self.unit_lines: list[int] = []
        """The line of each unit, in order: where a refusal of the store belongs."""
        self.kinds: Counter[str] = Counter()
        self.refusals = 0
        self.reads_compared = 0
        self.reads_different: list[LineError] = []
        self.first_clock: int | None = None
        self._inferred = inferred
        self._versions: dict[str, list[bytes | None]] = {}
        self._clock: int | None = None
        self._timeless = 0
        self._txn: object = None
        self._told: dict[object, int] = {}
        self._seed = seed
        self._initial: list[Op] = []
        self._kinds: Mapping[str, Callable[[int, dict[str, Any]], None]] = {
            "read": self._read,
            "write": self._write,
            "failure": self._failure,
            **dict.fromkeys(_PLAIN, self._plain),
        }
        for at, (number, line) in enumerate(source.lines, 1):
            self._take(number, at, line)
        self._end()

    @property
    def errors(self) -> list[LineError]:
        """What is wrong with the run."""
        return self.source.errors

    @property
    def seeded(self) -> list[str]:
        """The keys of the seed that the run names."""
        return [op.name for op in self._initial]

    def _end(self) -> None:
        """Put the seed's values first; give lines before the first time that time, so that none steps back."""
        for item in self.items[: self._timeless]:
            item.clock = self.first_clock
        if self._initial:
            self._initial.sort(key=lambda op: op.name)
            self.items.insert(0, Unit(self._initial, clock=self.first_clock, whole=True))
            self.unit_lines.insert(0, self.source.line)
            self.kinds["state.written"] += len(self._initial)

    def _of(self, name: str) -> list[bytes | None]:
        """The versions of a key so far, a seed's first: the text of each value, None for a delete."""
        found = self._versions.get(name)
        if found is None:
            check_name("key", name)
            found = self._versions[name] = []
            if name in self._seed.entries:
                self._plant(name, found)
        return found

    def _plant(self, name: str, versions: list[bytes | None]) -> None:
        entry = self._seed.entries[name]
        where = f"{self._seed.file}:{entry.line}"
        versions.append(None)
        try:
            key = self._key(name)
            prepared = _prepared(key, name, IMPORTER, entry.value())
        except Refused as error:
            raise _Wrong(f"the seed at {where} is refused: {error}") from error
        if entry.owner is not None and not self._inferred and entry.owner != key.owner:
            raise _Wrong(f"the seed at {where} names the owner {entry.owner!r}, the schema {key.owner!r}")
        versions[0] = prepared.text
        basis = f"seed {where}" if key.basis_required else None
        self._initial.append(Op(name, key, IMPORTER, prepared, basis, 0, None, {"initial": True}))

    def _take(self, number: int, at: int, line: dict[str, Any]) -> None:
        try:
            seq = line.get("seq")
            if seq != at or type(seq) is not int:
                raise _Wrong(f'"seq" is {seq!r}, but {at} comes next: within a run it counts 1, 2, 3 ...')
            kind = line.get("kind")
            take = self._kinds.get(kind) if isinstance(kind, str) else None
            if take is None:
                raise _Wrong(f'"kind" is {kind!r}; one of: {", ".join(self._kinds)}')
            check_name("agent", line.get("agent"))
            if line.get("ts") is not None:
                self._clock = clock_of(line["ts"])
                if self.first_clock is None:
                    self.first_clock, self._timeless = self._clock, len(self.items)
            if line["kind"] != "write":
                self._txn = None
            take(number, line)
        except (RefoldError, ValueError) as error:
            self.source.fault(number, str(error))

    # --- writes ------------------------------------------------------------------------------

    def _write(self, number: int, line: dict[str, Any]) -> None:
        name, value, deleted = check_name("key", line.get("key")), line.get("value"), line.get("deleted", False)
        actor = check_name("agent", line["agent"] if line.get("on_behalf_of") is None else line["on_behalf_of"])
        if deleted is not None and type(deleted) is not bool:
            raise _Wrong(f'"deleted" is true or false, not {deleted!r}')
        if deleted and value is not None:
            raise _Wrong('a line with "deleted" has the value null')
        if not deleted and "value" not in line:
            raise _Wrong('a write has a "value"')
        based_on = self._pairs(line.get("reads"), "reads")
        versions = self._of(name)
        previous, version, newest = line.get("prev_version"), line.get("version"), len(versions)
        if previous is not None and (type(previous) is not int or previous != newest):
            raise _Wrong(f'"prev_version" is {previous!r}, but key {name!r} is at version {newest} here')
        if version is not None and (type(version) is not int or version != newest + 1):
            raise _Wrong(f'"version" is {version!r}, but this write of {name!r} makes version {newest + 1}')
        versions.append(None)
        key = self._key(name, actor)
        self._check_owner(key, name, line["agent"], actor)
        basis = line.get("basis")
        if basis is not None and not isinstance(basis, str):
            raise _Wrong('"basis" is text')
        if basis is None and key.basis_required:
            raise BasisRequired(key=name, writer=actor)
        prepared = None if deleted else _prepared(key, name, actor, value)
        if prepared is not None:
            versions[-1] = prepared.text
        refs = self._refs(line, _WRITE_WORDS, line["agent"] if line["agent"] not in (key.owner, actor) else None)
        op = Op(name, key, actor, prepared, basis, previous, based_on, refs)
        self._place(number, line.get("txn"), op, _turn(line))

    def _key(self, name: str, actor: str | None = None) -> Key:
        key = self.schema.key(name)
        if key.scope != "run":
            raise Refused(
                f"it has scope {key.scope!r}; an import writes keys of scope 'run' only", key=name, writer=actor
            )
        if key.depends_on_previous:
            raise Refused(
                f"its reducer is {key.reducer.name!r}, and the file gives whole values; import it under `last`",
                key=name,
                writer=actor,
            )
        return key

    def _check_owner(self, key: Key, name: str, agent: str, actor: str) -> None:
        """The actor may write, and the agent the file names is the owner (or a member that acts itself)."""
        if actor not in key.actors:
            raise NotOwner(key=name, writer=actor, owner=key.owner, members=self.schema.groups.get(key.owner, ()))
        if not self._inferred and agent != key.owner and agent not in key.actors:
            raise NotOwner(key=name, writer=agent, owner=key.owner, members=self.schema.groups.get(key.owner, ()))

    def _place(self, number: int, txn: object, op: Op, turn: int | None) -> None:
        """A unit of its own, or one more write of the transaction the line before belongs to."""
        if txn is None:
            self._txn = None
            self._unit(number, [op], turn, whole=False)
            return
        if type(txn) not in (int, str):
            raise _Wrong(f'"txn" is a number or a text, not {txn!r}')
        if txn != self._txn:
            self._txn = None
            if txn in self._told:
                raise _Wrong(
                    f"txn {txn!r} stands at line {self._told[txn]} too: the writes of a transaction stand together"
                )
            self._txn, self._told[txn] = txn, number
            self._unit(number, [op], turn, whole=True)
            return
        unit = self.items[-1]
        assert isinstance(unit, Unit)
        assert isinstance(unit.ops, list)
        if any(other.name == op.name for other in unit.ops):
            raise _Wrong(f"txn {txn!r} writes key {op.name!r} twice; a transaction names a key once")
        if unit.turn != turn:
            raise _Wrong(f"txn {txn!r} began in turn {unit.turn}, not {turn}: a transaction has one turn")
        if (self.first_clock if unit.clock is None else unit.clock) != self._clock:
            raise _Wrong(f'txn {txn!r} began at another "ts": a transaction has one time')
        unit.ops.append(op)
        self._count(op)

    def _unit(self, number: int, ops: list[Op], turn: int | None, *, whole: bool) -> None:
        self.items.append(Unit(ops, turn=turn, clock=self._clock, whole=whole))
        self.unit_lines.append(number)
        for op in ops:
            self._count(op)

    def _count(self, op: Op) -> None:
        self.kinds["state.deleted" if op.prepared is None else "state.written"] += 1

    # --- reads and the rest ------------------------------------------------------------------

    def _read(self, number: int, line: dict[str, Any]) -> None:
        name, version = check_name("key", line.get("key")), line.get("version")
        if type(version) is not int or version < 0:
            raise _Wrong(f'a read names the "version" it saw, from 0 for absent; got {version!r}')
        versions = self._of(name)
        self._exists(name, version)
        refs = self._refs(line, _READ_WORDS, None)
        if "value" in line and not line.get("partial"):
            shown = encode(line["value"])
            refs["shown"] = text_hash(shown)
            self.reads_compared += 1
            stored = versions[version - 1] if version else None
            if shown != stored and (stored is not None or line["value"] is not None):
                message = f"the read of {name!r} shows another value than version {version} holds"
                self.reads_different.append(LineError(self.source.file, number, message, self.source.name))
        self._draft(READ, line, refs, key=name, version=version, seen_seq=SEEN_NOW)

    def _exists(self, name: str, version: int) -> None:
        newest = len(self._of(name))
        if version > newest:
            hint = "" if newest else "; a key that exists before the run comes from a seed (--seed)"
            raise _Wrong(f"version {version} of {name!r} does not exist here; the newest is {newest}{hint}")

    def _failure(self, _number: int, line: dict[str, Any]) -> None:
        if line.get("what") != "write_rejected":
            self._draft(KIND_ID["failure.raised"], line, {"source_seq": line["seq"]}, body=_rest(line, _COLUMNS))
            return
        keys = line.get("keys", [])
        if not isinstance(keys, list):
            raise _Wrong('"keys" is a list of keys')
        for key in keys:
            self._of(check_name("key", key))
        refs: dict[str, Any] = {"source_seq": line["seq"]}
        if (based_on := self._pairs(line.get("reads"), "reads")) is not None:
            refs["based_on"] = [list(pair) for pair in based_on]
        if type(line.get("prev_version")) is int:
            refs["expected"] = line["prev_version"]
        text = line.get("text")
        body = _rest(line, _COLUMNS | {"text", "reads", "prev_version"})
        body |= {"reason": "source", "message": text if isinstance(text, str) else "", "keys": keys}
        key = keys[0] if len(keys) == 1 else None
        owner = self.schema.key(key).owner if key is not None and key in self.schema else None
        self._draft(REFUSED, line, refs, key=key, owner=owner, body=body)
        self.refusals += 1

    def _plain(self, _number: int, line: dict[str, Any]) -> None:
        if isinstance(line.get("key"), str) and type(line.get("version")) is int:
            self._exists(line["key"], line["version"])
        number = KIND_ID[_PLAIN[line["kind"]]]
        self._draft(number, line, {"source_seq": line["seq"]}, body=_rest(line, _COLUMNS))

    def _draft(self, kind: int, line: dict[str, Any], refs: dict[str, Any], **columns: Any) -> None:
        turn = _turn(line)
        body = columns.pop("body", None)
        if body is not None:
            if turn is None and line.get("turn") is not None:
                body["turn"] = line["turn"]
            columns["body"] = encode(body)
        text = encode(refs).decode()
        self.items.append(Draft(kind, line["agent"], turn=turn, refs=text, clock=self._clock, **columns))
        self.kinds[KINDS[kind]] += 1

    def _refs(self, line: dict[str, Any], known: set[str], agent: str | None) -> dict[str, Any]:
        """`source_seq`, and what the columns do not hold."""
        rest = _rest(line, known)
        if agent is not None:
            rest["agent"] = agent
        if line.get("turn") is not None and _turn(line) is None:
            rest["turn"] = line["turn"]
        return {"source_seq": line["seq"], "source": rest} if rest else {"source_seq": line["seq"]}

    def _pairs(self, given: object, word: str) -> tuple[tuple[str, int], ...] | None:
        if given is None:
            return None
        pairs = []
        for pair in given if isinstance(given, list) else [None]:
            if not isinstance(pair, list) or len(pair) != 2 or type(pair[1]) is not int or pair[1] < 0:
                raise _Wrong(f'"{word}" is a list of [key, version], not {given!r}')
            self._exists(check_name("key", pair[0]), pair[1])
            pairs.append((pair[0], pair[1]))
        return tuple(pairs)


def _rest(line: dict[str, Any], known: set[str]) -> dict[str, Any]:
    if line.keys() <= known:
        return {}
    return {word: value for word, value in line.items() if word not in known}


def _turn(line: dict[str, Any]) -> int | None:
    """The turn, if it is a number the column holds; another label stays in the body or `refs.source`."""
    turn = line.get("turn")
    return turn if type(turn) is int and 0 <= turn <= _TURN_MAX else None


def _prepared(key: Key, name: str, writer: str, value: object) -> Prepared:
    try:
        prepared = key.prepare(value)
    except Refused as error:
        error.key, error.writer = name, writer
        raise
    prepared.typed = None  # under `last` nobody asks for it again, and a run may be long
    return prepared

"""The state as an agent's turn reads and writes it: keys of the run, and keys shared by a tenant or by all.

Rules of this module
- A key of the run is drafted in the turn. A shared key lies in a run of its own: what a turn writes to it is drafted
  here, goes on the record with the event that ends the turn, and is written there once that has happened. So a turn
  that rolls back adds nothing, and a child's writes count with its parent's.
- What is owed is written before the run does anything else, in one transaction of each scope (one more where a key is
  written again), under request ids made of run and turn: after a crash it is written once. Each write names the run
  and the turn it comes from.
- A shared key that accumulates takes every contribution onto whatever is newest. One that is overwritten must still be
  at the version the turn saw, else the write is refused: nobody's value is lost unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from refold_engine.outcomes import Owed
from refold_engine.ports import Json
from refold_store import jsontext
from refold_store.drafting import Drafting, DraftRead
from refold_store.errors import Conflict, InvalidValue, NameInvalid, Refused, TooLarge, UnknownKey
from refold_store.keys import Key
from refold_store.reads import Read
from refold_store.requests import Op
from refold_store.run import Run
from refold_store.turns import Turn
from refold_store.writing import checked_op, refuse, request_of

RESERVED = "_"
"""What names of the engine's begin with; no key may."""


class TurnState:
    """The state in one turn of one agent. Threads may read; one writes at a time."""

    def __init__(self, turn: Turn, above: TurnState | None = None) -> None:
        self._turn = turn
        self._schema = turn.run.schema()
        self._drafting: Drafting = Drafting(None if above is None else above._drafting)
        self._seen: dict[str, int] = {} if above is None else above._seen
        """Versions of shared keys that the turn has seen last, with the turns it is in."""

    def peek(self, key: str) -> Read | DraftRead:
        """A key as this turn sees it, not recorded."""
        return self._drafted(key) or self._turn.peek(key)

    def read(self, key: str) -> Read | DraftRead:
        """A key as this turn sees it, on the record as read."""
        read = self._turn.read_state(key)
        if self._shared(key) is not None:
            self._seen[key] = read.version
        return self._drafted(key) or read

    def note(self, read: Read | DraftRead, floor: int) -> None:
        """Put a peek on the record as a read. `floor`: a seq the run had reached before the peek."""
        scope = None if (declared := self._shared(read.key)) is None else declared.scope
        if scope is not None:
            self._seen[read.key] = read.version
        self._turn.note_read(read, seen_seq=max(read.seen_seq, 0 if scope else floor), scope=scope)

    def write(self, key: str, value: object, basis: str | None = None) -> None:
        """Write a key as this turn's agent. Raises a Refused, which is recorded."""
        if key.startswith(RESERVED):
            reserved(self._turn.run, key, value, self._turn.agent, turn=self._turn.number)
        if self._shared(key) is None:
            self._turn.write_state(key, value, basis=basis)
            return
        run, turn, agent = self._turn.run, self._turn.number, self._turn.agent
        op = checked_op(run, self._schema, key, value, agent, basis, None, None, turn=turn)
        try:
            self._draft(op)
        except Refused as error:
            error.key, error.writer = key, agent
            refuse(run, self._schema, error, op.key, value, turn=turn)

    def _draft(self, op: Op) -> None:
        if self._drafting.find(op.name) is not None:
            self._add(op, None, None)
            return
        read = self._turn.run.peek(op.name)
        seen = None if op.key.depends_on_previous else self._seen.get(op.name)
        if seen is not None and seen != read.version:
            by = read.written_by
            raise Conflict(key=op.name, writer=op.writer, expected=seen, actual=read.version, actual_writer=by)
        self._add(op, read, seen)

    def _add(self, op: Op, under: Read | None, seen: int | None) -> None:
        saved = self._drafting.saved()
        self._drafting.add(op, under, seen)
        entry = self._drafting.find(op.name)
        text = None if entry is None else entry.value_text()
        if text is not None and len(text) > op.key.max_bytes:
            self._drafting.restore(saved)
            raise TooLarge(size=len(text), max_bytes=op.key.max_bytes)

    def look(self) -> dict[str, tuple[int, int, bytes]]:
        """{key: (version, drafts, value text)} of the shared keys that hold a value, families apart. Not recorded."""
        found: dict[str, tuple[int, int, bytes]] = {}
        for key in self._schema.keys:
            if key.scope != "run" and key.family is None:
                read = self.peek(key.name)
                if not read.absent and not read.erased:
                    drafts = read.ground[1] - read.version if isinstance(read, DraftRead) else 0
                    found[key.name] = read.version, drafts, read.text
        return found

    def join(self, child: TurnState) -> None:
        """Take over what a child, which has committed, wrote to shared keys."""
        self._drafting.absorb(child._drafting)

    def owed(self) -> list[list[Json]]:
        """What is to be written to shared keys once the turn has committed, as `Owed.writes`."""
        self._drafting.bases()
        return [[op.writer, op.name, _update(op), op.basis, _expected(op)] for op in self._drafting.ops]

    def _drafted(self, key: str) -> DraftRead | None:
        entry = self._drafting.find(key)
        if entry is None:
            return None
        return DraftRead(key, entry, seen_seq=0, recorded=False, written_by=self._turn.agent)

    def _shared(self, key: str) -> Key | None:
        """The key, if it is a shared one."""
        try:
            found = self._schema.key(key)
        except (UnknownKey, NameInvalid):
            return None  # the turn says so
        return None if found.scope == "run" else found


def _update(op: Op) -> Json:
    assert op.prepared is not None, "agents delete nothing"
    return jsontext.decode(op.prepared.text)


def _expected(op: Op) -> int | None:
    return None if op.key.depends_on_previous else op.expected


def pay(run: Run, owed: Owed) -> None:
    """Write to shared keys what a turn of this run owes. A second time does nothing.

    Raises StoreUnavailable and the like: it is still owed. A Refused is raised, too, and on record in this run and in
    that of the scope; then it is owed no more.
    """
    schema = run.schema()
    scopes: dict[str, list[Sequence[Json]]] = {}
    refused: list[Refused] = []
    for write in owed.writes:
        try:
            scopes.setdefault(schema.key(write[1]).scope, []).append(write)
        except UnknownKey as error:  # the configuration has changed since
            error.writer = write[0]
            refused.append(error)
    for scope, writes in scopes.items():
        try:
            _pay(run, scope, owed.turn, writes)
        except Refused as error:
            refused.append(error)
    for one in refused:
        body = {"of": "memory", "turn": owed.turn, "key": one.key, "message": str(one)}
        run.append("failure.raised", actor=one.writer, body=body)
    if refused:
        raise refused[0]


def _pay(run: Run, scope: str, turn: int, writes: Sequence[Sequence[Json]]) -> None:
    schema = run.schema()
    home = run._home(schema.key(writes[0][1]))
    refs: dict[str, Any] = {"run": run.name, "turn": turn} | ({"tenant": run.tenant} if scope == "global" else {})
    name = sha256(jsontext.encode([run.tenant, run.name, turn])).hexdigest()[:32]
    made: dict[str, int] = {}
    for number, batch in enumerate(_each_key_once(writes), 1):
        ops = []
        for writer, key, update, basis, expected in batch:
            at = expected if key not in made or schema.key(key).depends_on_previous else made[key]
            op = checked_op(home, schema, key, update, writer, basis, at, None)
            op.refs = refs
            ops.append(op)
        request = request_of(home, schema, ops, f"turn:{name}:{number}", None, whole=True)
        made |= {written.key: written.version for written in run._committer.submit(request)[0]}


def _each_key_once(writes: Sequence[Sequence[Json]]) -> list[list[Sequence[Json]]]:
    """The writes in their order, parted so that no part names a key twice."""
    parts: list[list[Sequence[Json]]] = []
    for write in writes:
        if not parts or any(one[1] == write[1] for one in parts[-1]):
            parts.append([])
        parts[-1].append(write)
    return parts


def check_initial(run: Run, initial: Mapping[str, object], by: str) -> None:
    """What a client may begin a run with: no name of the engine's, nothing that others share. Raises a Refused."""
    schema = run.schema()
    for key, value in initial.items():
        if key.startswith(RESERVED):
            reserved(run, key, value, by)
        if key in schema and (declared := schema.key(key)).scope != "run":
            text = f"{key!r} is shared ({declared.scope}): a run does not begin with it; its owner's agents write it"
            refuse(run, schema, InvalidValue(text, path=key, key=key, writer=by), declared, value)


def reserved(run: Run, key: str, value: object, writer: str, *, turn: int | None = None) -> None:
    """Refuse a write of a name that is the engine's. Raises InvalidValue, recorded."""
    text = f"{key!r} begins with {RESERVED!r}, as only names of the engine's do"
    refuse(run, run.schema(), InvalidValue(text, path=key, key=key, writer=writer), None, value, turn=turn)

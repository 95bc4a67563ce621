"""A run: the job that agents work on, and every call about it.

Rules of this module
- The order of checks: owner, the update's type, basis; then, on the newest head, expected version, reducer, size,
  invariants. Every refusal is recorded.
- A read never opens a run; a write, or a refused write, does.
- Sync calls may commit inline. Awaitable calls hand the same request to the committer's thread and wait.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from refold_store import jsontext
from refold_store.backend import MAX_SEQ, Found
from refold_store.errors import (
    BasisRequired,
    ConfigError,
    InvalidValue,
    NotExact,
    NotOwner,
    ReadOnlyStore,
    Refused,
    TransactionInvalid,
    UnknownKey,
)
from refold_store.events import KIND_ID, READ, SEEN_NOW, Draft, Event, Row
from refold_store.fold import value_text
from refold_store.heads import declared_schemas, fold_from_frame
from refold_store.keys import Key
from refold_store.listing import event_of, follow, run_info
from refold_store.moments import resolve
from refold_store.names import check_name
from refold_store.plan import refusal
from refold_store.reads import Read, ReadRecord, RunInfo, State, as_time
from refold_store.requests import Op, Request, Unit, Written
from refold_store.schema import Schema
from refold_store.transaction import Transaction, payload_of

if TYPE_CHECKING:
    from refold_store.store import Store

SCOPES = {"run": 0, "tenant": 1, "global": 2}
BasedOn = Iterable["Read | Written | tuple[str, int]"]


class Run:
    """One run of a store. Making it touches nothing; the first write opens the run."""

    def __init__(self, store: Store, name: str, tenant: str, scope: int = 0) -> None:
        self.store = store
        self.name = check_name("run", name)
        self.tenant = check_name("tenant", tenant)
        self.scope = scope
        self._backend = store._backend
        self._committer = store._committer
        self._head = store._heads.get(tenant, scope, name)
        self._fixed = store.schema
        self._declared: tuple[int, Schema] | None = None

    # --- writing -----------------------------------------------------------------------------

    def write_state(
        self,
        key: str,
        value: object,
        *,
        writer: str,
        basis: str | None = None,
        expected_version: int | None = None,
        based_on: BasedOn | None = None,
        request_id: str | None = None,
        turn: int | None = None,
    ) -> Written:
        """Write one key: value = reducer(previous value, `value`). Returns the version it made, once it is durable.

        Raises a Refused (NotOwner, UnknownKey, InvalidValue, BasisRequired, Conflict ...); the refusal is recorded.
        `expected_version` 0 means never written. The same `request_id` with the same payload returns the first result.
        """
        op = self._op(key, value, writer, basis, expected_version, based_on)
        if op.key.scope != "run" and self.scope == 0:
            return self._home(op.key).write_state(
                key, value, writer=writer, basis=basis, expected_version=expected_version,
                based_on=based_on, request_id=request_id, turn=turn,
            )  # fmt: skip
        if op.key.needs_previous and op.key.stores == "value":
            self._guess(op)
        return self._committer.submit(self._request((op,), request_id, turn))[0][0]

    async def awrite_state(
        self,
        key: str,
        value: object,
        *,
        writer: str,
        basis: str | None = None,
        expected_version: int | None = None,
        based_on: BasedOn | None = None,
        request_id: str | None = None,
        turn: int | None = None,
    ) -> Written:
        """`write_state` for async callers. A cancelled await may have committed; a request_id makes a repeat safe."""
        op = self._op(key, value, writer, basis, expected_version, based_on)
        home = self if self.scope else self._home(op.key)
        request = home._request((op,), request_id, turn)
        return (await asyncio.wrap_future(self._committer.submit_later(request)))[0][0]

    def delete_state(
        self,
        key: str,
        *,
        writer: str,
        basis: str | None = None,
        expected_version: int | None = None,
        based_on: BasedOn | None = None,
        request_id: str | None = None,
        turn: int | None = None,
    ) -> Written:
        """Delete a key: a new version without a value. Its history stays."""
        op = self._op(key, DELETE, writer, basis, expected_version, based_on)
        home = self if self.scope else self._home(op.key)
        return self._committer.submit(home._request((op,), request_id, turn))[0][0]

    async def adelete_state(
        self,
        key: str,
        *,
        writer: str,
        basis: str | None = None,
        expected_version: int | None = None,
        based_on: BasedOn | None = None,
        request_id: str | None = None,
        turn: int | None = None,
    ) -> Written:
        """`delete_state` for async callers."""
        op = self._op(key, DELETE, writer, basis, expected_version, based_on)
        home = self if self.scope else self._home(op.key)
        request = home._request((op,), request_id, turn)
        return (await asyncio.wrap_future(self._committer.submit_later(request)))[0][0]

    def transaction(self, *, request_id: str | None = None, turn: int | None = None) -> Transaction:
        """Several keys, several owners, all or none. `with` commits at its end; `async with` awaits it."""
        return Transaction(self, request_id, turn)

    def open(self, *, opened_by: str, initial: Mapping[str, object] | None = None) -> list[Written]:
        """Open the run, with initial values in their owners' names as its first events.

        Raises Conflict if a key was written before, TransactionInvalid if the run is open and nothing is to be written.
        """
        schema = self._schema()
        ops = []
        for key, value in (initial or {}).items():
            declared = self._key(schema, key, opened_by, value)
            ops.append(self._prepared(declared, key, value, opened_by, None, 0, None, refs={"initial": True}))
        items = [Unit(ops, whole=True, trace=self.store._trace())] if ops else []
        if not items and self.head_seq():
            raise TransactionInvalid(f"run {self.name!r} is already open")
        request = Request(self._head, schema, items, opener=check_name("writer", opened_by))
        results = self._committer.submit(request)
        return results[0] if results else []

    def append(
        self,
        kind: str,
        *,
        actor: str | None = None,
        key: str | None = None,
        turn: int | None = None,
        body: Mapping[str, Any] | None = None,
        refs: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an event that changes no state (`message.added`, `handoff.made` ...), durable when it returns."""
        number = KIND_ID.get(kind)
        if number is None or kind.startswith(("state.", "run.", "schema.", "value.", "reads.")):
            allowed = ", ".join(sorted(k for k in KIND_ID if not k.startswith(("state.", "run.", "schema."))))
            raise ConfigError(f"{kind!r} is not a kind of event that can be appended; one of: {allowed}")
        draft = Draft(
            number,
            None if actor is None else check_name("actor", actor),
            key=None if key is None else check_name("key", key),
            turn=turn,
            refs=None if refs is None else jsontext.encode(dict(refs)).decode(),
            body=jsontext.encode(dict(body or {})),
            trace=self.store._trace(),
        )
        self._committer.submit(Request(self._head, self._schema(), (draft,), opener=actor or self.name))

    # --- reading -----------------------------------------------------------------------------

    def read_state(self, key: str, *, reader: str) -> Read:
        """The newest version of a key, on the record as `reader`'s. Raises UnknownKey."""
        schema = self._fixed or self._schema()
        declared = schema.key(key)
        if declared.scope != "run" and self.scope == 0:
            return self._read_scoped(key, declared, reader)
        found, head = self._look(key)
        if not head:
            return Read(self, key, declared, None, 0, False)
        return self._note(
            Read(self, key, declared, found, head, self.store._records),
            Draft(READ, reader, None, key, 0 if found is None else found.version, head, trace=self.store._trace()),
            schema,
        )

    async def aread_state(self, key: str, *, reader: str) -> Read:
        """`read_state` for async callers: the lookup runs in a thread, the event loop never waits for the database."""
        return await asyncio.to_thread(self.read_state, key, reader=reader)

    def read_many(self, keys: Sequence[str], *, reader: str) -> dict[str, Read]:
        """Several keys in one snapshot, recorded as one event that lists each (key, version)."""
        schema = self._schema()
        declared = {key: schema.key(key) for key in keys}
        if any(one.scope != "run" for one in declared.values()) and self.scope == 0:
            raise TransactionInvalid("keys of another scope are read one by one: a snapshot lies in one run")
        found, head = self._look_many(keys)
        reads = {key: Read(self, key, declared[key], found.get(key), head, self.store._records) for key in declared}
        if head and reads:
            refs = jsontext.encode({"keys": [[key, read.version] for key, read in reads.items()]}).decode()
            draft = Draft(READ, reader, None, None, None, head, refs=refs, trace=self.store._trace())
            self._note(next(iter(reads.values())), draft, schema)
        return reads

    def peek(self, key: str) -> Read:
        """The newest version of a key, not recorded: for people who only look, and for code that reports it itself."""
        declared = self._schema().key(key)
        if declared.scope != "run" and self.scope == 0:
            return self._home(declared).peek(key)
        found, head = self._look(key)
        return Read(self, key, declared, found, head, False)

    def state(self) -> State:
        """Every key that holds a value now, in one snapshot. Not recorded."""
        return self._state(MAX_SEQ)

    def at(self, moment: int | str | datetime) -> Moment:
        """The run as it was: `42`, `routing@2`, a time with a zone, `-20m`, `turn:7`, `end`."""
        self._flush()
        found = resolve(self, moment)
        return Moment(self, found.seq, found.warning)

    def history(self, key: str, *, until: int = MAX_SEQ) -> list[Read]:
        """Every version of a key, oldest first, deletes included."""
        declared = self._key_for_reading(key)
        run_id, number = self._run_id(), self._backend.id_of(key)
        if run_id is None or number is None:
            return []
        rows = self._backend.query(self._backend.sql.history, (run_id, number, until))
        return [Read(self, key, declared, Found(*row, 0), row[0], False) for row in rows]

    def readers(self, key: str, *, version: int | None = None) -> list[ReadRecord]:
        """Who read a key (or one version of it), in the order of the log, each told stale or not."""
        self._flush()
        run_id, number = self._run_id(), self._backend.id_of(key)
        if run_id is None or number is None:
            return []
        sql = self._backend.sql
        seqs = [row[0] for row in self._backend.query(sql.versions, (run_id, number))]
        found = []
        rows = self._backend.query(sql.reads_of_key, (run_id, number))
        for row in sorted((*rows, *self._backend.query(sql.reads_of_many, (run_id,))), key=lambda row: row[1]):
            event = event_of(self, Row(*row))
            seen = event.seen_seq or 0
            for name, saw in event.refs.get("keys", ((event.key, event.version),)):
                if name == key and (version is None or saw == version):
                    newest = max(bisect_right(seqs, seen), saw) if "scope" in event.refs else bisect_right(seqs, seen)
                    trace = None if event.trace_id is None else event.trace_id.hex()
                    found.append(
                        ReadRecord(
                            event.seq, event.actor or "", key, saw, seen, newest, as_time(event.recorded_at), trace
                        )
                    )
        return found

    def events(
        self, kinds: Iterable[str] | None = None, *, after: int = 0, until: int = MAX_SEQ, limit: int | None = None
    ) -> Iterator[Event]:
        """The log from `after` (exclusive) to `until` (inclusive), streamed in seq order."""
        self._flush()
        wanted = None if kinds is None else {_kind_id(kind) for kind in kinds}
        run_id = self._run_id()
        if run_id is None:
            return
        left = MAX_SEQ if limit is None else limit
        for raw in self._backend.stream(self._backend.sql.events, (run_id, after, until), 500):
            row = Row(*raw)
            if wanted is None or row.kind in wanted:
                if left <= 0:
                    return
                left -= 1
                yield event_of(self, row)

    def follow(self, *, after: int | None = None, poll_s: float = 0.25) -> Iterator[Event]:
        """The log as it grows, from `after` (default: from now on). It polls by seq, so it cannot skip an event."""
        return follow(self, self.head_seq() if after is None else after, poll_s)

    def keys(self) -> list[str]:
        """The names of all keys ever written in this run, in byte order."""
        run_id = self._run_id()
        return [] if run_id is None else [row[0] for row in self._backend.query(self._backend.sql.keys, (run_id,))]

    def info(self) -> RunInfo:
        """Tenant, name, newest seq, times. Raises NoSuchRun."""
        self._flush()
        return run_info(self)

    def head_seq(self) -> int:
        """The newest seq of the run; 0 if it was never opened."""
        run_id = self._run_id()
        found = None if run_id is None else self._backend.head(run_id)
        return 0 if found is None else found[0]

    def schema(self) -> Schema:
        """The state schema in force for this run: the store's, or the one the log declares."""
        return self._schema()

    def now_us(self) -> int:
        """The store's clock, µs since the epoch."""
        return self.store._sealer.now(None)

    # --- inside ------------------------------------------------------------------------------

    def _op(
        self,
        key: str,
        value: object,
        writer: str,
        basis: str | None,
        expected: int | None,
        based_on: BasedOn | None,
    ) -> Op:
        """One checked write: owner, type, basis. A refusal is recorded, then raised."""
        if self.store.read_only:
            raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to write")
        check_name("key", key)
        check_name("writer", writer)
        schema = self._fixed or self._schema()
        declared = self._key(schema, key, writer, value)
        if writer not in declared.actors:
            members = schema.groups.get(declared.owner, ())
            error = NotOwner(key=key, writer=writer, owner=declared.owner, members=members)
            self._refuse(error, key, writer, declared.owner, value)
        return self._prepared(declared, key, value, writer, basis, expected, based_on)

    def _key(self, schema: Schema, key: str, writer: str, value: object) -> Key:
        try:
            return schema.key(key)
        except UnknownKey as error:
            error.writer = writer
            self._refuse(error, key, writer, None, value)

    def _prepared(
        self,
        declared: Key,
        key: str,
        value: object,
        writer: str,
        basis: str | None,
        expected: int | None,
        based_on: BasedOn | None,
        refs: dict[str, Any] | None = None,
    ) -> Op:
        try:
            prepared = None if value is DELETE else declared.prepare(value)
            if basis is not None:
                _check_basis(basis)
            elif declared.basis_required:
                raise BasisRequired(key=key, writer=writer)
        except Refused as error:
            error.key, error.writer = key, writer
            self._refuse(error, key, writer, declared.owner, value)
        pairs = None if based_on is None else tuple(_pair(one) for one in based_on)
        return Op(key, declared, writer, prepared, basis, expected, pairs, refs)

    def _refuse(self, error: Refused, key: str, writer: str, owner: str | None, value: object) -> Any:
        """Record a refusal found before the log, then raise it."""
        try:
            update = None if value is DELETE else jsontext.encode(value)
        except (NotExact, RecursionError):
            update = None
        draft = refusal(error, writer=writer, key=key, owner=owner, update=update)
        draft.trace = self.store._trace()
        self._committer.note(self._head, self._schema(), draft, opener=writer)
        raise error

    def _request(self, ops: Sequence[Op], request_id: str | None, turn: int | None, *, whole: bool = False) -> Request:
        payload = None if request_id is None else payload_of(check_name("request_id", request_id), ops)
        unit = Unit(ops, request_id, payload, turn, None, self.store._trace(), whole)
        return Request(self._head, self._fixed or self._schema(), (unit,), opener=ops[0].writer)

    def _guess(self, op: Op) -> None:
        """Reduce in the caller's thread against the version it sees; the committer repeats it only if that moved."""
        found, _head = self._look(op.name)
        assert op.prepared is not None
        version, text = 0, None
        if found is not None:
            read = Read(self, op.name, op.key, found, 0, False)
            version, text = found.version, None if read.absent else read.text
        try:
            op.guess = (version, op.key.reduce(op.prepared, text))
        except Refused:
            op.guess = None  # the committer decides on the newest version, and records it

    def _look(self, key: str) -> tuple[Found | None, int]:
        """(newest state event, head) of one snapshot; head 0: the run is not open."""
        backend = self._backend
        run_id = self._head.id if self._head.id is not None else self._run_id()
        if run_id is None:
            return None, 0
        number = backend._ids.get(key)
        if number is None:
            head = self.head_seq()
            number = backend.id_of(key)
            if number is None:
                return None, head
        while True:
            found = backend.newest_seen(run_id, number)
            if found is not None:
                return found, found.head
            rows = backend.query(backend.sql.absent_seen, (run_id, number))
            if rows:
                return None, rows[0][0] or 0

    def _look_many(self, keys: Sequence[str]) -> tuple[dict[str, Found], int]:
        run_id = self._run_id()
        if run_id is None:
            return {}, 0
        head = self.head_seq()
        numbers = {self._backend.id_of(key): key for key in keys}
        wanted = str([number for number in numbers if number is not None])
        rows = [Found(*row) for row in self._backend.query(self._backend.sql.many_seen, (run_id, wanted))]
        return {numbers[row.key]: row for row in rows}, rows[0].head if rows else head

    def _note(self, read: Read, draft: Draft, schema: Schema) -> Read:
        if not self.store._records:
            return read
        draft.actor = check_name("reader", draft.actor)
        if self.store.strict_reads:
            self._committer.submit(Request(self._head, schema, (draft,)))
        else:
            self._committer.note(self._head, schema, draft)
        return read

    def _read_scoped(self, key: str, declared: Key, reader: str) -> Read:
        """A key of a scope's run: served from there, recorded here."""
        home = self._home(declared)
        found, seen = home._look(key)
        if not self.head_seq():
            return Read(home, key, declared, found, seen, False)
        refs = jsontext.encode({"scope": declared.scope}).decode()
        version = 0 if found is None else found.version
        draft = Draft(READ, reader, None, key, version, seen, refs=refs, trace=self.store._trace())
        return self._note(Read(home, key, declared, found, seen, self.store._records), draft, self._schema())

    def _home(self, declared: Key) -> Run:
        """The run that holds a key's scope."""
        if declared.scope == "run":
            return self
        tenant = self.tenant if declared.scope == "tenant" else ""
        return Run(self.store, "", tenant, SCOPES[declared.scope])

    def _state(self, upto: int) -> State:
        run_id = self._run_id()
        if run_id is None:
            return State(self, 0, {}, self._key_for_reading)
        rows = self._backend.state(run_id, upto)
        names = self._backend.learn(row.key for row in rows)
        found = {names[row.key]: row for row in rows if row.kind == 1}
        seq = min(rows[0].head, upto) if rows else min(self.head_seq(), upto)
        return State(self, seq, found, self._key_for_reading)

    def _value_text(self, key: str, declared: Key, found: Found) -> bytes:
        """The exact text of the value a state event made."""
        body = found.body
        if body is None:
            raise InvalidValue("this value was erased", key=key)
        if b'"value":' in body and "value" in jsontext.decode(body):
            return value_text(body)
        run_id = self._run_id()
        assert run_id is not None
        folding = self._folding_key(run_id, key, declared, found.seq)
        return jsontext.encode(fold_from_frame(self._backend, run_id, found.key, folding, found.seq))

    def _folding_key(self, run_id: int, key: str, declared: Key, seq: int) -> Key:
        """The declaration of a key that was in force at a seq: updates fold by the reducer they were written under."""
        prints = [fingerprint for at, fingerprint in declared_schemas(self._backend, run_id) if at <= seq]
        if not prints or (self._fixed is not None and prints[-1] == self._fixed.fingerprint):
            return declared
        return self.store._schema_of(prints[-1]).key(key)

    def _key_for_reading(self, key: str) -> Key:
        """The declaration of a key, by the schema in force or else by an older one of this run."""
        try:
            return self._schema().key(key)
        except UnknownKey:
            run_id = self._run_id()
            for _seq, fingerprint in reversed(declared_schemas(self._backend, run_id) if run_id else []):
                try:
                    return self.store._schema_of(fingerprint).key(key)
                except UnknownKey:
                    continue
            raise

    def _schema(self) -> Schema:
        """The store's schema, or the one the run's log declares."""
        if self._fixed is not None:
            return self._fixed
        run_id = self._run_id()
        declared = [] if run_id is None else declared_schemas(self._backend, run_id)
        if not declared:
            raise ConfigError(
                f"run {self.name!r} of tenant {self.tenant!r} has no state schema yet; open the store with schema=..."
            )
        return self.store._schema_of(declared[-1][1])

    def _run_id(self) -> int | None:
        if self._head.id is not None:
            return self._head.id
        return self._backend.find_run(self.tenant, self.scope, self.name)

    def _flush(self) -> None:
        if self.store._records:
            self._committer.flush()

    def __repr__(self) -> str:
        return f"<Run {self.name!r} of tenant {self.tenant!r}>"


class Moment:
    """A run at one seq. Its answers never change."""

    def __init__(self, run: Run, seq: int, warning: str | None = None) -> None:
        self.run = run
        self.seq = seq
        self.warning = warning

    def read_state(self, key: str, *, reader: str | None = None) -> Read:
        """The version of a key at this moment; recorded if a reader is named."""
        run = self.run
        declared = run._key_for_reading(key)
        run_id, number = run._run_id(), run._backend.id_of(key)
        found = None if run_id is None or number is None else run._backend.newest(run_id, number, self.seq)
        recorded = reader is not None and run.store._records
        read = Read(run, key, declared, found, self.seq, recorded)
        if reader is not None:
            draft = Draft(READ, reader, None, key, read.version, self.seq, trace=run.store._trace())
            run._note(read, draft, run._schema())
        return read

    def state(self) -> State:
        """Every key that held a value at this moment."""
        return self.run._state(self.seq)

    def __repr__(self) -> str:
        return f"<Moment seq {self.seq} of {self.run.name!r}>"


class _Delete:
    __slots__ = ()


DELETE = _Delete()
"""Stands for the value of a delete inside this package."""


def _check_basis(basis: object) -> None:
    if not isinstance(basis, str):
        raise InvalidValue(f"a basis is text, not {type(basis).__name__}", path="basis")
    try:
        jsontext.encode(basis)
    except NotExact as error:
        raise InvalidValue(f"the basis cannot be stored: {error.detail}", path="basis") from None


def _pair(one: Read | Written | tuple[str, int]) -> tuple[str, int]:
    if isinstance(one, tuple):
        return check_name("key", one[0]), int(one[1])
    return one.key, one.version


def _kind_id(kind: str) -> int:
    if kind not in KIND_ID:
        raise ConfigError(f"no such kind of event: {kind!r}; one of: {', '.join(KIND_ID)}")
    return KIND_ID[kind]


__all__ = ["DELETE", "SEEN_NOW", "Moment", "Run"]

"""A run: the job that agents work on, and every call about it.

Rules of this module
- The order of checks: owner, the update's type, basis; then, on the newest head, expected version, reducer, size,
  invariants. Every refusal is recorded.
- A read never opens a run; a write, or a refused write, does.
- Sync calls may commit inline. Awaitable calls hand the same request to the committer's thread and wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from refold_store import jsontext
from refold_store.backend import MAX_SEQ, Found
from refold_store.errors import ConfigError, TransactionInvalid
from refold_store.events import KIND_ID, READ, Draft, Event
from refold_store.keys import Key
from refold_store.listing import follow, readers_of, run_info, stream_events
from refold_store.looking import (
    fold_state,
    history_rows,
    key_for_reading,
    keys_of,
    look,
    look_many,
    look_state,
    look_unseen,
    schema_in_force,
    sensitive_since,
    text_of_value,
)
from refold_store.moments import Moment, resolve
from refold_store.names import check_name, check_turn
from refold_store.reads import Read, ReadRecord, RunInfo, State
from refold_store.requests import Request, Unit, Written, awaited
from refold_store.schema import Schema
from refold_store.transaction import Transaction
from refold_store.turning import Turning
from refold_store.writing import DELETE, BasedOn, checked_op, event_draft, guess, request_of

if TYPE_CHECKING:
    from refold_store.store import Store

SCOPES = {"run": 0, "tenant": 1, "global": 2}


class Run(Turning):
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
        self._id: int | None = None
        self._seen = 0
        """A seq that the run is known to have reached."""

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
        if turn is not None:
            check_turn(turn)
        schema = self._fixed if self._fixed is not None else schema_in_force(self)
        op = checked_op(self, schema, key, value, writer, basis, expected_version, based_on)
        home = self if op.key.scope == "run" or self.scope else self._home(op.key)
        if op.prepared.value_text is not None:  # type: ignore[union-attr]  # only a delete has none
            if request_id is None:
                written = self._committer.write_one(home._head, schema, op, turn, self.store._trace())
                if written is not None:
                    return written
        elif op.key.stores == "value":
            guess(home, op)
        return self._committer.submit(request_of(home, schema, (op,), request_id, turn))[0][0]

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
        schema = await self._aschema()
        request = self._prepared(schema, key, value, writer, basis, expected_version, based_on, request_id, turn)
        return (await awaited(self._committer.submit_later(request)))[0][0]

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
        request = self._prepared(
            self.schema(), key, DELETE, writer, basis, expected_version, based_on, request_id, turn
        )
        return self._committer.submit(request)[0][0]

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
        schema = await self._aschema()
        request = self._prepared(schema, key, DELETE, writer, basis, expected_version, based_on, request_id, turn)
        return (await awaited(self._committer.submit_later(request)))[0][0]

    def transaction(self, *, request_id: str | None = None, turn: int | None = None) -> Transaction:
        """Several keys, several owners, all or none. `with` commits at its end; `async with` awaits it."""
        return Transaction(self, request_id, turn)

    def open(
        self, *, opened_by: str, initial: Mapping[str, object] | None = None, basis: str | None = None
    ) -> list[Written]:
        """Open the run, with initial values in their owners' names as its first events.

        `basis` is the opener's reason for them. Raises TransactionInvalid if the run holds values already.
        """
        schema = self.schema()
        check_name("writer", opened_by)
        ops = [
            checked_op(self, schema, key, value, opened_by, basis, 0, None, initial=True)
            for key, value in (initial or {}).items()
        ]
        items = [Unit(ops, whole=True, trace=self.store._trace())] if ops else []
        request = Request(self._head, schema, items, opener=opened_by, opens=True)
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
        draft = event_draft(kind, actor, key, turn, body, refs)
        draft.trace = self.store._trace()
        self._committer.submit(Request(self._head, self.schema(), (draft,), opener=actor or self.name))

    # --- reading -----------------------------------------------------------------------------

    def read_state(self, key: str, *, reader: str, turn: int | None = None) -> Read:
        """The newest version of a key, on the record as `reader`'s. Raises UnknownKey."""
        if turn is not None:
            check_turn(turn)
        schema = self._fixed if self._fixed is not None else schema_in_force(self)
        declared = schema.key(key)
        if declared.scope != "run" and self.scope == 0:
            return self._read_scoped(key, declared, reader, turn)
        found, head = look(self, key)
        if not head:
            return Read(self, key, declared, None, 0, False)
        self._seen = head
        return self._note(
            Read(self, key, declared, found, head, self.store._records),
            Draft(
                READ, reader, None, key, 0 if found is None else found.version, head, turn, trace=self.store._trace()
            ),
            schema,
        )

    async def aread_state(self, key: str, *, reader: str, turn: int | None = None) -> Read:
        """`read_state` for async callers: the lookup runs in a thread, the event loop never waits for the database."""
        import asyncio

        return await asyncio.to_thread(self.read_state, key, reader=reader, turn=turn)

    def read_many(self, keys: Sequence[str], *, reader: str, turn: int | None = None) -> dict[str, Read]:
        """Several keys in one snapshot, recorded as one event that lists each (key, version)."""
        check_turn(turn)
        schema = self.schema()
        declared = {key: schema.key(key) for key in keys}
        if any(one.scope != "run" for one in declared.values()) and self.scope == 0:
            raise TransactionInvalid("keys of another scope are read one by one: a snapshot lies in one run")
        found, head = look_many(self, keys)
        reads = {key: Read(self, key, declared[key], found.get(key), head, self.store._records) for key in declared}
        if head and reads:
            refs = jsontext.encode({"keys": [[key, read.version] for key, read in reads.items()]}).decode()
            draft = Draft(READ, reader, None, None, None, head, turn, refs=refs, trace=self.store._trace())
            self._note(next(iter(reads.values())), draft, schema)
        return reads

    def peek(self, key: str) -> Read:
        """The newest version of a key, not recorded: for people who only look, and for code that reports it itself.

        Its `seen_seq` is the seq of the write: the newest that this look can vouch for.
        """
        declared = (self._fixed if self._fixed is not None else schema_in_force(self)).key(key)
        home = self if self.scope else self._home(declared)
        found = look_unseen(home, key)
        return Read(home, key, declared, found, 0 if found is None else found.seq, False)

    def state(self) -> State:
        """Every key that holds a value now, in one snapshot. Not recorded."""
        return look_state(self, MAX_SEQ)

    def fold(self, *, until: int = MAX_SEQ) -> dict[str, Any]:
        """The state as plain JSON by its definition: a fold over every event up to a seq. `state()` seeks instead."""
        return fold_state(self, until)

    def at(self, moment: int | str | datetime) -> Moment:
        """The run as it was: `42`, `routing@2`, a time with a zone, `-20m`, `turn:7`, `end`.

        Raises NoSuchMoment or NoSuchVersion.
        """
        if type(moment) is int and 0 <= moment <= self._seen:
            return Moment(self, moment)
        self._flush()
        found = resolve(self, moment)
        return Moment(self, found.seq, found.warning)

    def history(self, key: str, *, until: int = MAX_SEQ) -> list[Read]:
        """Every version of a key, oldest first, deletes included."""
        declared = key_for_reading(self, key)
        home = self if self.scope else self._home(declared)
        rows = history_rows(home, key, until)
        return [Read(home, key, declared, Found(*row), row[0], False) for row in rows]

    def readers(self, key: str, *, version: int | None = None) -> list[ReadRecord]:
        """Who read a key (or one version of it), in the order of the log, each told stale or not."""
        self._flush()
        return readers_of(self, key, version)

    def events(
        self, kinds: Iterable[str] | None = None, *, after: int = 0, until: int = MAX_SEQ, limit: int | None = None
    ) -> Iterator[Event]:
        """The log from `after` (exclusive) to `until` (inclusive), streamed in seq order."""
        wanted = None if kinds is None else {_kind_id(kind) for kind in kinds}
        return stream_events(self, wanted, after, until, MAX_SEQ if limit is None else limit)

    def follow(self, *, after: int | None = None, poll_s: float = 0.25) -> Iterator[Event]:
        """The log as it grows, from `after` (default: from now on). It polls by seq, so it cannot skip an event."""
        return follow(self, self.head_seq() if after is None else after, poll_s)

    def keys(self) -> list[str]:
        """The names of all keys ever written in this run, in byte order."""
        return keys_of(self)

    def info(self) -> RunInfo:
        """Tenant, name, newest seq, times. Raises NoSuchRun."""
        self._flush()
        return run_info(self)

    def head_seq(self) -> int:
        """The newest seq of the run; 0 if it was never opened."""
        run_id = self._run_id()
        found = None if run_id is None else self._backend.head(run_id)
        if found is not None:
            self._seen = found[0]
        return 0 if found is None else found[0]

    def schema(self) -> Schema:
        """The state schema for this run: the store's, or else the one that its log declares last."""
        return self._fixed if self._fixed is not None else schema_in_force(self)

    def declared(self, key: str) -> Key:
        """How a key is declared: by the schema in force, else by an older one of this run. Raises UnknownKey."""
        return key_for_reading(self, key)

    def now_us(self) -> int:
        """The store's clock, µs since the epoch."""
        return self.store._sealer.now(None)

    # --- inside ------------------------------------------------------------------------------

    async def _aschema(self) -> Schema:
        """`schema`, looked up in a thread if the log has to be asked."""
        if self._fixed is not None:
            return self._fixed
        import asyncio

        return await asyncio.to_thread(self.schema)

    def _prepared(
        self,
        schema: Schema,
        key: str,
        value: object,
        writer: str,
        basis: str | None,
        expected: int | None,
        based_on: BasedOn | None,
        request_id: str | None,
        turn: int | None,
    ) -> Request:
        check_turn(turn)
        op = checked_op(self, schema, key, value, writer, basis, expected, based_on)
        home = self if self.scope else self._home(op.key)
        return request_of(home, schema, (op,), request_id, turn)

    def _note(self, read: Read, draft: Draft, schema: Schema) -> Read:
        if not self.store._records:
            return read
        if draft.actor not in self._backend._ids:
            check_name("reader", draft.actor)
        if self.store.strict_reads:
            self._committer.submit(Request(self._head, schema, (draft,)))
        else:
            self._committer.note(self._head, schema, draft)
        return read

    def _read_scoped(self, key: str, declared: Key, reader: str, turn: int | None) -> Read:
        """A key of a scope's run: served from there, recorded here."""
        home = self._home(declared)
        found, seen = look(home, key)
        recorded = self.store._records and self.head_seq() > 0
        read = Read(home, key, declared, found, seen, recorded)
        if not recorded:
            return read
        refs = jsontext.encode({"scope": declared.scope}).decode()
        draft = Draft(READ, reader, None, key, read.version, seen, turn, refs=refs, trace=self.store._trace())
        return self._note(read, draft, self.schema())

    def _home(self, declared: Key) -> Run:
        """The run that holds a key's scope."""
        if declared.scope == "run":
            return self
        tenant = self.tenant if declared.scope == "tenant" else ""
        return Run(self.store, "", tenant, SCOPES[declared.scope])

    _value_text = text_of_value
    _sensitive_since = sensitive_since

    def _run_id(self) -> int | None:
        found = self._id
        if found is None:
            found = self._id = self._head.id or self._backend.find_run(self.tenant, self.scope, self.name)
        return found

    def _flush(self) -> None:
        if self.store._records:
            self._committer.flush()

    def __repr__(self) -> str:
        return f"<Run {self.name!r} of tenant {self.tenant!r}>"


def _kind_id(kind: str) -> int:
    if kind not in KIND_ID:
        raise ConfigError(f"no such kind of event: {kind!r}; one of: {', '.join(KIND_ID)}")
    return KIND_ID[kind]

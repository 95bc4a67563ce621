"""The rules an event keeps beyond its links: owner, type, invariants, transactions, reads. The full level of verify.

Rules of this module
- A write is judged by the schema in force at its seq, rebuilt from the stored declaration; Python validators held when
  it was written.
- Everything an earlier stretch of the run decides comes in with `Past`, so that stretches can be checked side by side.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Protocol

from refold_replay.allowances import KEPT_KINDS, Allowances
from refold_replay.findings import Findings
from refold_replay.linking import Row
from refold_replay.scanning import (
    ACTOR,
    BODY,
    CLOCK,
    COMMITMENT,
    KEY,
    KIND,
    OWNER,
    RECORDED_AT,
    REFS,
    REQUEST_ID,
    SEEN_SEQ,
    SEQ,
    TURN,
    TXN,
    VERSION,
)
from refold_replay.turn_rules import CLOSING, IN_TURNS, TURNS, TurnRules
from refold_store.errors import ConditionFailed, InvalidValue, Refused, UnknownKey
from refold_store.events import DELETED, READ, RUN_ARCHIVED, RUN_FORKED, RUN_OPENED, SCHEMA_DECLARED, WRITTEN
from refold_store.fold import WHOLE
from refold_store.jsontext import decode, encode
from refold_store.keys import Key
from refold_store.schema import Schema


class Past(Protocol):
    """What happened in the run before the stretch."""

    def seq_of(self, key: str, version: int) -> int | None:
        """The seq of a version made before the stretch; None if there is none."""

    def value(self, key: str) -> Any:
        """The JSON value of a key just before the stretch. Raises KeyError if it is absent."""


class Rules:
    """Judges the rows of one stretch of a run, in order."""

    def __init__(
        self,
        findings: Findings,
        past: Past,
        *,
        text_of: Callable[[int | None], str | None],
        schema_of: Callable[[str], Schema],
        schema: Schema | None,
        first: int,
        base: int,
        allowed: Allowances,
    ) -> None:
        self._findings = findings
        self._past = past
        self._text_of = text_of
        self._schema_of = schema_of
        self._schema = schema
        self._base = base
        self._allowed = allowed
        self._opener: int | None = None
        self._opening = first == 1
        self._txn = -1
        self._in_txn: set[int] = set()
        self._twice: Row | None = None
        """A row that names a key for the second time in a transaction: allowed if that ends a turn or is a merge."""
        self._turns = TurnRules()
        self._unit: set[str] = set()
        self._made: dict[str, tuple[int, array[int]]] = {}
        """Of each key its first version here, and the seqs of it and those that follow: eight bytes a version."""
        self._odd: dict[tuple[str, int], int] = {}
        """Versions that do not follow."""
        self._values: dict[str, Any] = {}
        self._last_at = self._last_seq = 0
        self._keys: dict[tuple[int, int, int], Key] = {}

    def judge(self, row: Row) -> None:
        """Check one row."""
        seq, kind, txn = row[SEQ], row[KIND], row[TXN]
        if self._unit and (txn == -1 or txn != self._txn):
            self._end_unit(seq - 1)
        if txn != -1 or self._txn != -1:
            self._transaction(row)
        if row[CLOCK] != -1 and self._last_seq == seq - 1 and not row[CLOCK] < row[RECORDED_AT] == self._last_at + 1:
            self._say(row, "time", f"recorded_at {row[RECORDED_AT]} does not follow from clock {row[CLOCK]}")
        self._last_at, self._last_seq = row[RECORDED_AT], seq
        if self._allowed.erasures and row[COMMITMENT] is None and kind not in KEPT_KINDS:
            self._still_there(row)
        if kind <= DELETED:
            self._state(row)
        elif kind == READ:
            self._read(row)
        else:
            self._other(row)
        if row[REQUEST_ID] is not None and "request" not in self._refs(row):
            self._say(row, "request", "a request id without the digest of its payload in refs")

    def end(self, seq: int) -> None:
        """The stretch is over; it never ends inside a transaction."""
        self._end_transaction()
        if self._unit:
            self._end_unit(seq)

    def _still_there(self, row: Row) -> None:
        said = self._allowed.erased_by(row[SEQ], row[KIND], row[KEY], row[VERSION])
        if said is not None:
            self._say(row, "erasure", f"value.erased at seq {said} covers it, but its body is there: erase again")

    def _say(self, row: Row, damage: str, message: str) -> None:
        self._findings.add(row[SEQ], damage, message)

    def _refs(self, row: Row) -> dict[str, Any]:
        text = row[REFS]
        if text is None:
            return {}
        refs = decode(text.encode())
        return refs if isinstance(refs, dict) else {}

    def _transaction(self, row: Row) -> None:
        txn, seq = row[TXN], row[SEQ]
        if txn != self._txn:
            self._end_transaction()
        if txn == -1:
            self._txn = -1
        elif txn == seq:
            self._txn = txn
            self._in_txn = {row[KEY]}
        elif txn != self._txn:
            self._say(row, "transaction", f"belongs to transaction {txn}, which does not stand right before it")
        elif row[KIND] in CLOSING:
            self._twice = None  # a turn's drafts, and a merge's updates, are a version each
        elif row[KEY] in self._in_txn:
            self._twice = self._twice or row
        else:
            self._in_txn.add(row[KEY])
        if txn != -1 and row[KIND] > DELETED and (row[KIND] not in IN_TURNS or txn == seq):
            self._say(
                row, "transaction", "only writes, deletes and what ends their turn or merge belong to a transaction"
            )

    def _end_transaction(self) -> None:
        if self._twice is not None:
            self._say(self._twice, "transaction", f"transaction {self._txn} names a key twice")
            self._twice = None

    # --- writes and deletes ------------------------------------------------------------------

    def _state(self, row: Row) -> None:
        if row[KEY] is None or row[OWNER] is None or row[ACTOR] is None or row[VERSION] < 1:
            self._say(row, "column", "a write names key, owner, actor and version")
            return
        name = self._text_of(row[KEY]) or ""
        self._note_version(name, row[VERSION], row[SEQ])
        if self._opening and self._refs(row).get("initial") is not True:
            self._opening = False
        if self._schema is None:
            self._say(row, "schema", "written before any schema was declared")
            return
        key = self._keys.get((row[KEY], row[OWNER], row[ACTOR]))
        if key is None:
            key = self._entitled(row, name)
            if key is None:
                return
        if row[KIND] == WRITTEN and row[COMMITMENT] is None:
            self._fits(row, name, key)
        elif self._schema.invariants:
            self._values[name] = None
            self._unit.add(name)

    def _entitled(self, row: Row, name: str) -> Key | None:
        """The key, if its owner is named and the actor may write it."""
        assert self._schema is not None
        try:
            key = self._schema.key(name)
        except UnknownKey:
            self._say(row, "owner", f"key {name!r} is not declared by the schema in force")
            return None
        owner, actor = self._text_of(row[OWNER]) or "", self._text_of(row[ACTOR]) or ""
        if owner != key.owner:
            self._say(row, "owner", f"key {name!r} belongs to {key.owner!r}, the event says {owner!r}")
        elif actor in key.actors:
            self._keys[row[KEY], row[OWNER], row[ACTOR]] = key
        elif not (self._opening and row[ACTOR] == self._opener and self._refs(row).get("initial") is True):
            self._say(row, "owner", f"{actor!r} may not write {name!r}, its owner is {key.owner!r}")
        return key

    def _fits(self, row: Row, name: str, key: Key) -> None:
        body = row[BODY]
        if body is None:
            self._say(row, "body", "a write without a body")
            return
        try:
            if body.startswith(WHOLE):
                key.verify(body[len(WHOLE) : -1])
                document = None
            else:
                document = decode(body)
                if "value" not in document and "update" not in document:
                    self._say(row, "body", "a write with neither value nor update")
                    return
                self._fits_parts(key, document)
        except Refused as error:
            self._say(row, "type", f"key {name!r}: {error.detail}")
            return
        except ValueError:
            self._say(row, "body", "the body is not JSON")
            return
        if self._schema is not None and self._schema.invariants_for((name,)):
            self._note(name, key, decode(body) if document is None else document)

    def _fits_parts(self, key: Key, document: dict[str, Any]) -> None:
        if "value" in document:
            key.verify(encode(document["value"]))
        elif key.reducer.name != "last":
            text = encode(document["update"])
            if key.prepare(document["update"]).text != text:
                raise InvalidValue("the stored update is not in the form its reducer stores")

    # --- invariants --------------------------------------------------------------------------

    def _note(self, name: str, key: Key, document: dict[str, Any]) -> None:
        if "value" in document:
            self._values[name] = (document["value"],)
        else:
            before = self._value(name)
            self._values[name] = (key.fold(None if before is None else before[0], document["update"]),)
        self._unit.add(name)

    def _value(self, name: str) -> tuple[Any] | None:
        """(value,) of a key here, or None if it is absent."""
        if name not in self._values:
            try:
                self._values[name] = (self._past.value(name),)
            except KeyError:
                self._values[name] = None
        found: tuple[Any] | None = self._values[name]
        return found

    def _end_unit(self, seq: int) -> None:
        """A write or transaction is complete: the invariants that speak of its keys hold."""
        assert self._schema is not None
        for invariant in self._schema.invariants_for(self._unit):
            values = {name: found[0] for name in invariant.keys if (found := self._value(name)) is not None}
            try:
                if invariant.check(values) is False:
                    self._findings.add(seq, "invariant", f"{invariant.name!r} does not hold: {invariant.expression}")
            except ConditionFailed as error:
                self._findings.add(seq, "invariant", f"{invariant.name!r} cannot be judged: {error}")
        self._unit.clear()

    # --- reads and the rest ------------------------------------------------------------------

    def _read(self, row: Row) -> None:
        refs = self._refs(row)
        seen = row[SEEN_SEQ]
        if "scope" in refs:
            return  # served from another run, by its own seqs
        if not 0 <= seen < row[SEQ]:
            self._say(row, "read", f"seen_seq {seen} is not before the read itself")
            return
        if row[KEY] is not None:
            self._saw(row, self._text_of(row[KEY]) or "", row[VERSION], seen)
            return
        for pair in refs.get("keys", ()):
            self._saw(row, pair[0], pair[1], seen)

    def _saw(self, row: Row, name: str, version: int, seen: int) -> None:
        if version == 0:
            return
        made = self._seq_of(name, version)
        if made is None:
            made = self._past.seq_of(name, version)
        if made is None or made > seen:
            self._say(row, "read", f"saw version {version} of {name!r}, which did not exist at seq {seen}")

    def _note_version(self, name: str, version: int, seq: int) -> None:
        made = self._made.get(name)
        if made is None:
            self._made[name] = version, array("q", (seq,))
        elif version == made[0] + len(made[1]):
            made[1].append(seq)
        else:
            self._odd[name, version] = seq

    def _seq_of(self, name: str, version: int) -> int | None:
        made = self._made.get(name)
        if made is not None and 0 <= version - made[0] < len(made[1]):
            return made[1][version - made[0]]
        return self._odd.get((name, version))

    def _other(self, row: Row) -> None:
        seq, kind = row[SEQ], row[KIND]
        if kind == RUN_OPENED:
            self._opener = row[ACTOR]
        if (kind == RUN_OPENED) != (seq == 1):
            self._say(row, "opening", "a run begins with run.opened, once")
        if seq == self._base + 1 and self._base and kind not in (RUN_FORKED, RUN_ARCHIVED):
            self._say(row, "opening", "a fork begins with run.forked")
        if row[COMMITMENT] is not None:
            return
        try:
            body = decode(row[BODY] or b"null")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            self._say(row, "body", "the body is not a JSON object")
        elif kind == SCHEMA_DECLARED:
            self._declared(row, body.get("fingerprint"))
        elif kind in TURNS:
            for message in self._turns.judge(kind, row[TURN], self._refs(row).get("attempt")):
                self._say(row, "turn", message)

    def _declared(self, row: Row, fingerprint: object) -> None:
        self._keys.clear()
        try:
            self._schema = self._schema_of(str(fingerprint))
        except Exception as error:
            self._schema = None
            self._say(row, "schema", f"schema {fingerprint!r} cannot be rebuilt: {error}")

"""Looking things up for a run: one key, several keys, a whole state, the text of a value. Nothing here records.

Each look is one statement, hence one snapshot. The log never changes below a seq, so what a value text needs later
(keyframe, updates, schema) is the same whenever it is fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from refold_store import jsontext
from refold_store.backend import MAX_SEQ, Found
from refold_store.erased import check_archived, error_of
from refold_store.errors import ConfigError, UnknownKey
from refold_store.events import DELETED, WRITTEN, document
from refold_store.fold import ABSENT, WHOLE, fold_updates, value_text
from refold_store.heads import declared_schemas, fold_from_frame, written_keys
from refold_store.keys import Key
from refold_store.reads import State
from refold_store.schema import Schema

if TYPE_CHECKING:
    from refold_store.run import Run

FOLD_BATCH = 5_000
"""Rows fetched at once by a fold of the whole log."""


def look(run: Run, key: str) -> tuple[Found | None, int]:
    """(newest state event of a key, head) of one snapshot. Head 0: the run is not open."""
    backend = run._backend
    run_id = run._id or run._run_id()
    if run_id is None:
        return None, 0
    number = backend._ids.get(key)
    if number is None:
        head = run.head_seq()
        number = backend.id_of(key)
        if number is None:
            check_archived(run)
            return None, head
    while True:
        found = backend.newest_seen(run_id, number)
        if found is not None:
            return found, found.head
        rows = backend.query(backend.sql.absent_seen, (run_id, number))
        if rows:
            found = backend.inherited(run_id, number)
            if found is None:
                check_archived(run)
            return found, rows[0][0] or 0


def look_unseen(run: Run, key: str, upto: int = MAX_SEQ) -> Found | None:
    """The newest state event of a key at or before a seq, without the run's head: the cheapest look."""
    backend = run._backend
    run_id = run._id or run._run_id()
    if run_id is None:
        return None
    number = backend._ids.get(key)
    if number is None:
        number = backend.id_of(key)
    found = None if number is None else backend.newest(run_id, number, upto)
    if found is None:
        check_archived(run)
    return found


def look_many(run: Run, keys: Sequence[str]) -> tuple[dict[str, Found], int]:
    """The newest state events of several keys, and the head, of one snapshot."""
    run_id = run._run_id()
    if run_id is None:
        return {}, 0
    backend = run._backend
    head = run.head_seq()
    numbers = {number: key for key in keys if (number := backend.id_of(key)) is not None}
    rows = [Found(*row) for row in backend.query(backend.sql.many_seen, (run_id, str(list(numbers))))]
    found = {numbers[row.key]: row for row in rows}
    for number, key in numbers.items():
        if key not in found and (row := backend.inherited(run_id, number)) is not None:
            found[key] = row
    if not found:
        check_archived(run)
    return found, rows[0].head if rows else head


def look_state(run: Run, upto: int) -> State:
    """Every key that holds a value at or before a seq."""
    run_id = run._run_id()
    if run_id is None:
        return State(run, 0, {}, lambda key: key_for_reading(run, key))
    rows = run._backend.state(run_id, upto)
    if not rows:  # a head of its own would be of another snapshot: take the state as of that one
        upto = min(run.head_seq(), upto)
        rows = run._backend.state(run_id, upto)
        if not rows:
            check_archived(run)
    names = run._backend.learn(row.key for row in rows)
    held = {names[row.key]: row for row in rows if row.kind == WRITTEN}
    seq = min(rows[0].head, upto) if rows else upto
    return State(run, seq, held, lambda key: key_for_reading(run, key))


def keys_of(run: Run) -> list[str]:
    """The names of all keys ever written in a run, in byte order."""
    run_id = run._run_id()
    found = [] if run_id is None else written_keys(run._backend, run_id)
    if not found:
        check_archived(run)
    return found


def history_rows(run: Run, key: str, upto: int) -> list[Any]:
    """The state events of a key up to a seq, oldest first."""
    run_id, number = run._run_id(), run._backend.id_of(key)
    asked = run._backend.sql.history
    rows = [] if run_id is None or number is None else run._backend.spanning(asked, run_id, (number,), upto)
    if not rows:
        check_archived(run)
    return rows


def fold_state(run: Run, upto: int) -> dict[str, Any]:
    """The state by its definition: every event folded from the first on, no seek, no keyframe."""
    run_id = run._run_id()
    if run_id is None:
        return {}
    newest: dict[int, tuple[bytes | None, int]] = {}
    updates: dict[int, list[tuple[int, int, int, bytes | None]]] = {}
    declared_at = run._backend.declared_at(run_id)
    for key, kind, body, seq in run._backend.streaming(run._backend.sql.fold, run_id, (), upto, FOLD_BATCH):
        if body is None and key in newest and any(newest[key][1] < at < seq for at in declared_at):
            kind = DELETED  # the first write under another schema held the whole value
        newest[key] = (body, seq) if kind == WRITTEN else (None, seq)
        if type(body) is bytes and not body.startswith(WHOLE) and b'"update":' in body:
            updates.setdefault(key, []).append((seq, 0, kind, body))
        elif key in updates:
            updates[key].append((seq, 0, kind, body))
    if not newest:
        check_archived(run)
    names = run._backend.learn(newest)
    state: dict[str, Any] = {}
    for key, (body, seq) in newest.items():
        value: Any = ABSENT
        if key in updates:
            folding = _folding_key(run, run_id, names[key], key_for_reading(run, names[key]), seq)
            if body is not None or folding.stores == "update":
                value = fold_updates(folding, ABSENT, updates[key])
        elif body is not None:
            value = jsontext.decode(value_text(body))
        if value is not ABSENT:
            state[names[key]] = value
    return state


def _holds_value(body: bytes) -> bool:
    return b'"value":' in body and "value" in document(body)


def text_of_value(run: Run, key: str, declared: Key, found: Found) -> bytes:
    """The exact text of the value that a state event made. Raises ValueErased."""
    body = found.body
    if body is not None and (type(body) is not bytes or body.startswith(WHOLE) or _holds_value(body)):
        return value_text(body)
    run_id = run._run_id()
    assert run_id is not None
    folding = _folding_key(run, run_id, key, declared, found.seq)
    value: object = ABSENT
    if body is not None or folding.stores == "update":
        value = fold_from_frame(run._backend, run_id, found.key, folding, found.seq)
    if value is ABSENT:
        raise error_of(run, key, found)
    return jsontext.encode(value)


def _folding_key(run: Run, run_id: int, key: str, declared: Key, seq: int) -> Key:
    """The declaration of a key that was in force at a seq: updates fold by the reducer they were written under."""
    prints = [fingerprint for at, fingerprint in declared_schemas(run._backend, run_id) if at <= seq]
    if not prints or (run.store.schema is not None and prints[-1] == run.store.schema.fingerprint):
        return declared
    return run.store._schema_of(prints[-1]).key(key)


def key_for_reading(run: Run, key: str) -> Key:
    """The declaration of a key, by the schema in force or else by an older one of this run."""
    fixed = run._fixed
    try:
        return (fixed if fixed is not None else run.schema()).key(key)
    except UnknownKey:
        run_id = run._run_id()
        for _seq, fingerprint in reversed(declared_schemas(run._backend, run_id) if run_id else []):
            try:
                return run.store._schema_of(fingerprint).key(key)
            except UnknownKey:
                continue
        raise


def sensitive_since(run: Run, key: str) -> int:
    """The first seq at which a key counts as sensitive: 0 if it is declared so now, MAX_SEQ + 1 if it never was.

    A later schema uncovers nothing: values made under the older one may live on in newer ones.
    """
    try:
        if key_for_reading(run, key).sensitive:
            return 0
    except UnknownKey:  # a refused write may name any key
        return MAX_SEQ + 1
    run_id = run._run_id()
    for seq, fingerprint in declared_schemas(run._backend, run_id) if run_id else []:
        schema = run.store._schema_of(fingerprint)
        if key in schema and schema.key(key).sensitive:
            return seq
    return MAX_SEQ + 1


def schema_in_force(run: Run) -> Schema:
    """The schema that the log of a run declares last."""
    run_id = run._run_id()
    declared = [] if run_id is None else declared_schemas(run._backend, run_id)
    if not declared:
        check_archived(run)
        if run.scope:
            shared = "all runs" if run.scope > 1 else f"the runs of tenant {run.tenant!r}"
            raise ConfigError(f"what {shared} share has no log in this store: a bundle of one run does not hold it")
        raise ConfigError(
            f"run {run.name!r} of tenant {run.tenant!r} has no state schema yet; open the store with schema=..."
        )
    return run.store._schema_of(declared[-1][1])

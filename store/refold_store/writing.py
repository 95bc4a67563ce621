"""What happens to a write before the log: owner, type, basis; and how a refusal is recorded.

Rules of this module
- The order of checks: the name, the owner, the update against its type, the basis. The rest needs the newest head
  and is the committer's (`plan.py`).
- Nothing here waits for the database: sync and async callers share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NoReturn

from refold_store import jsontext
from refold_store.errors import (
    BasisRequired,
    ConfigError,
    InvalidValue,
    NotExact,
    NotOwner,
    ReadOnlyStore,
    Refused,
)
from refold_store.events import KIND_ID, Draft
from refold_store.keys import Key, Prepared
from refold_store.names import check_name, check_turn
from refold_store.plan import refusal
from refold_store.reads import Read
from refold_store.requests import Op, Request, Unit, Written
from refold_store.schema import Schema

if TYPE_CHECKING:
    from refold_store.drafting import DraftRead
    from refold_store.run import Run

BasedOn = Iterable["Read | Written | DraftRead | str | tuple[str, int]"]


class _Delete:
    __slots__ = ()


DELETE = _Delete()
"""Stands for the value of a delete."""


def checked_op(
    run: Run,
    schema: Schema,
    key: str,
    value: object,
    writer: str,
    basis: str | None,
    expected: int | None,
    based_on: BasedOn | None,
    *,
    initial: bool = False,
    turn: int | None = None,
) -> Op:
    """One checked write. A refusal is recorded, then raised. `initial`: by the run's opener, in the owner's name."""
    store = run.store
    if store.read_only:
        raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to write")
    ids = run._backend._ids
    if type(key) is not str or key not in ids:
        check_name("key", key)
    if type(writer) is not str or writer not in ids:
        check_name("writer", writer)
    try:
        declared, prepared = admitted(schema, key, value, writer, basis, initial=initial)
        pairs = None if based_on is None else _pairs(based_on)
        if expected is not None and (type(expected) is not int or expected < 0):
            raise InvalidValue(f"a version is a whole number from 0, not {expected!r}", path="expected_version")
    except Refused as error:
        error.key, error.writer = key, writer
        refuse(run, schema, error, schema.key(key) if key in schema else None, value, turn=turn)
    op = Op(key, declared, writer, prepared, basis, expected, pairs, {"initial": True} if initial else None)
    if pairs:
        op.elsewhere = _elsewhere(schema, declared, pairs)
    return op


def admitted(
    schema: Schema, key: str, value: object, writer: str, basis: str | None, *, initial: bool = False
) -> tuple[Key, Prepared | None]:
    """The key and the prepared update (None: a delete), if a schema lets this writer hand it in. Raises Refused."""
    declared = schema.key(key)
    if writer not in declared.actors and not initial:
        members = schema.groups.get(declared.owner, ())
        raise NotOwner(key=key, writer=writer, owner=declared.owner, members=members)
    prepared = None if value is DELETE else declared.prepare(value)
    if basis is not None:
        _check_basis(basis)
    if declared.basis_required and (basis is None or not basis.strip()):
        raise BasisRequired(key=key, writer=writer)
    return declared, prepared


def _elsewhere(schema: Schema, declared: Key, pairs: tuple[tuple[str, int], ...]) -> frozenset[str]:
    """Keys of another scope than the one written: their versions are not in this run."""
    return frozenset(key for key, _ in pairs if key in schema and schema.key(key).scope != declared.scope)


def refuse(
    run: Run, schema: Schema, error: Refused, declared: Key | None, value: object, *, turn: int | None = None
) -> NoReturn:
    """Record a refusal found before the log, then raise it."""
    update = None if value is DELETE else _update_text(declared, value)
    owner = None if declared is None else declared.owner
    draft = refusal(
        error, writer=error.writer or "", key=error.key or "", owner=owner, update=update, delete=value is DELETE
    )
    draft.turn, draft.trace = turn, run.store._trace()
    run._committer.note(run._head, schema, draft, opener=error.writer)
    raise error


def _update_text(declared: Key | None, value: object) -> bytes | None:
    """A refused update as JSON: as its declared type spells it, else as it is, else not at all."""
    try:
        if declared is not None:
            return declared.prepare(value).text
    except (Refused, RecursionError):
        pass
    try:
        return jsontext.encode(value)
    except (NotExact, RecursionError):
        return None


def event_draft(
    kind: str,
    actor: str | None,
    key: str | None,
    turn: int | None,
    body: Mapping[str, Any] | None,
    refs: Mapping[str, Any] | None,
) -> Draft:
    """An event that changes no state. Raises ConfigError for a kind that only refold itself records."""
    number = KIND_ID.get(kind)
    if number is None or kind.startswith(("state.", "run.", "schema.", "value.", "reads.")):
        allowed = ", ".join(sorted(k for k in KIND_ID if not k.startswith(("state.", "run.", "schema."))))
        raise ConfigError(f"{kind!r} is not a kind of event that can be appended; one of: {allowed}")
    return Draft(
        number,
        None if actor is None else check_name("actor", actor),
        key=None if key is None else check_name("key", key),
        turn=check_turn(turn),
        refs=None if refs is None else jsontext.encode(dict(refs)).decode(),
        body=jsontext.encode(dict(body or {})),
    )


def request_of(
    run: Run, schema: Schema, ops: Sequence[Op], request_id: str | None, turn: int | None, *, whole: bool = False
) -> Request:
    """The request of one write, or of a `whole` transaction."""
    payload = None if request_id is None else payload_of(check_name("request_id", request_id), ops)
    unit = Unit(ops, request_id, payload, turn, None, run.store._trace(), whole)
    return Request(run._head, schema, (unit,), opener=ops[0].writer)


def payload_of(request_id: str, ops: Sequence[Op]) -> str:
    """What a request_id is bound to: writer, key, operation, update and expected version of each op."""
    listed: list[Any] = [
        [
            op.writer,
            op.name,
            "delete" if op.prepared is None else "write",
            None if op.prepared is None else op.prepared.text.decode(),
            op.expected,
        ]
        for op in ops
    ]
    return sha256(jsontext.encode(listed)).hexdigest()[:32]


def guess(run: Run, op: Op) -> None:
    """Reduce in the caller's thread against the version it sees; the committer repeats it only if that moved."""
    assert op.prepared is not None
    read = run.peek(op.name)
    try:
        op.guess = (read.version, op.key.reduce(op.prepared, None if read.absent or read.erased else read.text))
    except Refused:
        op.guess = None  # the committer decides on the newest version, and records it


def _check_basis(basis: object) -> None:
    if not isinstance(basis, str):
        raise InvalidValue(f"a basis is text, not {type(basis).__name__}", path="basis")
    try:
        jsontext.encode(basis)
    except NotExact as error:
        raise InvalidValue(f"the basis cannot be stored: {error.detail}", path="basis") from None


def _pairs(based_on: BasedOn | Read | Written | DraftRead | str) -> tuple[tuple[str, int], ...]:
    if isinstance(based_on, (Read, Written, str)) or not isinstance(based_on, Iterable):
        return (_pair(based_on),)
    return tuple(_pair(one) for one in based_on)


def _pair(one: Read | Written | DraftRead | str | tuple[str, int]) -> tuple[str, int]:
    if isinstance(one, (Read, Written)):
        return one.key, one.version
    found = _spelled(one) if isinstance(one, str) else getattr(one, "ground", one)  # only a DraftRead has one
    match found:
        case (str(key), int(version)) if not isinstance(version, bool):
            return check_name("key", key), version
    raise InvalidValue(
        f"a ground is a read, a result of a write, (key, version) or 'KEY@N', not {one!r}", path="based_on"
    )


def _spelled(text: str) -> object:
    key, _at, digits = text.rpartition("@")
    return (key, int(digits)) if digits.isascii() and digits.isdecimal() else None

"""From a request to drafts: what a write becomes on the newest end of its run.

Rules of this module
- Planning changes nothing. It returns drafts and, beside each, what the key's head will be once they are stored.
- The order of checks on a head: expected version, reducer on the previous value, size, invariants across keys.
  (Owner, basis and the update's type were checked before: they do not depend on the head.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from refold_store import jsontext
from refold_store.errors import ConditionFailed, Conflict, InvalidValue, InvariantBroken, Refused, TooLarge, UnknownKey
from refold_store.events import DELETED, REFUSED, WRITTEN, Draft
from refold_store.fold import body_text
from refold_store.heads import KeyHead, RunHead
from refold_store.keys import Key
from refold_store.requests import Op, Unit
from refold_store.schema import Schema

REFUSED_UPDATE_MAX = 65_536
"""Bytes of a refused update kept with the refusal; longer ones are cut to their size."""
FRAME_MIN = 4096
"""Bytes of updates before the first keyframe of a key: below it, folding is as cheap as a keyframe."""


class Newest(Protocol):
    """The newest end of a run, as planning asks for it: the log's own heads, or a virtual one."""

    def key(self, head: RunHead, name: str) -> KeyHead:
        """The newest version of a key."""

    def text(self, head: RunHead, name: str, key: Key) -> bytes | None:
        """The value text of a key, or None if it is absent."""

    def count_updates(self, head: RunHead, name: str, at: KeyHead) -> None:
        """Fill in how many bytes of updates lie behind the last keyframe."""


@dataclass(slots=True)
class Change:
    """A draft of a state event, and the key head it leads to."""

    draft: Draft
    at: KeyHead
    op: Op
    text: bytes | None
    """The new value text if known (None: deleted, or an update whose sum was not needed)."""
    update_bytes: int


def plan_unit(heads: Newest, head: RunHead, schema: Schema, unit: Unit) -> list[Change]:
    """The changes of one write or transaction on this head. Raises Refused and leaves everything as it was."""
    if len(unit.ops) > 1 and len({op.name for op in unit.ops}) < len(unit.ops):
        changes = plan_in_turn(heads, head, schema, unit, sums=bool(schema.invariants))
    else:
        changes = [_plan_op(heads, head, schema, unit, op) for op in unit.ops]
    if schema.invariants:
        _check_invariants(heads, head, schema, unit, changes)
    if unit.request_id is not None:
        changes[0].draft.request_id = unit.request_id
    return changes


def plan_in_turn(heads: Newest, head: RunHead, schema: Schema, unit: Unit, *, sums: bool) -> list[Change]:
    """The changes of a unit that names a key more than once, as drafts of a turn do: each builds on the one before.

    `sums`: the last change of each key says the value text it comes to.
    """
    ahead = Ahead(heads)
    changes = []
    for op in unit.ops:
        change = _plan_op(ahead, head, schema, unit, op)
        ahead.take(head, change)
        change.at = heads.key(head, op.name)
        changes.append(change)
    if sums:
        for name, change in {change.op.name: change for change in changes}.items():
            change.text = ahead.text(head, name, change.op.key)
    return changes


class Ahead:
    """A newest end with changes that are planned and not stored."""

    def __init__(self, heads: Newest) -> None:
        self._heads = heads
        self._made: dict[str, KeyHead] = {}
        self._texts: dict[str, bytes | None] = {}
        """Value texts, as far as they are known."""
        self._updates: dict[str, list[bytes]] = {}
        """Updates that the texts do not count yet: they are folded only if somebody asks for the sum."""

    def key(self, head: RunHead, name: str) -> KeyHead:
        """The newest version of a key, counting what is planned."""
        found = self._made.get(name)
        return self._heads.key(head, name) if found is None else found

    def text(self, head: RunHead, name: str, key: Key) -> bytes | None:
        """Its value text."""
        text = self._texts[name] if name in self._texts else self._heads.text(head, name, key)
        if updates := self._updates.pop(name, None):
            before = None if text is None else jsontext.decode(text)
            text = jsontext.encode(key.fold_many(before, [jsontext.decode(one) for one in updates]))
            self._texts[name] = text
        return text

    def count_updates(self, head: RunHead, name: str, at: KeyHead) -> None:
        """Only asked of a key that nothing is planned of."""
        self._heads.count_updates(head, name, at)

    def take(self, head: RunHead, change: Change) -> None:
        """Count a planned change."""
        op, at = change.op, self.key(head, change.op.name)
        since = max(at.since_bytes, 0) + change.update_bytes
        self._made[op.name] = KeyHead(
            at.version + 1, at.seq, op.prepared is None, op.writer, None, at.frame_bytes, since
        )
        if change.text is None and op.prepared is not None:
            self._updates.setdefault(op.name, []).append(op.prepared.text)
        else:
            self._updates.pop(op.name, None)
            self._texts[op.name] = change.text


def _plan_op(heads: Newest, head: RunHead, schema: Schema, unit: Unit, op: Op) -> Change:
    at = heads.key(head, op.name)
    if op.expected is not None and op.expected != at.version:
        unit.blamed = op
        raise Conflict(key=op.name, writer=op.writer, expected=op.expected, actual=at.version, actual_writer=at.writer)
    try:
        if op.based_on is not None:
            _check_based_on(heads, head, schema, unit, op)
        kind, body, text, size = _outcome(heads, head, op, at)
    except Refused as error:
        error.key, error.writer = op.name, op.writer
        unit.blamed = op
        raise
    draft = Draft(
        kind,
        op.writer,
        op.key.owner,
        op.name,
        at.version + 1,
        None,
        unit.turn if op.turn is None else op.turn,
        None,
        refs_text(op, unit.payload),
        body,
        unit.clock,
        unit.trace,
    )
    return Change(draft, at, op, text, size)


def _check_based_on(heads: Newest, head: RunHead, schema: Schema, unit: Unit, op: Op) -> None:
    """What a write rests on must exist in this run, or be made by its own transaction. 0: that the key was absent."""
    assert op.based_on is not None
    made = {one.name for one in unit.ops}
    for key, version in op.based_on:
        if key in op.elsewhere:
            continue
        newest = heads.key(head, key).version + (key in made and key != op.name)
        if not 0 <= version <= newest:
            why = _unknown(schema, key) if newest == 0 else None
            raise InvalidValue(
                f"{key}@{version} does not exist; {why or f'the newest version is {newest}'}", path="based_on"
            )


def _unknown(schema: Schema, key: str) -> str | None:
    """Why a key has no version at all, if it is not even declared."""
    try:
        schema.key(key)
    except UnknownKey as error:
        return str(error)
    return None


def _outcome(heads: Newest, head: RunHead, op: Op, at: KeyHead) -> tuple[int, bytes | None, bytes | None, int]:
    """(kind, body, value text if known, bytes of the update if it is stored as one)."""
    prepared, key = op.prepared, op.key
    if prepared is None:
        return DELETED, body_text(basis=op.basis, update=None, value=None), None, 0
    if prepared.value_text is not None:
        text = prepared.value_text
        return WRITTEN, body_text(basis=op.basis, update=None, value=text), text, 0
    if key.stores == "value":
        if op.guess is not None and op.guess[0] == at.version:
            reduced = op.guess[1]
        else:
            reduced = key.reduce(prepared, heads.text(head, op.name, key))
        return WRITTEN, body_text(basis=op.basis, update=prepared.text, value=reduced), reduced, 0
    return _accumulate(heads, head, op, at)


def _accumulate(heads: Newest, head: RunHead, op: Op, at: KeyHead) -> tuple[int, bytes, bytes | None, int]:
    """An update that is stored as an update; with the whole value where the run's schema has changed."""
    prepared, key = op.prepared, op.key
    assert prepared is not None
    if at.since_bytes < 0:
        heads.count_updates(head, op.name, at)
    if at.frame_bytes + at.since_bytes + len(prepared.text) > key.max_bytes:
        # Updates may overlap: their sum only says that it is time to look at the value itself.
        size = len(_folded(key, heads.text(head, op.name, key), prepared.text))
        if size > key.max_bytes:
            raise TooLarge(size=size, max_bytes=key.max_bytes)
    whole = len(head.schemas) > 1 and 0 < at.seq < head.schema_seq
    text = None
    if key.needs_previous or whole:
        previous = heads.text(head, op.name, key)
        key.reduce(prepared, previous)
        text = _folded(key, previous, prepared.text)
    body = body_text(basis=op.basis, update=prepared.text, value=text if whole else None)
    return WRITTEN, body, text, len(prepared.text)


def _folded(key: Any, previous: bytes | None, update: bytes) -> bytes:
    before = None if previous is None else jsontext.decode(previous)
    return jsontext.encode(key.fold(before, jsontext.decode(update)))


def refs_text(op: Op, payload: str | None) -> str | None:
    """What a write refers to, as stored: it survives erasing. `payload` is what its request_id is bound to."""
    if op.based_on is None and op.expected is None and op.refs is None and payload is None:
        return None
    refs: dict[str, Any] = dict(op.refs or {})
    if op.based_on is not None:
        refs["based_on"] = [list(pair) for pair in op.based_on]
    if op.expected is not None:
        refs["expected"] = op.expected
    if payload is not None:
        refs["request"] = payload
    return jsontext.encode(refs).decode()


def _check_invariants(heads: Newest, head: RunHead, schema: Schema, unit: Unit, changes: list[Change]) -> None:
    changed = {change.op.name: change for change in changes}
    for invariant in schema.invariants_for(set(changed)):
        values: dict[str, Any] = {}
        for name in sorted(invariant.keys):
            text = _text_after(heads, head, schema, name, changed.get(name))
            if text is not None:
                values[name] = jsontext.decode(text)
        problem = None
        try:
            if invariant.check(values) is not False:
                continue
        except ConditionFailed as error:
            problem = str(error)
        shown = ", ".join(
            f"{name}={'***' if schema.key(name).sensitive else _short(value)}" for name, value in values.items()
        )
        blamed = next(change for name, change in changed.items() if name in invariant.keys)
        unit.blamed = blamed.op
        raise InvariantBroken(
            invariant=invariant.name,
            expression=invariant.expression,
            values=shown,
            problem=problem,
            key=blamed.op.name,
            writer=blamed.op.writer,
        )


def _text_after(heads: Newest, head: RunHead, schema: Schema, name: str, change: Change | None) -> bytes | None:
    if change is None:
        return heads.text(head, name, schema.key(name))
    if change.op.prepared is None:
        return None
    if change.text is None:
        change.text = _folded(change.op.key, heads.text(head, name, change.op.key), change.op.prepared.text)
    return change.text


def _short(value: Any) -> str:
    text = jsontext.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."


def refusal(
    error: Refused,
    *,
    writer: str,
    key: str,
    owner: str | None,
    update: bytes | None,
    delete: bool = False,
    unit: Unit | None = None,
) -> Draft:
    """The `state.refused` event of a write that was not accepted. One of a unit without an update is a delete."""
    body: dict[str, Any] = {"reason": error.reason, "message": error.detail}
    if delete or (unit is not None and update is None):
        body["op"] = "delete"
    if error.path is not None:
        body["path"] = error.path
    if update is not None:
        if len(update) <= REFUSED_UPDATE_MAX:
            body["update"] = jsontext.decode(update)
        else:
            body["update_bytes"] = len(update)
    if isinstance(error, Conflict):
        body["expected"], body["actual"] = error.expected, error.actual
    draft = Draft(REFUSED, writer, owner, key, body=jsontext.encode(body))
    if unit is not None:
        draft.turn, draft.clock, draft.trace = unit.turn, unit.clock, unit.trace
    return draft

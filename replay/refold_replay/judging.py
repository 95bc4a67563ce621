"""Judging a recorded write again: by the rules of a live write, on what its keys would hold.

Rules of this module
- The rules are the store's own: `admitted` before the head, `plan_unit` on it. None is written twice here.
- A judgement counts only if the same judgement on the recorded values gives what was recorded. If it does not (a
  validator or reducer of code that is not at hand), the write cannot be judged, and that is said.
- Code is run only if the caller brought it: with the store's schema, a given schema, a given reducer. What a stored
  declaration names is never imported.
- A writer that expected a version which is gone now would have expected the newest one left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from refold_replay.changing import KEEP, SKIP
from refold_replay.holding import Recorded, Virtual
from refold_store.errors import RefoldError, Refused
from refold_store.events import DELETED, REFUSED, WRITTEN, Event
from refold_store.fold import WHOLE, value_text
from refold_store.heads import RunHead
from refold_store.jsontext import decode, encode
from refold_store.keys import Key, Prepared
from refold_store.plan import Change, plan_unit
from refold_store.reducers import Reducer
from refold_store.requests import Op, Unit
from refold_store.schema import Schema
from refold_store.writing import DELETE, admitted

_HEAD = RunHead("", "")
_OUTSIDE = frozenset(("request_reused", "schema_changed"))
"""Refusals that no value decides."""
_BESIDE = frozenset(("based_on", "expected_version", "basis"))
"""Paths of refusals that are not about the update."""
_WITH_UPDATE = frozenset(("conflict", "invariant", "reducer", "basis_required"))
"""Refusals that keep the update of a write; without one they refused a delete, in logs that do not say so (`op`)."""

_BRING = "open the store with the schema that declares it, or give that schema"


class Unjudged(Exception):
    """What would have become of a write cannot be told; says why."""


def refs_of(event: Event) -> dict[str, Any]:
    """What an event refers to; nothing, if what it holds is no object (logs come from anywhere)."""
    found: Any = {} if event.row.refs is None else event.refs
    return found if isinstance(found, dict) else {}


def pairs_of(listed: Any) -> list[tuple[str, int]]:
    """The (key, version) pairs of a list that should hold nothing else."""
    return [
        (one[0], one[1])
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and type(one[1]) is int
    ]


class Attempt:
    """One recorded write, delete or refusal, and what the change makes of it."""

    def __init__(self, event: Event, answer: Any) -> None:
        row = event.row
        self.seq, self.kind, self.turn = row.seq, row.kind, row.turn
        self.actor = event.actor or ""
        self.key = event.key
        self.version = row.version or 0
        self.body = row.body
        self.refs = refs_of(event)
        self.answer = answer

    @property
    def edited(self) -> bool:
        """Whether it gets another value."""
        return self.answer is not KEEP and self.answer is not SKIP

    @cached_property
    def document(self) -> dict[str, Any]:
        """The body, decoded."""
        found = {} if self.body is None else decode(self.body)
        return found if isinstance(found, dict) else {}

    @property
    def keys(self) -> list[str]:
        """The keys it names: one, or those of an imported refusal."""
        if self.key is not None:
            return [self.key]
        named = self.document.get("keys")
        return [one for one in named if isinstance(one, str)] if isinstance(named, list) else []

    @property
    def expected(self) -> int | None:
        """The version its writer expected, if that is known."""
        given = self.refs.get("expected", self.document.get("expected") if self.kind == REFUSED else None)
        return given if type(given) is int else None

    @property
    def stated(self) -> list[tuple[str, int]] | None:
        """The versions it says it rests on."""
        given = self.refs.get("based_on")
        return None if given is None else pairs_of(given)

    @property
    def fixed(self) -> bool:
        """Whether it was refused for what no value, owner or rule decides."""
        document = self.document
        return self.kind == REFUSED and (document.get("reason") in _OUTSIDE or document.get("path") in _BESIDE)

    def update(self) -> Any:
        """What the writer handed in. Raises Unjudged."""
        if self.kind == DELETED or (self.kind == REFUSED and self.document.get("op") == "delete"):
            return DELETE
        if self.body is None:
            raise Unjudged("its value was erased")
        document = self.document
        for member in ("update", "value") if self.kind == WRITTEN else ("update",):
            if member in document:
                return document[member]
        if "update_bytes" not in document and document.get("reason") in _WITH_UPDATE:
            return DELETE
        raise Unjudged("the refused update was not kept")

    def basis(self) -> str | None:
        """The stated reason. That of a refusal is not on the record: it counts as given unless it was what lacked."""
        if self.kind == REFUSED:
            return None if self.document.get("reason") == "basis_required" else "not kept"
        return "erased" if self.body is None else self.document.get("basis")


@dataclass(slots=True)
class Verdict:
    """What would become of a unit: accepted with these changes, or refused."""

    changes: list[Change]
    refused: Refused | None = None
    moved: frozenset[str] = frozenset()
    """Keys whose expected version is gone: the writer would have expected another."""


class Judge:
    """Judges attempts under the recorded schema and under the changed one."""

    def __init__(self, recorded: Recorded, virtual: Virtual) -> None:
        self.recorded = recorded
        self.virtual = virtual
        self.opener: str | None = None
        self.gone: set[tuple[str, int]] = set()
        """Versions that the change takes away."""
        self.foreign: set[Reducer] = set()
        """Reducers of code that only a stored declaration names."""

    def by_record(self, unit: Sequence[Attempt], schema: Schema) -> None:
        """Raises Unjudged unless judging the unit on the recorded values gives what was recorded."""
        verdict = self._judged(unit, schema, self.recorded, None, changed=False)
        if unit[0].kind == REFUSED:
            reason = unit[0].document.get("reason")
            if verdict.refused is None or verdict.refused.reason != reason:
                raise Unjudged(f"the record does not hold all that it was refused for ({reason})")
            return
        if verdict.refused is not None:
            raise Unjudged(f"the rules at hand refuse what was recorded ({verdict.refused.detail}); {_BRING}")
        for attempt, change in zip(unit, verdict.changes, strict=True):
            if not _as_recorded(attempt, change):
                raise Unjudged(f"the rules at hand do not give the recorded value; {_BRING}")

    def by_change(self, unit: Sequence[Attempt], schema: Schema, same: Schema | None) -> Verdict:
        """What would become of a unit. `same`: the recorded schema, where it declares the unit's keys alike."""
        return self._judged(unit, schema, self.virtual, same, changed=True)

    def _judged(
        self,
        unit: Sequence[Attempt],
        schema: Schema,
        view: Recorded | Virtual,
        same: Schema | None,
        *,
        changed: bool,
    ) -> Verdict:
        moved = set()
        try:
            ops = []
            for attempt in unit:
                op = self._op(attempt, schema, view, same, changed=changed)
                if changed and op.expected is not None:
                    op.expected, other = self._expected(op.name, op.expected)
                    if other:
                        moved.add(op.name)
                ops.append(op)
            changes = plan_unit(view, _HEAD, schema, Unit(ops))
        except Refused as error:
            error.key = error.key or unit[0].key
            return Verdict([], error)
        except Unjudged:
            raise
        except RefoldError as error:
            raise Unjudged(str(error)) from error
        return Verdict(changes, moved=frozenset(moved))

    def _op(
        self, attempt: Attempt, schema: Schema, view: Recorded | Virtual, same: Schema | None, *, changed: bool
    ) -> Op:
        name = attempt.key
        if name is None:
            raise Unjudged("the refused update was not kept")
        initial = attempt.refs.get("initial") is True and attempt.actor == self.opener
        basis = attempt.basis()
        try:
            value: Any = attempt.answer if changed and attempt.edited else attempt.update()
        except Unjudged:
            admitted(schema, name, DELETE, attempt.actor, basis, initial=initial)
            raise
        ready = None if (changed and (attempt.edited or same is None)) else _ready(attempt)
        declared, prepared = admitted(
            schema, name, value if ready is None else DELETE, attempt.actor, basis, initial=initial
        )
        if ready is not None and not declared.depends_on_previous:
            prepared = ready
        elif ready is not None:
            prepared = declared.prepare(value)
        if prepared is not None and declared.depends_on_previous:
            self._check_code(declared)
            if view.held(name).erased:
                raise Unjudged("the value before it was erased")
        return Op(name, declared, attempt.actor, prepared, basis, attempt.expected)

    def _check_code(self, declared: Key) -> None:
        if declared.reducer in self.foreign:
            raise Unjudged(f"its reducer {declared.reducer.name!r} is code; {_BRING}")

    def _expected(self, name: str, expected: int) -> tuple[int, bool]:
        """The expected version as planning counts, and whether the writer would have seen another one."""
        held = self.virtual.held(name)
        newest = held.version - held.instead
        if not held.instead and expected == newest:
            return held.version, False
        if (name, expected) in self.gone and expected > newest:
            return held.version, True
        return expected, False


def _ready(attempt: Attempt) -> Prepared | None:
    """A whole value that was accepted by the same rules: nothing is left to check."""
    if attempt.kind != WRITTEN or attempt.body is None:
        return None
    if attempt.body.startswith(WHOLE):
        text = attempt.body[len(WHOLE) : -1]
    elif "update" not in attempt.document:
        text = value_text(attempt.body)
    else:
        return None
    return Prepared(text, None, text)


def _as_recorded(attempt: Attempt, change: Change) -> bool:
    """Whether a planned change is what the log holds."""
    if attempt.kind == DELETED:
        return change.op.prepared is None
    if change.op.prepared is None:
        return False
    document = attempt.document
    if "update" in document and encode(document["update"]) != change.op.prepared.text:
        return False
    return "value" not in document or change.text is None or change.text == encode(document["value"])

"""The plan of a merge: which writes of the branches become writes of their parent, and what they replace there.

Rules of this module
- It reads and writes nothing but refusals. A key whose value may be replaced is expected at the version that was
  looked at: if somebody writes it before the merge is stored, the plan is made anew.
- Only what a branch wrote itself counts, never its initial values. A delete of what a branch had made itself undoes
  just that.
- The writer of the branch is the actor, its basis the basis. What it rested on is in its own log: `refs` name the
  branch and the version there, and grounds in the parent are said to be none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from refold_store.errors import InvalidValue, NotOwner, Refused, TooLarge
from refold_store.events import DELETED as DELETED_KIND
from refold_store.events import Event
from refold_store.fold import basis_of, value_text
from refold_store.keys import Key, Prepared
from refold_store.overlaps import ADDING, DELETED, Change, lost
from refold_store.requests import Op
from refold_store.run import Run
from refold_store.writing import refuse

_STATE = ("state.written", "state.deleted")


@dataclass(frozen=True, slots=True)
class Opened:
    """A branch as its parent's log knows it. `base` is the parent's newest seq that its shared keys are copies of."""

    branch: str
    base: int
    seq: int
    shared: Mapping[str, int] = field(default_factory=dict)
    """Versions of the parent's keys that were copied."""
    refs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    """What one branch did: its writes by key, and those in the order of its log."""

    opened: Opened
    head: int
    chosen: dict[str, list[Event]] = field(default_factory=dict)

    @property
    def in_order(self) -> list[Event]:
        """All that is merged."""
        return sorted((event for events in self.chosen.values() for event in events), key=lambda event: event.seq)


class MergePlan:
    """`ops` in order, and what the closing event tells: of each branch, of conflicts, of what the parent wrote."""

    def __init__(self, run: Run, branches: Sequence[Opened]) -> None:
        self.run = run
        self.schema = run.schema()
        self._keys: dict[str, Key] = {}
        parts = [self._part(one) for one in branches]
        self._seen = {name: run.peek(name).version for name in sorted(self._keys)}
        self.ops = [self._op(part.opened.branch, event) for part in parts for event in part.in_order]
        self._tie()
        changes = self._changes(parts)
        self.told = [
            {"run": part.opened.branch, "upto": part.head, "writes": sum(map(len, part.chosen.values()))}
            for part in parts
        ]
        self.conflicts = [entry for name, found in changes.items() if (entry := _conflict(name, found)) is not None]
        self.overwrote = self._overwrote(changes)

    def _part(self, one: Opened) -> _Part:
        branch = self.run.store.run(one.branch, self.run.tenant)
        part = _Part(one, 0)
        written: dict[str, list[Event]] = {}
        for event in branch.events():
            part.head = event.seq
            if event.kind in _STATE and event.refs.get("initial") is not True and not event.erased:
                written.setdefault(event.key or "", []).append(event)
        for name, events in written.items():
            if chosen := _chosen(self._key(name, events[0]), events, shared=name in one.shared):
                part.chosen[name] = chosen
        return part

    def _key(self, name: str, event: Event) -> Key:
        try:
            found = self._keys[name] = self.schema.key(name)
        except Refused as error:
            self._refuse(error, None, event, None)
        return found

    # --- the writes --------------------------------------------------------------------------

    def _op(self, branch: str, event: Event) -> Op:
        name, writer = event.key or "", event.actor or ""
        key = self._keys[name]
        refs = {"branch": branch, "version": event.version}
        op = Op(name, key, writer, None, basis_of(event.text), based_on=(), refs=refs)
        value = update_of(key, event)
        try:
            if writer not in key.actors:
                members = self.schema.groups.get(key.owner, ())
                raise NotOwner(key=name, writer=writer, owner=key.owner, members=members)
            if value is not DELETED:
                op.prepared = _whole(key, event) if key.reducer.name == "last" else key.prepare(value)
        except Refused as error:
            self._refuse(error, key, event, None if value is DELETED else value)
        return op

    def _tie(self) -> None:
        """Keys that may lose something are expected as they were looked at."""
        deleted = {op.name for op in self.ops if op.prepared is None}
        met: set[str] = set()
        for op in self.ops:
            if op.name not in met and (op.key.reducer.name not in ADDING or op.name in deleted):
                op.expected = self._seen[op.name]
            met.add(op.name)

    def _refuse(self, error: Refused, key: Key | None, event: Event, value: Any) -> NoReturn:
        error.key, error.writer = event.key, event.actor
        refuse(self.run, self.schema, error, key, value)

    # --- what they replace -------------------------------------------------------------------

    def _changes(self, parts: Sequence[_Part]) -> dict[str, list[tuple[Opened, Change]]]:
        """By key, what each branch did to it, in the order of the branches."""
        found: dict[str, list[tuple[Opened, Change]]] = {}
        for part in parts:
            for name, events in part.chosen.items():
                key = self._keys[name]
                change = Change(key, [update_of(key, event) for event in events])
                found.setdefault(name, []).append((part.opened, change))
        return {name: found[name] for name in sorted(found, key=str.encode)}

    def _overwrote(self, changes: Mapping[str, list[tuple[Opened, Change]]]) -> list[dict[str, Any]]:
        """What the parent wrote after a branch was opened and the branch replaces.

        Newer versions than those expected may be among them: then the plan does not hold, and is made anew.
        """
        base = min((opened.base for found in changes.values() for opened, _change in found), default=0)
        meanwhile: dict[str, list[Event]] = {}
        for event in self.run.events(_STATE, after=base):
            name = event.key or ""
            if name in changes and not event.erased:
                meanwhile.setdefault(name, []).append(event)
        return [
            entry
            for name, events in meanwhile.items()
            for event in events
            if (entry := self._replaced(name, event, changes[name])) is not None
        ]

    def _replaced(self, name: str, event: Event, changes: Sequence[tuple[Opened, Change]]) -> dict[str, Any] | None:
        """A version of the parent's as the closing event tells it, if a branch that began before it replaces it."""
        key = self._keys[name]
        before, paths, branch = Change(key, [update_of(key, event)]), set[str](), ""
        for opened, change in changes:
            if event.seq > opened.base and (here := lost(before, change)):
                paths |= set(here)
                branch = opened.branch
        if not branch:
            return None
        return {"key": name, "version": event.version, "writer": event.actor, "paths": sorted(paths), "branch": branch}


def _conflict(name: str, found: Sequence[tuple[Opened, Change]]) -> dict[str, Any] | None:
    """The branches that replace what an earlier one wrote, and the one whose value stays."""
    involved: set[int] = set()
    paths: set[str] = set()
    kept = 0
    for later in range(1, len(found)):
        for earlier in range(later):
            if here := lost(found[earlier][1], found[later][1]):
                involved |= {earlier, later}
                paths |= set(here)
                kept = later
    if not involved:
        return None
    branches = [found[at][0].branch for at in sorted(involved)]
    return {"key": name, "paths": sorted(paths), "branches": branches, "kept": found[kept][0].branch}


def _chosen(key: Key, written: list[Event], *, shared: bool) -> list[Event]:
    """Which of a branch's writes of a key are merged: its last value, or its updates since it last deleted it.

    The delete itself counts where the branch deleted a value it was given.
    """
    if key.reducer.name == "last":
        chosen = written[-1:]
    else:
        last = max((at for at, event in enumerate(written) if event.row.kind == DELETED_KIND), default=0)
        chosen = written[last:]
    return chosen[1:] if chosen[0].row.kind == DELETED_KIND and not shared else chosen


def update_of(key: Key, event: Event) -> Any:
    """What a write handed in, as JSON; DELETED for a delete."""
    if event.row.kind == DELETED_KIND:
        return DELETED
    body = event.body
    if key.reducer.name == "last":
        return body.get("value")
    return body["update"] if "update" in body else body["value"]


def _whole(key: Key, event: Event) -> Prepared:
    assert event.text is not None
    if "value" not in event.body:
        raise InvalidValue("it was written as an update, under a schema by which the key accumulated")
    text = value_text(event.text)
    key.verify(text)
    if len(text) > key.max_bytes:
        raise TooLarge(size=len(text), max_bytes=key.max_bytes)
    return Prepared(text, None, text)

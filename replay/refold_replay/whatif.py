"""What if: a run gone through again with a change, without a model, and what would differ.

    whatif(run, skip=["routing@2"])                      a write that had not happened
    whatif(run, edit={8: {"limit": 9000}})               a write of another value
    whatif(run, reducers={"notes": "last"}, owners={"routing": "desk"})
    whatif(run, conditions={"band": "low < high"}, schema=Other)
    whatif(run, change=lambda event: SKIP if event.actor == "bot" else KEEP)

Rules of this module
- The original is never touched; nothing is written anywhere, and no model is called.
- Every later write and refusal goes through the checks of a live write (refolding.py). What writers would have written
  instead, nobody can tell: writes that rest on a change are named as `depends`.
- Events keep their seqs and versions: `routing@2` is the same write whether or not `routing@1` is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refold_replay.changing import KEEP, SKIP, ChangeOf, Changes, Rules
from refold_replay.differences import Difference, KeyDifference, WhatIf
from refold_replay.refolding import Refolding
from refold_store.declare import compile_schema
from refold_store.erased import check_archived
from refold_store.errors import ConfigError, NoSuchMoment
from refold_store.events import DELETED, REFUSED, WRITTEN, Event
from refold_store.looking import schema_in_force
from refold_store.run import Run

__all__ = ["KEEP", "SKIP", "Difference", "KeyDifference", "WhatIf", "whatif"]

_KINDS = {"state.written": WRITTEN, "state.deleted": DELETED, "state.refused": REFUSED}
NEAR_MAX = 3
"""Writes named where the one asked for is none."""


def whatif(
    run: Run,
    *,
    skip: Iterable[int | str] = (),
    edit: Mapping[Any, Any] | None = None,
    reducers: Mapping[str, Any] | None = None,
    owners: Mapping[str, str] | None = None,
    conditions: Mapping[str, str | None] | None = None,
    schema: object = None,
    change: ChangeOf | None = None,
) -> WhatIf:
    """What would differ in a run with these changes; an empty WhatIf if nothing would.

    `skip` and the keys of `edit` are seqs or moments (`routing@2`) of writes, deletes, and, for `edit`, refused writes;
    a value of `edit` is what the writer would have handed in. `conditions` maps names of invariants, new ones too, to
    expressions, or to None to take one away. `schema` is whatever compile_schema takes, in force from the start.
    `change` is asked for each write, delete and refusal and answers KEEP, SKIP or a new value.
    Raises NoSuchRun, RunArchived, NoSuchMoment, NoSuchVersion, UnknownKey, ConfigError.
    """
    head = run.info().head_seq
    check_archived(run)
    compiled = None if schema is None else compile_schema(schema)
    rules = Rules(schema=compiled, reducers=reducers, owners=owners, conditions=conditions)
    if rules:
        rules.check(schema_in_force(run))
    skipped = {_seq_of(run, moment, "skip") for moment in skip}
    edited = {_seq_of(run, moment, "edit"): value for moment, value in (edit or {}).items()}
    if both := skipped & edited.keys():
        raise ConfigError(f"seq {min(both)} is to be both skipped and edited; choose one")
    refolding = Refolding(run, Changes(frozenset(skipped), edited, change, rules))
    for event in run.events(until=head):
        refolding.feed(event)
    final = refolding.end()
    found = sorted(refolding.found, key=lambda one: one.seq)
    return WhatIf(run.name, run.tenant, refolding.seq, found, final)


def _seq_of(run: Run, moment: int | str, what: str) -> int:
    """The seq of a write, delete or refused write. Raises NoSuchMoment or ConfigError."""
    seq = run.at(moment).seq
    event = next(run.events(after=seq - 1, until=seq), None) if seq else None
    if event is None:
        raise NoSuchMoment(f"{moment!r} is no event of run {run.name!r}; its events begin at seq 1", moment=moment)
    if what == "skip" and event.kind == "state.refused":
        raise ConfigError(f"seq {seq} is a refused write: it changed nothing, so there is nothing to skip; edit it")
    if event.kind not in _KINDS:
        raise ConfigError(f"seq {seq} is {_named(event)}, no write; {_near(run, seq)}")
    return seq


def _named(event: Event) -> str:
    by = f" by {event.actor!r}" if event.actor is not None else ""
    return f"{event.kind}{by}"


def _near(run: Run, seq: int) -> str:
    """The writes nearest to a seq, for a message."""
    after = run.events(("state.written", "state.deleted"), after=seq, limit=NEAR_MAX)
    before = run.events(("state.written", "state.deleted"), after=max(0, seq - 100), until=seq)
    found = [*list(before)[-NEAR_MAX:], *after]
    nearest = sorted(sorted(found, key=lambda one: abs(one.seq - seq))[:NEAR_MAX], key=lambda one: one.seq)
    if not nearest:
        return "the run has no writes near it"
    return "the nearest writes are " + ", ".join(f"{one.seq} ({one.key}@{one.version})" for one in nearest)

"""Blame: which version set each part of a key's value, who wrote it, when, and on what basis.

Rules of this module
- One pass over the versions of the key up to the moment; each costs its own size (origins.py says what is carried).
- What an erased version held is not known. An erased update counts as none, as in the fold. After an erased value, the
  first value that can be read is named for every part, as `uncertain`: an erased version may have set it before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from refold_replay.diff import MISSING
from refold_replay.origins import Traced, leaves
from refold_replay.steps import Declarations, Step, steps
from refold_store.errors import NoSuchMoment, NotFound
from refold_store.events import DELETED, document
from refold_store.fold import basis_of, member
from refold_store.looking import key_for_reading, sensitive_since
from refold_store.reads import as_time
from refold_store.run import Run


@dataclass(frozen=True, slots=True)
class BlameLine:
    """One leaf of a value: a scalar, an empty object or an empty list, and the version that set it."""

    path: str
    value: Any
    version: int
    writer: str
    owner: str
    seq: int
    recorded_at: datetime
    basis: str | None
    uncertain: bool
    """Whether an erased version before this one may have set it."""


@dataclass(frozen=True, slots=True)
class Blame:
    """A key's value at one moment, part by part. No lines: there is no value (`state` says why)."""

    key: str
    seq: int
    """The seq the answer is as of."""
    version: int
    """The newest version then; 0: never written."""
    state: str
    """`value`, `absent` (never written), `deleted` or `erased`."""
    sensitive: bool
    erased: list[int] = field(default_factory=list)
    """The versions that were erased, oldest first."""
    lines: list[BlameLine] = field(default_factory=list)
    warning: str | None = None


PATHS_NEAR = 3
"""Paths named when one is not there."""


class _Origin:
    """One version as the origin of leaves."""

    __slots__ = ("step", "uncertain")

    def __init__(self, step: Step, uncertain: bool) -> None:
        self.step = step
        self.uncertain = uncertain


def blame(run: Run, key: str, *, at: int | str | datetime = "end", path: str | None = None) -> Blame:
    """Who set each part of a key's value at a moment. `path` keeps only what stands there or below, like `$.a`.

    Raises UnknownKey, NoSuchMoment, and NotFound for a path at which the value has nothing.
    """
    declared = key_for_reading(run, key)
    home = run if run.scope else run._home(declared)
    if home is not run and at != "end":
        raise NoSuchMoment(
            f"key {key!r} has scope {declared.scope!r}: a moment of run {run.name!r} says nothing about it", moment=at
        )
    moment = home.at(at)
    tracer = _Tracer(home, key)
    for step in steps(home, (key,), moment.seq):
        tracer.take(step)
    seq = 0 if tracer.last is None else tracer.last.seq
    sensitive = declared.sensitive or sensitive_since(home, key) <= seq
    found = tracer.lines() if path is None else _below(key, path, tracer.lines())
    version = 0 if tracer.last is None else tracer.last.version
    return Blame(key, moment.seq, version, tracer.state, sensitive, tracer.erased, found, moment.warning)


class _Tracer:
    """The value of a key as its versions go by."""

    def __init__(self, run: Run, key: str) -> None:
        self._name = run._backend.text_of
        self._key = key
        self._declared = Declarations(run)
        self._traced = Traced()
        self._uncertain = False
        self.last: Step | None = None
        self.state = "absent"
        self.erased: list[int] = []

    def take(self, step: Step) -> None:
        """One more version."""
        self.last = step
        if step.erased:
            self.erased.append(step.version)
        if step.kind == DELETED:
            self._traced.clear()
            self.state, self._uncertain = "deleted", False
            return
        declared = self._declared.key(self._key, step.seq)
        if step.body is None:
            if declared.stores == "value":
                self._traced.clear()
                self._uncertain = True
            if self._traced.value is MISSING:
                self.state = "erased"
            return
        found = document(step.body)
        origin = _Origin(step, self._uncertain)
        if "value" in found:
            self._traced.replace(found["value"], origin, as_set=declared.reducer.name == "union")
        else:
            self._traced.update(declared, member(found, "update"), origin)
        self.state, self._uncertain = "value", False

    def lines(self) -> list[BlameLine]:
        """Every leaf with its origin."""
        if self.state != "value":
            return []
        bases: dict[int, str | None] = {}
        found = []
        for path, value, origin in leaves(self._traced.value, self._traced.tree):
            step = origin.step
            if step.version not in bases:
                bases[step.version] = basis_of(step.body)
            found.append(
                BlameLine(
                    path,
                    value,
                    step.version,
                    self._name(step.actor) or "",
                    self._name(step.owner) or "",
                    step.seq,
                    as_time(step.recorded_at),
                    bases[step.version],
                    origin.uncertain,
                )
            )
        return found


def _below(key: str, path: str, lines: list[BlameLine]) -> list[BlameLine]:
    """The lines at a path or below it."""
    found = [one for one in lines if one.path == path or one.path.startswith((f"{path}.", f"{path}["))]
    if not found and lines:
        near = ", ".join(one.path for one in lines[:PATHS_NEAR])
        raise NotFound(f"{key!r} has nothing at {path!r}; it has {near} ...: a path is spelled like these")
    return found

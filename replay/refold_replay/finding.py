"""Find: the moments of a run at which a condition over its state became true.

Rules of this module
- The grammar is the store's (`refold_store.conditions`), three values included: a key that is not there makes the
  condition unknown, which is not true.
- A transaction is one step: its middle is never looked at. The condition is judged when a key it names changes, and at
  no other event; memory holds the named keys' values and the moments found.
- Values are compared as what they are, as invariants do it: a date as a date, a decimal as a number. Literals are made
  so by the functions of FUNCTIONS: `opened < datetime("2026-11-30T02:00:00Z")`.
- Where the condition has no meaning (the order of a text and a number), or hangs on what was erased, it cannot be
  judged: it counts as not true, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from refold_replay.diff import MISSING
from refold_replay.origins import Traced
from refold_replay.steps import Declarations, Step, steps
from refold_store import jsontext
from refold_store.comparable import Convert, converter
from refold_store.conditions import Condition, compile_condition
from refold_store.errors import ConditionError, ConditionFailed, UnknownKey
from refold_store.events import DELETED
from refold_store.fold import basis_of
from refold_store.looking import key_for_reading
from refold_store.reads import as_time
from refold_store.run import Run

Which = Literal["first", "last", "all"]


def _converting(name: str) -> Callable[[object], object]:
    convert = converter({"format": name})
    assert convert is not None
    return convert


FUNCTIONS: Final[dict[str, Callable[..., object]]] = {
    "date": _converting("date"),
    "datetime": _converting("date-time"),
    "decimal": _converting("decimal"),
    "duration": _converting("duration"),
    "len": len,
}
"""What a condition may call: texts as dates, times, decimals and durations; the length of a list, object or text."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """One write of a named key in the step that made the condition true."""

    seq: int
    key: str
    version: int
    writer: str
    deleted: bool
    basis: str | None


@dataclass(slots=True)
class Found:
    """A stretch of the run in which the condition held, from `seq` on."""

    seq: int
    """The moment it became true: the end of the transaction, if it was one. 0: from the beginning."""
    recorded_at: datetime | None
    writes: list[Wrote]
    """What the step wrote of the keys the condition names."""
    values: dict[str, Any]
    """Those keys' values at that moment, as plain JSON; a key that was not there is left out."""
    ended_seq: int | None = None
    """The moment it no longer held; None: it holds to the end."""


@dataclass(slots=True)
class Search:
    """What was found in a run, and how far it was looked through."""

    condition: str
    keys: list[str]
    """The keys the condition names."""
    at_seq: int
    """The newest seq looked at."""
    found: list[Found] = field(default_factory=list)
    unjudged: int = 0
    """Steps at which the condition could not be judged: it had no meaning, or hung on what was erased."""
    unjudged_first: tuple[int, str] | None = None
    """(seq, why) of the first of them."""

    def __iter__(self) -> Iterator[Found]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


def find(run: Run, condition: str, *, which: Which = "first", at: int | str | datetime = "end") -> Search:
    """The moments up to `at` at which a condition became true: the first, the last, or all of them.

    Raises ConditionError for what is no condition over keys of this run; with near names.
    """
    moment = run.at(at)
    compiled = compile_condition(condition, functions=FUNCTIONS, known=_Known(run))
    for key in sorted(compiled.names):
        if key_for_reading(run, key).scope != "run" and run.scope == 0:
            raise ConditionError(
                f"key {key!r} lies in another run, that of its scope",
                expression=condition,
                hint="find looks through one run",
            )
    search = Search(condition, sorted(compiled.names), moment.seq)
    _Seeker(run, compiled, search, which).seek()
    return search


class _Known:
    """The keys a condition over a run may name: those declared, now or earlier; under the open schema those written."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open = bool(run.schema().declaration().get("open"))
        self._names = run.keys()

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if self._open:
            return name in self._names
        try:
            key_for_reading(self._run, name)
        except UnknownKey:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._run.schema(), *self._names]))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _Seeker:
    """One pass over the steps of the named keys."""

    def __init__(self, run: Run, condition: Condition, search: Search, which: Which) -> None:
        self._run = run
        self._condition = condition
        self._search = search
        self._which = which
        self._declared = Declarations(run)
        self._held = {key: Traced() for key in search.keys}
        self._numbers = {run._backend.id_of(key): key for key in search.keys}
        self._state: dict[str, Any] = {}
        """The values as the condition compares them."""
        self._converters: dict[tuple[str, int], Convert | None] = {}
        self._open: Found | None = None
        self._erased: dict[str, int] = {}
        """The keys whose value lacks what was erased, and the last version that was."""

    def seek(self) -> None:
        """Look through the run."""
        if self._judge(0):
            self._begin(0, [])
        group: list[Step] = []
        for step in steps(self._run, self._search.keys, self._search.at_seq):
            if group and (step.txn is None or step.txn != group[0].txn):
                self._end_step(group)
                group = []
                if self._which == "first" and self._search.found and self._open is None:
                    return
            self._take(step)
            group.append(step)
        if group:
            self._end_step(group)

    def _take(self, step: Step) -> None:
        key = self._numbers[step.key]
        held = self._held[key]
        declared = self._declared.key(key, step.seq)
        if step.kind == DELETED:
            held.clear()
            self._erased.pop(key, None)
        elif step.body is not None:
            document = jsontext.decode(step.body)
            if "value" in document:
                held.set(document["value"])
                self._erased.pop(key, None)
            else:
                held.update(declared, document["update"], 0)
        else:
            self._erased[key] = step.version
            if declared.stores == "value":  # the state leaves the key out
                held.clear()

    def _end_step(self, group: list[Step]) -> None:
        """Judge the state after one write, or after one transaction."""
        for key, number in {self._numbers[step.key]: step.seq for step in group}.items():
            value = self._held[key].value
            if value is MISSING:
                self._state.pop(key, None)
            else:
                convert = self._converter(key, number)
                self._state[key] = value if convert is None else convert(value)
        holds = self._judge(group[-1].seq)
        if holds and self._open is None:
            self._begin(self._moment(group[-1]), group)
        elif not holds and self._open is not None:
            self._open.ended_seq = self._moment(group[-1])
            self._open = None

    def _judge(self, seq: int) -> bool:
        try:
            holds = self._condition(self._state)
        except ConditionFailed as error:
            self._cannot(seq, str(error))
            return False
        for key, version in self._erased.items():
            if holds is None or key in self._state:
                self._cannot(seq, f"{key}@{version} was erased")
                break
        return holds is True

    def _cannot(self, seq: int, why: str) -> None:
        self._search.unjudged += 1
        if self._search.unjudged_first is None:
            self._search.unjudged_first = (seq, why)

    def _begin(self, seq: int, group: list[Step]) -> None:
        name = self._run._backend.text_of
        writes = [
            Wrote(
                step.seq,
                self._numbers[step.key],
                step.version,
                name(step.actor) or "",
                step.kind == DELETED,
                basis_of(step.body),
            )
            for step in group
        ]
        values = {
            key: jsontext.decode(jsontext.encode(held.value))
            for key, held in self._held.items()
            if held.value is not MISSING
        }
        self._open = Found(seq, as_time(group[-1].recorded_at) if group else None, writes, values)
        found = self._search.found
        if self._which == "last":
            found.clear()
        if self._which != "first" or not found:
            found.append(self._open)

    def _moment(self, step: Step) -> int:
        """The seq of a step; of a transaction its end, which another key may have made."""
        backend, run_id = self._run._backend, self._run._run_id()
        if step.txn is None or run_id is None or (place := backend.at_seq(run_id, step.seq)) is None:
            return step.seq
        return min(backend.txn_end(place.run, step.txn), self._search.at_seq)

    def _converter(self, key: str, seq: int) -> Convert | None:
        place = (key, self._declared.at(seq))
        if place not in self._converters:
            self._converters[place] = converter(self._declared.key(key, seq).schema)
        return self._converters[place]

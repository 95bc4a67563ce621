"""Branches: runs of their own that begin with nothing, and come back into their parent through a merge.

    branch = open_branch(run, "clm-1/checks.1/2.1", by="engine", keys_shared=["memory"])
    ...                                                # its agents work on `branch` as on any run
    merge(run, [branch, other], by="engine")           # in this order, whatever finished first

Rules of this module
- `branch.opened` stands in the parent's log before the branch is there, and in the branch's own as one of its first
  events: the one names the branch, the other the parent. So a process that starts again finds both.
- A branch sees neither its parent nor its siblings: of its parent it has copies of the shared keys, as initial values.
- A merge is one transaction, closed by `branch.merged`: only what the branches wrote, in the declared order, in their
  writers' names and by the rules of any write. Where updates accumulate each is a write; else the last value is.
- What a merge replaces is named in it: what an earlier branch wrote, and what the parent wrote meanwhile.
- A branch is merged once. The same merge again does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from refold_store import jsontext
from refold_store.errors import Conflict, ReadOnlyStore, RequestReused, TransactionInvalid
from refold_store.events import KIND_ID, Draft, Event, Row
from refold_store.keys import Key, Prepared
from refold_store.looking import look_unseen
from refold_store.mergeplan import MergePlan, Opened
from refold_store.names import check_name
from refold_store.reads import Read
from refold_store.requests import Op, Request, Unit, Written
from refold_store.run import Run
from refold_store.schema import Schema
from refold_store.writing import event_draft, payload_of

BRANCH_OPENED, BRANCH_MERGED = KIND_ID["branch.opened"], KIND_ID["branch.merged"]
MERGE_TRIES = 50
"""Times a merge is made anew because somebody wrote one of its keys just then: who loses so often is not alone."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did. `seq` is that of `branch.merged`; `branches` all it names, in order.

    `conflicts`: {key, paths, branches, kept}: what earlier branches wrote and the branch `kept` replaced. `overwrote`:
    {key, version, writer, paths, branch}: what the parent wrote after the branch was opened and a branch replaced; of
    several branches the last.
    """

    seq: int
    branches: tuple[str, ...]
    written: tuple[Written, ...] = ()
    """The versions made; empty if it was made before."""
    conflicts: tuple[dict[str, Any], ...] = ()
    overwrote: tuple[dict[str, Any], ...] = ()
    again: bool = False
    """Whether it had been made before, and this call did nothing."""


# --- opening -------------------------------------------------------------------------------------


def open_branch(
    run: Run, name: str, *, by: str, keys_shared: Iterable[str] = (), refs: Mapping[str, Any] | None = None
) -> Run:
    """The branch `name` of a run, opened if it is not there. `refs` are kept with its `branch.opened` in the parent.

    Shared keys that hold no value are left out; keys of another scope need no copy. Raises TransactionInvalid if a run
    of this name is there and is no branch of this one.
    """
    _check(run, by)
    made = run.store.run(name, run.tenant)
    schema = run.schema()
    known = branches_of(run).get(name)
    if known is None:
        if made.head_seq():
            raise TransactionInvalid(f"run {name!r} exists and is no branch of {run.name!r}; take another name")
        run._flush()
        base = run.head_seq()
        shared = {key: read.version for key in keys_shared if (read := _shared(run, schema, key, base)) is not None}
        told = {"branch": name, "base": base, "shared": [list(pair) for pair in shared.items()]}
        run.append("branch.opened", actor=by, refs={**(refs or {}), **told})
        known = Opened(name, base, 0, shared)
    _begin(run, made, schema, known, by)
    return made


def _check(run: Run, by: str) -> None:
    if run.store.read_only:
        raise ReadOnlyStore("the store was opened read-only; open it without read_only=True for branches")
    if run.scope:
        raise TransactionInvalid("the run of a scope has no branches: it is shared as it is")
    check_name("actor", by)


def _shared(run: Run, schema: Schema, key: str, base: int) -> Read | None:
    """A key's value in the parent at the base, if it has one and it lies in the run."""
    declared = schema.key(key)
    found = look_unseen(run, key, base) if declared.scope == "run" else None
    read = None if found is None else Read(run, key, declared, found, base, False)
    return None if read is None or read.absent or read.erased else read


def _begin(run: Run, made: Run, schema: Schema, known: Opened, by: str) -> None:
    """Open the branch's own run, if a process before this one has not."""
    if made.head_seq():
        if parent_of(made) != run.name:
            raise TransactionInvalid(f"run {made.name!r} exists and is no branch of {run.name!r}; take another name")
        return
    ops = []
    for key in known.shared:
        read = _shared(run, schema, key, known.base)
        if read is not None:
            refs = {"initial": True, "parent": run.name, "version": read.version}
            declared = schema.key(key)
            ops.append(Op(key, declared, by, _copied(declared, read.text), expected=0, refs=refs))
    trace = run.store._trace()
    told = jsontext.encode({"parent": run.name, "base": known.base}).decode()
    first = Draft(BRANCH_OPENED, by, refs=told, body=b"{}", trace=trace)
    items = [Unit(ops, whole=True, trace=trace)] if ops else []
    try:
        made._committer.submit(Request(made._head, schema, items, opener=by, opens=True, opening=[first]))
    except TransactionInvalid:
        if parent_of(made) != run.name:
            raise


def _copied(key: Key, text: bytes) -> Prepared:
    """A value as the first update of a key: the whole where wholes are stored, else what makes the same."""
    if key.stores == "value":
        key.verify(text)
        return Prepared(text, None, text)
    return key.prepare(jsontext.decode(text))


def branches_of(run: Run) -> dict[str, Opened]:
    """The branches that a run's log has opened, by name, in the order of their opening."""
    found = {}
    for event in _of_kind(run, BRANCH_OPENED):
        refs = event.refs
        if isinstance(name := refs.get("branch"), str):
            found[name] = Opened(name, refs["base"], event.seq, dict(refs["shared"]), refs)
    return found


def parent_of(run: Run) -> str | None:
    """The run that a branch belongs to; None: it is no branch."""
    for event in _of_kind(run, BRANCH_OPENED):
        if isinstance(name := event.refs.get("parent"), str):
            return name
    return None


def _of_kind(run: Run, kind: int) -> list[Event]:
    run_id, backend = run._run_id(), run._backend
    if run_id is None:
        return []
    rows = backend.spanning_rows(backend.sql.by_kind, run_id, (kind,))
    return [Event(run.tenant, run.name, Row(*row), backend.text_of) for row in rows]


# --- merging -------------------------------------------------------------------------------------


def merge(
    run: Run,
    branches: Sequence[Run | str],
    *,
    by: str,
    body: Mapping[str, Any] | None = None,
    refs: Mapping[str, Any] | None = None,
    also: Sequence[Draft] = (),
) -> Merged:
    """Take over what these branches wrote, in their order. `also` are events to stand before `branch.merged`.

    `body` and `refs` are added to those of `branch.merged`. Raises TransactionInvalid for what is no branch of it; a
    Refused, which is recorded, if what they wrote may not be written here: then nothing is.
    """
    names = tuple(one if isinstance(one, str) else one.name for one in branches)
    if not names or len(set(names)) < len(names):
        raise TransactionInvalid("a merge takes at least one branch, and each once")
    _check(run, by)
    for tried in range(MERGE_TRIES):
        known = branches_of(run)
        if strange := [name for name in names if name not in known]:
            raise TransactionInvalid(f"{strange[0]!r} is no branch of run {run.name!r}; open it with open_branch()")
        done = merged_in(run)
        left = [name for name in names if name not in done]
        if not left:
            return done[names[-1]]
        planned = MergePlan(run, [known[name] for name in left])
        closing = {"branches": planned.told, "conflicts": planned.conflicts, "overwrote": planned.overwrote}
        named = {**(refs or {}), "branches": left}
        end = event_draft("branch.merged", by, None, None, {**(body or {}), **closing}, named)
        try:
            return _commit(run, planned, [*also, end], left)
        except (Conflict, RequestReused):
            if tried + 1 == MERGE_TRIES:
                raise
    raise AssertionError("the last try returns or raises")


def _commit(run: Run, planned: MergePlan, tail: Sequence[Draft], names: Sequence[str]) -> Merged:
    ops, trace = planned.ops, run.store._trace()
    for draft in tail:
        draft.trace = trace
    unit = Unit(ops, trace=trace, whole=True, tail=tail)
    if ops:  # a second process that merges the same is answered with what the first one made
        unit.request_id = f"merge:{sha256(jsontext.encode(list(names))).hexdigest()[:32]}"
        unit.payload = payload_of(unit.request_id, ops)
    results = run._committer.submit(Request(run._head, planned.schema, (unit,)))
    if not unit.tail_seqs:
        return merged_in(run)[names[-1]]
    conflicts, overwrote = tuple(planned.conflicts), tuple(planned.overwrote)
    return Merged(unit.tail_seqs[-1], tuple(names), tuple(results[0] if ops else ()), conflicts, overwrote)


def merged_in(run: Run) -> dict[str, Merged]:
    """The merges on a run's log, by each branch they name."""
    found: dict[str, Merged] = {}
    for event in _of_kind(run, BRANCH_MERGED):
        body = {} if event.erased else event.body
        names = tuple(event.refs.get("branches", ()))
        conflicts, overwrote = tuple(body.get("conflicts", ())), tuple(body.get("overwrote", ()))
        found |= dict.fromkeys(names, Merged(event.seq, names, (), conflicts, overwrote, again=True))
    return found

"""Forks: a new run that goes on from a moment of another, at the same cost for ten events and for a million.

Rules of this module
- The original never changes, and its log gains nothing. A fork shares its past: seq, versions and digests go on from
  the moment; what lies before is read from the ancestor.
- The fork's first own event is `run.forked`: it names the fork, the run that holds the moment, and its seq. With it
  the fork is there, in one transaction, or not at all.
- What was erased or pruned of its past after the moment, the fork says again: its log explains itself.
- At most FORKS_MAX ancestors: beyond, the past is copied, so that no read has a longer way.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from refold_store import erasing, jsontext, pruning
from refold_store.backend import Backend
from refold_store.erased import check_archived
from refold_store.errors import NoSuchMoment, ReadOnlyStore, TransactionInvalid
from refold_store.events import RUN_FORKED, Draft, Row
from refold_store.heads import RunHead
from refold_store.names import check_name
from refold_store.run import Run
from refold_store.store import Store

FORKS_MAX = 16
"""Ancestors of a run."""
COPY_BATCH = 1_000
"""Rows copied at once."""


def fork(run: Run, name: str, *, at: int | str | datetime = "end", by: str, note: str | None = None) -> Run:
    """A new run of the same tenant that goes on from a moment of `run`. `by` is who forks, `note` why.

    Raises NoSuchRun, NoSuchMoment (also for a moment inside a transaction, or before the first event), and
    TransactionInvalid if a run of this name exists.
    """
    store, backend = run.store, run._backend
    if store.read_only:
        raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to fork")
    made = store.run(name, run.tenant)
    check_name("actor", by)
    run.info()
    check_archived(run)
    if run.scope:
        raise TransactionInvalid("the run of a scope cannot be forked: it is shared as it is")
    seq = run.at(at).seq
    run_id = run._run_id()
    place = None if run_id is None else backend.at_seq(run_id, seq)
    if place is None:
        raise NoSuchMoment(f"moment {at} lies before the first event; a fork goes on from an event", moment=at)
    if place.txn is not None and (last := backend.txn_end(place.run, place.txn)) > place.seq:
        raise NoSuchMoment(
            f"seq {place.seq} lies inside the transaction of seq {place.txn} to {last}; "
            f"fork at {place.txn - 1} or at {last}",
            moment=at,
        )
    holder = name_at(backend, place.run, place.seq)
    body = jsontext.encode({} if note is None else {"note": note})
    refs = jsontext.encode({"at": place.seq, "parent": holder, "run": name}).decode()
    draft = Draft(RUN_FORKED, by, refs=refs, body=body, trace=store._trace())
    head = RunHead(run.tenant, name, seq=place.seq, digest=place.digest, recorded_at=place.recorded_at)
    copied = len(backend.pieces(place.run)) > FORKS_MAX

    with store._committer.alone():
        backend.intern([by])
        rows: list[Row] = []
        store._sealer.seal(head, draft, None, store._sealer.now(None), rows)
        first = rows[0]

        def rows_of(number: int) -> Iterator[list[Row]]:
            if copied:
                yield from _copies(backend, place.run, place.seq, number)
            yield [first._replace(run=number)]
            rows.clear()
            for said in (*erasing.inherited_drafts(backend, place.run, place.seq),
                         *pruning.inherited_drafts(backend, place.run, place.seq)):  # fmt: skip
                store._sealer.seal(head, said, None, store._sealer.now(None), rows)
            if rows:
                yield [row._replace(run=number) for row in rows]

        backend.open_whole(
            run.tenant, 0, name, first.recorded_at, rows_of, parent=None if copied else (place.run, place.seq)
        )
        made._head.forget()
    return made


def make_self_contained(store: Store, name: str, tenant: str = "default") -> int:
    """Give a fork its own copy of what it shares, so that its ancestors may go. Returns how many events were copied.

    0 if the run has no parent. Digests, versions and answers stay as they are. Raises NoSuchRun.
    """
    run = store.run(name, tenant)
    run.info()
    number = run._run_id()
    assert number is not None
    with store._committer.alone():
        parent = store._backend.parent_of(number, writer=True)
        if parent is None:
            return 0
        copied = store._backend.detach(number, _copies(store._backend, *parent, number))
        run._head.forget()
    return copied


def _copies(backend: Backend, run: int, upto: int, number: int) -> Iterator[list[Row]]:
    """The rows of a run up to a seq, as rows of another run."""
    found = (
        Row(*row)._replace(run=number) for row in backend.streaming(backend.sql.events, run, (0,), upto, COPY_BATCH)
    )
    while batch := list(islice(found, COPY_BATCH)):
        yield batch


def name_at(backend: Backend, number: int, seq: int) -> str:
    """The name under which a run's own event was recorded.

    Behind a copied past stands the `run.forked` that gave the log its next name, and names the one before.
    """
    for row in (Row(*row) for row in backend.query(backend.sql.by_kind, (number, RUN_FORKED))):
        if row.seq > seq:
            return str(jsontext.decode((row.refs or "{}").encode())["parent"])
    return str(backend.query(backend.sql.runs_all, (number - 1, 1))[0][2])

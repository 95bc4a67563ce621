"""Moving a run's events out of the store, once they are safe in a file.

Rules of this module
- The file was written and read back before. One transaction appends `run.archived`, which names it, and removes the
  rows: a crash leaves a run that is whole, or one that says where it is.
- Exactly what the file holds is removed: if the run went on since, or was forked, nothing is.
- A run shares rows with nobody when it goes: its forks, and itself if it is one, get their own copy first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from refold_store import jsontext
from refold_store.erased import check_archived
from refold_store.errors import ReadOnlyStore, TransactionInvalid
from refold_store.events import RUN_ARCHIVED, Draft
from refold_store.forking import make_self_contained
from refold_store.names import check_name
from refold_store.run import Run
from refold_store.together import Ledger, together

NAMED_MAX = 5
"""Forks named in an error."""


@dataclass(frozen=True, slots=True)
class MovedOut:
    """What left: so many events, up to `until`; `seq` is that of `run.archived`."""

    events: int
    until: int
    seq: int


def check_leaving(run: Run, *, with_forks: bool, dry_run: bool) -> int:
    """The newest seq of a run that may be archived. Raises NoSuchRun, RunArchived, ReadOnlyStore, TransactionInvalid.

    A run with forks may not, unless `with_forks`: then they get their own copy now, as a run that is one does.
    """
    store = run.store
    if store.read_only and not dry_run:
        raise ReadOnlyStore("the store was opened read-only; open it without read_only=True to archive")
    store.flush()
    run.info()
    check_archived(run)
    if run.scope:
        raise TransactionInvalid("the run of a scope cannot be archived: runs read what it holds")
    number = run._run_id()
    assert number is not None
    forks = [name for _child, _tenant, name, _at in run._backend.children(number)]
    if forks and not with_forks:
        raise TransactionInvalid(
            f"run {run.name!r} has forks that share its events: {', '.join(map(repr, forks[:NAMED_MAX]))}; "
            "give them their own copy first (--with-forks, or with_forks=True in Python)"
        )
    for name in () if dry_run else (*forks, run.name):
        make_self_contained(store, name, run.tenant)
    return run.head_seq()


def move_out(run: Run, *, until: int, bundle: str, sha256: str, by: str, reason: str | None = None) -> MovedOut | None:
    """Remove a run's events up to its head `until`, which the file `bundle` holds. None: it went on since."""
    number = run._run_id()
    assert number is not None
    refs: dict[str, object] = {"bundle": bundle, "sha256": sha256, "until": until}
    body: dict[str, object] = {} if reason is None else {"reason": reason}
    work = partial(_apply, number=number, by=check_name("actor", by), refs=refs, body=body)
    return together(run.store, [number], [by], work)


def _apply(
    ledger: Ledger, *, number: int, by: str, refs: dict[str, object], body: dict[str, object]
) -> MovedOut | None:
    backend, head, until = ledger.backend, ledger.head(number), refs["until"]
    if head.seq != until or backend.children(number) or backend.parent_of(number, writer=True) is not None:
        return None
    text = jsontext.encode(refs | {"digest": bytes(head.digest).hex()}).decode()
    seq = ledger.add(number, Draft(RUN_ARCHIVED, by, refs=text, body=jsontext.encode(body)))
    ledger.append()
    return MovedOut(backend.archive_rows(number, seq - 1), seq - 1, seq)

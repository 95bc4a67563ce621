"""One transaction that appends events to several logs and changes the rows they speak of.

Rules of this module
- All or nothing: the events and what they authorise become visible together.
- Nobody else in this process appends meanwhile; another process that got in between makes the work start anew, on
  heads read again. On PostgreSQL no fork can be made meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from refold_store.backend import RunRow
from refold_store.errors import StoreUnavailable
from refold_store.events import Draft, Row
from refold_store.heads import RunHead
from refold_store.keeping import HeadMoved
from refold_store.store import Store

TRIES_MAX = 100
"""Rounds against other processes that append to the same runs; each of them stored something."""

T = TypeVar("T")


class Ledger:
    """The logs that one transaction appends to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.backend = store._backend
        self._heads: dict[int, RunHead] = {}
        self._rows: list[Row] = []

    def head(self, log: int) -> RunHead:
        """The newest end of a log, read in this transaction."""
        found = self._heads.get(log)
        if found is None:
            row = RunRow(*self.backend.query(self.backend.sql.runs_all, (log - 1, 1))[0])
            found = self._heads[log] = self.store._heads.get(row.tenant, row.scope, row.name)
            self.store._heads.load(found)
        return found

    def add(self, log: int, draft: Draft) -> int:
        """Give an event its place in a log. Returns its seq. The names it uses were interned before."""
        head = self.head(log)
        draft.trace = self.store._trace()
        self.store._sealer.seal(head, draft, None, self.store._sealer.now(None), self._rows)
        return head.seq

    def append(self) -> None:
        """Store the events: before the rows change that they speak of."""
        if self._rows:
            self.backend.append(self._rows, durable=True)
            self._rows = []

    def forget(self) -> None:
        """The heads are read again when they are used next."""
        for head in self._heads.values():
            head.forget()


def together(store: Store, runs: Iterable[int], names: Iterable[str], work: Callable[[Ledger], T]) -> T:
    """Do `work` in one transaction. `runs` are the logs it is about, `names` what its events will use."""
    backend = store._backend
    locked = sorted(runs)
    with store._committer.alone():
        backend.intern(names)
        backend.ready_to_erase()
        for _try in range(TRIES_MAX):
            ledger = Ledger(store)
            try:
                with backend.exclusive(locked):
                    backend.writer_query(backend.sql.lock_runs, ())
                    return work(ledger)
            except HeadMoved:
                continue
            finally:
                ledger.forget()
    raise StoreUnavailable(f"others wrote to these runs in each of {TRIES_MAX} tries; nothing was changed, try again")


def reach(store: Store, until: dict[int, int]) -> dict[int, int]:
    """Up to which seq each log shows rows of the given logs up to the given seqs: theirs, and all forks of them."""
    found = dict(until)
    todo = list(found)
    while todo:
        log = todo.pop()
        for child, _tenant, _name, at in store._backend.children(log):
            shared = min(found[log], at)
            if shared > found.get(child, 0):
                found[child] = shared
                todo.append(child)
    return found

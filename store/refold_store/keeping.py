"""What a backend does with whole runs in one transaction: open one with all its rows, make a fork self-contained,
move rows out and put them back; and freeing the space of what is gone.

Rules of this module
- All or nothing: everything happens inside `exclusive`, on the connection for what must survive.
- What the log forbids stays forbidden: triggers let through only what an event of the run authorises.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from refold_store.errors import StoreUnavailable, TransactionInvalid
from refold_store.events import Row
from refold_store.interning import Names
from refold_store.keeping_sql import KEEPING_SQL


class HeadMoved(Exception):
    """Another process appended to this run first, or the connection was lost before the commit; nothing was stored."""


class Keeping(Names):
    """The part of a backend that handles whole runs."""

    name: str

    @abstractmethod
    def append(self, rows: list[Row], *, durable: bool) -> None:
        """Insert rows in one transaction. Raises HeadMoved if any (run, seq) is taken; then nothing was stored."""

    @abstractmethod
    def exclusive(self, runs: Sequence[int]) -> AbstractContextManager[None]:
        """Nobody else appends to these runs while it is open; `append` and `change` inside belong to it."""

    @abstractmethod
    def change(self, sql: str, args: Sequence[Any]) -> int:
        """Run a statement inside `exclusive`. Returns how many rows it changed."""

    def ready_to_erase(self) -> None:
        """Called before rows are changed for good, outside `exclusive`."""

    @abstractmethod
    def vacuum(self) -> None:
        """Rewrite the files, so that nothing of what was erased is left in them. Raises StoreUnavailable."""

    @abstractmethod
    def met(self, run: int, parent: int | None) -> int:
        """Remember of a run whether it is a fork. Returns the run."""

    def open_whole(
        self,
        tenant: str,
        scope: int,
        name: str,
        opened_at: int,
        rows_of: Callable[[int], Iterable[list[Row]]],
        *,
        parent: tuple[int, int] | None = None,
    ) -> int:
        """Make a run with all its rows in one transaction: all or nothing. `rows_of` gets the run's id.

        `parent` is (run, seq) for a fork. Raises TransactionInvalid if the run is there already.
        """
        with self._whole(()):
            self.writer_query(self.sql.lock_runs, ())
            if self.writer_query(self.sql.find_run, (tenant, scope, name)):
                raise TransactionInvalid(f"run {name!r} exists already; nothing was written")
            self.change(self.sql.open_run, (tenant, scope, name, opened_at, *(parent or (None, None))))
            run = int(self.writer_query(self.sql.find_run, (tenant, scope, name))[0][0])
            for rows in rows_of(run):
                self.append(rows, durable=True)
        return self.met(run, None if parent is None else parent[0])

    def detach(self, run: int, batches: Iterable[list[Row]]) -> int:
        """Give a fork the rows it shared, and no parent any more, in one transaction. Returns how many rows."""
        count = 0
        with self._whole((run,)):
            for rows in batches:
                self.append(rows, durable=True)
                count += len(rows)
            self.change(self.sql.detach, (run,))
        return count

    def archive_rows(self, run: int, until: int) -> int:
        """Inside `exclusive`: remove a run's events up to a seq, and its keyframes. Returns how many events."""
        sql = KEEPING_SQL[self.name]
        count = self.change(sql.archive, (run, until))
        self.change(sql.drop_all_frames, (run,))
        return count

    def restore_rows(self, run: int, batches: Iterable[list[Row]]) -> int:
        """Put back the events that an archive took out, in one transaction. Returns how many."""
        count = 0
        with self._whole((run,)):
            for rows in batches:
                self.append(rows, durable=True)
                count += len(rows)
        return count

    @contextmanager
    def _whole(self, runs: Sequence[int]) -> Iterator[None]:
        try:
            with self.exclusive(runs):
                yield
        except HeadMoved as error:
            raise StoreUnavailable("the connection was lost; nothing was written, try again") from error

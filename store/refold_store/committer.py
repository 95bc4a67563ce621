"""The committer: everything a process appends passes here, and is committed in groups.

Rules of this module
- One commit at a time per process. A sync caller who finds it idle commits itself; others queue, and a background
  thread commits all that queued while the last commit was on its way to the disk.
- Reads and refusals wait in `pending` and go in before the next write of this process to their run, at the
  latest after FLUSH_S, without a sync of their own. If they cannot be stored, the next call says so.
- Everything is bounded: a batch, the pending reads, the wait.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from refold_store.appender import Appender
from refold_store.backend import Backend
from refold_store.errors import RefoldError, StoreClosed, StoreUnavailable
from refold_store.events import Draft, Trace
from refold_store.heads import Heads, RunHead
from refold_store.requests import Op, Request, Written, in_event_loop
from refold_store.schema import Schema
from refold_store.sealer import Sealer

BATCH_MAX = 256
"""Requests in one commit: bounds how long one caller waits for others."""
PENDING_MAX = 10_000
"""Reads and refusals that may wait; at this many, readers wait for a flush."""
FLUSH_S = 0.05
"""Longest time a read waits before it is appended."""
FORK_WAIT_S = 5.0
"""Longest time a fork waits for the commit that is under way."""
FLUSH_AGAIN_S = 1.0
"""Pause before a flush that failed is tried again."""


@dataclass(slots=True)
class Pending:
    """Reads and refusals of one run that wait for its next commit. `opener` is set by a refusal."""

    head: RunHead
    schema: Schema
    opener: str | None = None
    drafts: list[Draft] = field(default_factory=list)


class Watch(Protocol):
    """Who wants to know what the committer does. It must not raise, and runs under the committer's lock."""

    def committed(self, requests: int) -> None:
        """So many queued requests were handled in one commit. (A caller who commits itself is not told of.)"""

    def flush_failed(self, error: BaseException) -> None:
        """Reads and refusals that waited could not be stored."""


class Committer:
    """Appends to the log for one store and one process."""

    def __init__(self, backend: Backend, heads: Heads, sealer: Sealer) -> None:
        self.heads = heads
        self.watch: Watch | None = None
        self._sealer = sealer
        self._appender = Appender(backend, heads, sealer, self._note_refusal)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._cond = threading.Condition()
        self._queue: deque[Request] = deque()
        self._pending: dict[int, Pending] = {}
        self._count = 0
        self._deadline: float | None = None
        self._wakes_at: float | None = None
        """When the background thread looks again by itself; None: only when it is told to."""
        self._flush_waits = False
        self._held = False
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failed: BaseException | None = None

    # --- callers -----------------------------------------------------------------------------

    def submit(self, request: Request) -> list[list[Written]]:
        """Commit a request and return what each of its units made. Raises what refused it."""
        if self._closed or self._failed is not None:
            self._complain()
        if not self._queue and not self._flush_waits and self._lock.acquire(blocking=False):
            try:
                if self._pending:
                    self._carry((request,))
                    self._flush_rest()
                self._appender.commit((request,), durable=request.durable)
            finally:
                if request.carried:
                    self._put_back(request)
                self._lock.release()
                if self._queue:
                    with self._cond:
                        self._cond.notify()
            if request.error is not None:
                raise request.error
            return request.results
        return self.submit_later(request).result()

    def write_one(self, head: RunHead, schema: Schema, op: Op, turn: int | None, trace: Trace) -> Written | None:
        """The short way of a lone write of a whole value, when the committer is idle and nothing waits for its run.

        None: nothing was done, `submit` must decide.
        """
        if self._closed or self._failed is not None or self._queue or self._flush_waits or self._pending:
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._appender.write_one(head, schema, op, turn, trace)
        finally:
            self._lock.release()
            if self._queue:
                with self._cond:
                    self._cond.notify()

    def submit_later(self, request: Request) -> Future[list[list[Written]]]:
        """Queue a request for the background thread; the future carries its result or its error."""
        future: Future[list[list[Written]]] = Future()
        request.future = future
        with self._cond:
            self._complain()
            self._queue.append(request)
            self._start()
            self._cond.notify()
        return future

    def note(self, head: RunHead, schema: Schema, draft: Draft, *, opener: str | None = None) -> None:
        """Append a read or refusal with the next commit of its run, or after FLUSH_S."""
        if self._count >= PENDING_MAX and not in_event_loop():
            self.flush()
        with self._cond:
            if self._closed or self._failed is not None:
                self._complain()
            found = self._pending.get(id(head))
            if found is None:
                found = self._pending[id(head)] = Pending(head, schema)
            found.drafts.append(draft)
            if opener is not None:
                found.opener = found.opener or opener
            self._count += 1
            if self._deadline is None:
                self._deadline = time.monotonic() + FLUSH_S
                self._start()
                if self._wakes_at is None or self._wakes_at > self._deadline:
                    self._cond.notify()

    def _note_refusal(self, head: RunHead, schema: Schema, draft: Draft) -> None:
        """A refusal found during a commit; PENDING_MAX is left to the next reader."""
        with self._cond:
            found = self._pending.setdefault(id(head), Pending(head, schema))
            found.drafts.append(draft)
            found.opener = found.opener or draft.actor
            self._count += 1
            if self._deadline is None:
                self._deadline = time.monotonic() + FLUSH_S
                if not self._closed:
                    self._start()
                self._cond.notify()

    def _complain(self) -> None:
        """Raise what must not pass in silence: a closed store, reads that could not be stored."""
        if self._closed:
            raise StoreClosed("the store is closed; open it again")
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error

    def flush(self, *, durable: bool = False) -> None:
        """Append everything that is pending now. Raises if it cannot be stored."""
        with self._lock:
            self._flush(durable=durable)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody in this process appends while it is open; what waited is stored before."""
        with self._lock:
            self._flush(durable=False)
            yield

    def close(self) -> None:
        """Flush, stop the background thread, refuse further calls."""
        with self._cond:
            if self._closed:
                return
            self._closed = True
            self._cond.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            self._drain()
            self._flush(durable=True)

    def before_fork(self) -> None:
        """No commit is under way while the process forks: a child would inherit its lock for ever."""
        self._held = self._lock.acquire(timeout=FORK_WAIT_S)

    def after_fork_in_parent(self) -> None:
        """Go on as before."""
        if self._held:
            self._held = False
            self._lock.release()

    def after_fork(self) -> None:
        """In a forked child: an empty queue, no thread, nothing pending (the parent has it)."""
        self._reset()
        self._sealer.after_fork()
        self.heads.after_fork()

    @property
    def queued(self) -> int:
        """Requests that wait for the background thread."""
        return len(self._queue)

    @property
    def pending(self) -> int:
        """Reads and refusals that wait to be appended."""
        return self._count

    # --- the background thread ---------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="refold-committer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._wait():
            self._flush_waits = True
            with self._lock:
                self._flush_waits = False
                self._drain()
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    try:
                        self._flush(durable=False)
                    except Exception as error:  # told to the next caller
                        self._failed = error
                        if self.watch is not None:
                            self.watch.flush_failed(error)
                        self._deadline = time.monotonic() + FLUSH_AGAIN_S

    def _wait(self) -> bool:
        """Sleep until there is something to commit. False when the store closes."""
        with self._cond:
            while not self._queue and not self._closed:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._wakes_at = self._deadline  # a later deadline needs no call: it looks again before that
                self._cond.wait(left)
            self._wakes_at = None
            return not self._closed

    def _drain(self) -> None:
        """Commit what is queued, at most BATCH_MAX requests at once."""
        while self._queue:
            with self._cond:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
            self._carry(batch)
            try:
                self._flush_rest()
                self._appender.commit(batch, durable=any(request.durable for request in batch))
                if self.watch is not None:
                    self.watch.committed(len(batch))
            except StoreUnavailable as error:
                for request in batch:
                    request.error = request.error or error
            finally:
                for request in batch:
                    if request.carried:
                        self._put_back(request)
                    _answer(request)

    def _flush_rest(self) -> None:
        """Before a write: what waits for other runs, so that no read of this process is younger in the log's end.

        It needs no sync: the write's own carries it. A run that cannot take its reads does not stop the others.
        """
        if self._pending:
            try:
                self._flush(durable=False)
            except StoreUnavailable:
                raise
            except RefoldError as error:
                self._failed = error

    def _flush(self, *, durable: bool) -> None:
        with self._cond:
            batch = [Request(p.head, p.schema, (), opener=p.opener) for p in self._pending.values()]
            self._deadline = None
        if not batch:
            return
        self._carry(batch)
        self._appender.commit(batch, durable=durable)
        failed = [request for request in batch if request.error is not None]
        for request in batch:
            if request.carried:
                self._put_back(request)
        if failed:
            assert failed[0].error is not None
            raise failed[0].error

    # --- pending -----------------------------------------------------------------------------

    def _carry(self, batch: tuple[Request, ...] | list[Request]) -> None:
        """Move what waits for these runs onto the first request of each."""
        with self._cond:
            for request in batch:
                found = self._pending.pop(id(request.head), None)
                if found is not None:
                    self._count -= len(found.drafts)
                    request.carried = found.drafts
                    request.opener = request.opener or found.opener

    def _put_back(self, request: Request) -> None:
        """A commit failed: what it carried waits on."""
        with self._cond:
            found = self._pending.setdefault(id(request.head), Pending(request.head, request.schema))
            found.opener = found.opener or request.opener
            found.drafts[:0] = request.carried
            self._count += len(request.carried)
            request.carried = []
            if self._deadline is None:
                self._deadline = time.monotonic() + FLUSH_AGAIN_S


def _answer(request: Request) -> None:
    future = request.future
    if future is None or not future.set_running_or_notify_cancel():
        return
    if request.error is not None:
        future.set_exception(request.error)
    else:
        future.set_result(request.results)

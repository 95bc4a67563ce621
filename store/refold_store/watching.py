"""What an observer of the live state is told, and where it waits until the observer takes it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from refold_store.live import Live

BEHIND_MAX = 1_000
"""Changes an observer may be behind; then it gets one snapshot in their place."""
POLL_S = 0.25
"""How often a waiting observer looks at the log for what other processes committed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the live document, from version `base` to `version`.

    A snapshot carries the whole `document`, a delta RFC 6902 `operations` (none: what was a draft is committed now).
    `draft` says that the document holds what is not committed yet; `seq` is the newest committed event it counts.
    """

    kind: Literal["snapshot", "delta"]
    base: int
    version: int
    seq: int
    draft: bool
    document: dict[str, Any] | None = None
    operations: list[dict[str, Any]] | None = None


class Watch:
    """What an observer has not seen yet. Iterate it, or ask `next`; `close` ends it.

    With a callback nothing waits here. A callback that raises is dropped, and hurts nobody else: `error` holds why.
    """

    def __init__(self, live: Live, callback: Callable[[Change], None] | None) -> None:
        self._live = live
        self._callback = callback
        self._waiting: deque[Change] = deque()
        self._cond = threading.Condition()
        self._closed = False
        self.error: Exception | None = None
        """What the callback raised."""

    def next(self, timeout_s: float | None = None) -> Change | None:
        """The next change; None if none came in time, or the watch is closed."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._cond:
                left = POLL_S if end is None else min(POLL_S, end - time.monotonic())
                if not self._waiting and not self._closed and left > 0:
                    self._cond.wait(left)
                if self._waiting:
                    return self._waiting.popleft()
                if self._closed or (end is not None and time.monotonic() >= end):
                    return None
            self._live.refresh()

    def __iter__(self) -> Iterator[Change]:
        while (found := self.next()) is not None:
            yield found

    def close(self) -> None:
        """End it; who waits gets None."""
        self._live.forget(self)
        with self._cond:
            self._closed = True
            self._cond.notify_all()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def tell(self, change: Change) -> None:
        """Called by the live state, in order, and by nobody else."""
        if self._callback is not None:
            try:
                self._callback(change)
            except Exception as error:  # of the observer's own code: whoever changed the state is not to blame
                self.error = error
                self.close()
            return
        if len(self._waiting) >= BEHIND_MAX:
            change = self._live.instead(self)
            with self._cond:
                self._waiting.clear()
        with self._cond:
            self._waiting.append(change)
            self._cond.notify_all()

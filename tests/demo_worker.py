"""The command line in a process that is killed before the n-th append to a store: `demo_worker.py N WORDS...`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from refold.__main__ import main
from refold_store.sqlite import SqliteBackend


def armed(limit: int) -> Any:
    """`SqliteBackend.append` that ends the process instead of its call number `limit`."""
    append, count = SqliteBackend.append, 0

    def counted(self: SqliteBackend, rows: Any, *, durable: bool) -> None:
        nonlocal count
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, rows, durable=durable)

    return counted


if __name__ == "__main__":
    SqliteBackend.append = armed(int(sys.argv[1]))  # type: ignore[method-assign]
    sys.argv = ["refold", *sys.argv[2:]]
    main()

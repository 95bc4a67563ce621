"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[int, int, str], None]


@contextmanager
def bar(label: str) -> Iterator[Progress | None]:
    """`progress(done, total, run)` for the functions of the replay part; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr, width=0) as shown:

        def progress(done: int, total: int, run: str) -> None:
            shown.length = max(total, done, 1)
            shown.update(done - shown.pos)

        yield progress

"""A list that only grows: the cost of an append, late against early, and what it leaves on disk."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from bench.lab import RAM, Lab, ratio_check
from bench.measure import Side
from bench.registry import Check, Line, benchmark
from bench.subject import Refold

APPENDS, QUICK_APPENDS = 100_000, 5_000
EARLY = 1_000
LATE_AIM = 1.2
LINEAR_AIM = 1.2  # bytes an append over the last nine tenths, against the first tenth


@benchmark("append", "append of 300 B to a list, after many appends against the first 1,000; bytes on disk")
def append(lab: Lab) -> Iterator[Line]:
    """Each turn: the first 1,000 appends of a fresh run, and 1,000 more of the long one."""
    if RAM not in lab.options.places:
        return
    appends = QUICK_APPENDS if lab.options.quick else APPENDS
    for backend in lab.options.backends:
        early, late = Refold(lab, backend), Refold(lab, backend)
        sizes = [late.size()]
        for share in (appends // 10, appends - appends // 10):
            late.append(share)
            sizes.append(late.size())
        numbers = count()

        def first(operations: int, early: Refold = early, numbers: Iterator[int] = numbers) -> None:
            early.use(f"run-{next(numbers)}")
            early.append(operations)

        sides = [Side("early", first, fixed=EARLY), Side("late", late.append, fixed=EARLY)]
        times = lab.compare(sides, whole_runs=True)
        tenth = (sizes[1] - sizes[0]) / (appends // 10)
        rest = (sizes[2] - sizes[1]) / (appends - appends // 10)
        line = Line(f"append to a list after {appends:,}", backend, RAM)
        line.checks.append(ratio_check(times, "late", "early", LATE_AIM, what="x the first 1,000"))
        line.checks.append(Check("x bytes an append, last 90 % against first 10 %", rest / tenth, LINEAR_AIM))
        line.counts = {"bytes an append": (sizes[2] - sizes[0]) / appends}
        line.microseconds = {name: times.microseconds(name) for name in times.rounds}
        yield line
        early.close()
        late.close()

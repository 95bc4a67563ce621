"""How times become ratios: all sides of a comparison take turns in each round, and only their ratios are claims.

A machine's speed drifts by more than what is measured here, so a time alone says little. In each round every side runs
once, in an order that moves on by one each round; a ratio is taken within a round; the median of the rounds counts.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

TARGET_S = 0.05  # how long one side's turn in one round lasts, about: many short rounds beat few long ones
WARM_OPERATIONS = 24
MAX_OPERATIONS = 20_000


@dataclass(slots=True)
class Side:
    """One contestant: `operate(n)` does n operations; it may return the seconds itself, to leave out other work."""

    name: str
    operate: Callable[[int], float | None]
    least: int = 8
    most: int = MAX_OPERATIONS
    fixed: int = 0
    unit: int = 1  # how many of the table's operations one operation here does (100 keys of a transaction)
    size: Callable[[], int] | None = None  # bytes on disk, to see what an operation adds

    def turn(self, operations: int) -> float:
        """Seconds for so many operations."""
        gc.collect()
        started = perf_counter()
        own = self.operate(operations)
        return perf_counter() - started if own is None else own


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the rounds' ratios, with the quartiles beside it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds an operation, for each side, round by round."""

    rounds: dict[str, list[float]]

    def ratio(self, side: str, base: str) -> Ratio:
        """How much longer one side takes than another."""
        ratios = [ours / theirs for ours, theirs in zip(self.rounds[side], self.rounds[base], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
        return Ratio(median, low, high)

    def microseconds(self, side: str) -> float:
        """The median time of one operation: for information only."""
        return statistics.median(self.rounds[side]) * 1e6


def operations_for(side: Side, target_s: float) -> int:
    """Warms a side up and says how many of its operations fill a turn."""
    if side.fixed:
        side.turn(side.fixed)
        return side.fixed
    warm = min(WARM_OPERATIONS, side.most)
    side.turn(warm)
    once_s = side.turn(warm) / warm
    return max(side.least, min(side.most, int(target_s / max(once_s, 1e-9))))


def compare(sides: Sequence[Side], *, rounds: int, target_s: float = TARGET_S) -> Timings:
    """Runs the rounds."""
    counts = {side.name: operations_for(side, target_s) for side in sides}
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds):
        shift = number % len(sides)
        for side in [*sides[shift:], *sides[:shift]]:
            operations = counts[side.name]
            times[side.name].append(side.turn(operations) / (operations * side.unit))
    return Timings(times)

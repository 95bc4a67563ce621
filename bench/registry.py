"""The list of benchmarks: a name, the table's row that it answers, and the function that measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bench.measure import Timings

if TYPE_CHECKING:
    from bench.lab import Lab

Sense = Literal["<=", ">="]


@dataclass(frozen=True, slots=True)
class Check:
    """One figure with its aim."""

    what: str
    value: float
    aim: float
    sense: Sense = "<="
    low: float | None = None
    high: float | None = None
    slack: float = 0.0  # the share by which a count may pass its aim, where the database adds work of its own

    @property
    def passed(self) -> bool:
        """Whether the aim is met."""
        if self.sense == "<=":
            return self.value <= self.aim * (1 + self.slack)
        return self.value >= self.aim * (1 - self.slack)


@dataclass(slots=True)
class Line:
    """What one benchmark found in one case: figures with aims, and figures to read beside them."""

    operation: str
    backend: str
    place: str
    checks: list[Check] = field(default_factory=list)
    peers: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    microseconds: dict[str, float] = field(default_factory=dict)
    note: str = ""
    peer_unit: str = "x"

    def compared(self, times: Timings, side: str, base: str, aim: float | None = None) -> None:
        """Adds the ratio of two sides, with its aim if it has one, and the times of all sides."""
        ratio = times.ratio(side, base)
        if aim is None:
            self.counts[f"x {base}"] = ratio.median
        else:
            self.checks.append(Check(f"x {base}", ratio.median, aim, "<=", ratio.low, ratio.high))
        self.microseconds |= {name: times.microseconds(name) for name in times.rounds}


Measure = Callable[["Lab"], Iterator[Line]]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A registered benchmark."""

    name: str
    row: str
    measure: Measure


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(name: str, row: str) -> Callable[[Measure], Measure]:
    """Registers the function under a name, with the words of the table's row."""

    def register(measure: Measure) -> Measure:
        if name in BENCHMARKS:
            raise ValueError(f"two benchmarks are called {name!r}: rename one")
        BENCHMARKS[name] = Benchmark(name, row, measure)
        return measure

    return register

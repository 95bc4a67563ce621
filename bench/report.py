"""What a run found, as Markdown for people and as JSON for programs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bench.lab import Options
from bench.registry import BENCHMARKS, Check, Line

COLUMNS = (
    "operation",
    "on",
    "figure",
    "aim",
    "met",
    "quartiles",
    "peers, x the same base unless said",
    "counts an operation",
    "µs",
)
HEADER, RULE = f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"


def number(value: float) -> str:
    """A figure with about three digits that mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.4f}"


def named(values: Mapping[str, float], unit: str = "") -> str:
    """Names and figures on one line."""
    return ", ".join(f"{name} {number(value)}{unit}" for name, value in values.items())


def rows(line: Line) -> Iterator[str]:
    """A line's rows: one a figure with an aim; what stands beside them is said once."""
    peers, counts, times = named(line.peers, line.peer_unit), named(line.counts), named(line.microseconds)
    where = f"{line.backend}, {line.place}"
    operation = line.operation + (f" ({line.note})" if line.note else "")
    if not line.checks:
        yield f"| {operation} | {where} | - | - | - | - | {peers} | {counts} | {times} |"
    for check in line.checks:
        spread = (
            f"{number(check.low)} to {number(check.high)}" if check.low is not None and check.high is not None else ""
        )
        aim = f"{check.sense} {number(check.aim)}"
        yield (
            f"| {operation} | {where} | {number(check.value)} {check.what} | {aim} | {verdict(check)} "
            f"| {spread} | {peers} | {counts} | {times} |"
        )
        operation, peers, counts, times = "", "", "", ""


def verdict(check: Check) -> str:
    """The word for met or not."""
    return "yes" if check.passed else "**no**"


def markdown(found: Mapping[str, list[Line]], failed: Mapping[str, str], options: Options) -> str:
    """The whole report."""
    checks = [check for lines in found.values() for line in lines for check in line.checks]
    met = sum(check.passed for check in checks)
    parts = [
        "# refold: speed",
        "",
        f"{met} of {len(checks)} aims met. {options.rounds} rounds, {options.scale:,} events in the long run"
        f"{', quick (not for claims)' if options.quick else ''}; Python {platform.python_version()}.",
        "Every figure is a ratio inside one run, or a count; µs are for information. bench/README.md explains.",
    ]
    for name, lines in found.items():
        parts += ["", f"## {name}: {BENCHMARKS[name].row}", "", HEADER, RULE]
        parts += [row for line in lines for row in rows(line)]
    for name, reason in failed.items():
        parts += ["", f"## {name}: could not be measured", "", "```", reason.strip(), "```"]
    return "\n".join(parts) + "\n"


def as_json(found: Mapping[str, list[Line]], failed: Mapping[str, str], options: Options) -> dict[str, Any]:
    """The same for programs."""
    lines = [
        {"benchmark": name, "row": BENCHMARKS[name].row, **asdict(line), "checks": list(checks_of(line.checks))}
        for name, lines in found.items()
        for line in lines
    ]
    return {"options": asdict(options), "lines": lines, "failed": dict(failed)}


def checks_of(checks: Iterable[Check]) -> Iterator[dict[str, Any]]:
    """Figures with their verdict."""
    for check in checks:
        yield {**asdict(check), "passed": check.passed}

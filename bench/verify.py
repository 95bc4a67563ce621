"""Checking a whole log, and filling one from a file: rates against a bare scan of as many rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Literal

from bench.lab import RAM, Lab, ratio_check
from bench.measure import Side
from bench.registry import Line, benchmark
from bench.subject import RUN, BenchState, filled, filled_floor, new_store_url
from bench.values import DOCUMENTS, OWNER, READER, key_names
from refold_replay.importing import import_files
from refold_replay.verify import verify as verify_store

DIGEST_AIM, FULL_AIM, IMPORT_AIM = 0.5, 0.2, 0.05
IMPORT_LINES, QUICK_LINES = 20_000, 2_000
READ_EVERY = 2  # every other line of the file is a read


def verifying(url: str, level: Literal["digest", "full"]) -> Callable[[int], None]:
    """Verifies all of a store and insists that nothing is wrong."""

    def operate(operations: int) -> None:
        for _ in range(operations):
            report = verify_store(url, level=level)
            assert report.ok, report.findings

    return operate


@benchmark("verify", "verify: digests, density, versions; schema and fold")
def verify(lab: Lab) -> Iterator[Line]:
    """Events a second against rows a second of a bare scan."""
    scale = lab.options.scale
    for backend in lab.options.backends:
        ours, floor = filled(lab, backend, scale), filled_floor(lab, backend, scale)
        head = ours.head()
        ours.close()
        sides = [
            Side("floor", floor.scan, fixed=1, unit=scale),
            Side("digest", verifying(ours.url, "digest"), fixed=1, unit=head),
            Side("full", verifying(ours.url, "full"), fixed=1, unit=head),
        ]
        times = lab.compare(sides, whole_runs=True)
        for level, aim, words in (
            ("digest", DIGEST_AIM, "verify digests, density, versions"),
            ("full", FULL_AIM, "verify schema and fold too"),
        ):
            line = Line(words, backend, RAM, note=f"{scale:,} events")
            line.checks.append(ratio_check(times, level, "floor", aim, what="x the floor's scan rate", sense=">="))
            line.microseconds = {name: times.microseconds(name) for name in ("floor", level)}
            yield line
        floor.close()


def write_recording(path: Path, lines: int) -> None:
    """A recorded run as refold imports it: reads and writes of ten keys."""
    keys = key_names(10)
    versions = dict.fromkeys(keys, 0)
    with path.open("w", encoding="utf-8") as file:
        for seq in range(1, lines + 1):
            key = keys[seq // READ_EVERY % len(keys)]
            event: dict[str, object] = {"run": RUN, "seq": seq, "ts": None, "key": key}
            if seq % READ_EVERY:
                event |= {"kind": "write", "agent": OWNER, "value": DOCUMENTS[seq % len(DOCUMENTS)]}
                event |= {"prev_version": versions[key], "version": versions[key] + 1}
                versions[key] += 1
            else:
                event |= {"kind": "read", "agent": READER, "version": versions[key], "partial": True}
            file.write(json.dumps(event) + "\n")


@benchmark("import", "import: lines of a recorded run")
def import_recording(lab: Lab) -> Iterator[Line]:
    """Lines a second against rows a second of a bare scan; each turn fills a new store."""
    lines = QUICK_LINES if lab.options.quick else IMPORT_LINES
    path = lab.folder / "recording.jsonl"
    write_recording(path, lines)
    for backend in lab.options.backends:
        floor = filled_floor(lab, backend, lines)

        def fill(operations: int, backend: str = backend) -> float:
            spent_s = 0.0
            for _ in range(operations):
                url = new_store_url(lab, backend)
                started = perf_counter()
                report = import_files(url, [path], schema=BenchState)
                spent_s += perf_counter() - started
                assert report.ok, report.errors
            return spent_s

        sides = [Side("floor", floor.scan, fixed=1, unit=lines), Side("import", fill, fixed=1, unit=lines)]
        times = lab.compare(sides, whole_runs=True)
        line = Line("import", backend, RAM, note=f"{lines:,} lines, half of them reads")
        line.checks.append(
            ratio_check(times, "import", "floor", IMPORT_AIM, what="x the floor's scan rate", sense=">=")
        )
        line.microseconds = {name: times.microseconds(name) for name in times.rounds}
        yield line
        floor.close()

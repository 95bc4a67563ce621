"""Replay and audit on a long run: causes, damage, conditions, forks, bundles; verify beside the hashing it must do."""

from __future__ import annotations

import gzip
import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg

from bench.lab import RAM, SQLITE, Lab, ratio_check
from bench.measure import Side
from bench.registry import Check, Line, benchmark
from bench.subject import RUN, BenchState, Refold, new_store_url
from bench.values import OWNER
from refold import Store, open_store
from refold_replay.blame import blame
from refold_replay.bundle_import import import_bundle
from refold_replay.comparing import compare
from refold_replay.exporting import export
from refold_replay.finding import find
from refold_replay.tracing import impact, why
from refold_replay.verify import verify
from refold_store.forking import fork

HASHED_AIM = 2.0
FORK_AIM = 1.3
READ_EVERY = 2
SHORT = 10
"""Events of the short run that is forked."""
COLUMNS = (
    "seq, txn, turn, version, seen_seq, recorded_at, clock, trace_flags, kind, actor, owner, key, request_id, refs, "
    "trace_id, span_id, salt, body, commitment, digest"
)


def history(lab: Lab, backend: str, events: int) -> Refold:
    """A run of writes and recorded reads, half and half, on ten keys."""
    ours = Refold(lab, backend)
    for _ in range(events // 20):
        ours.write(10)
        ours.read(10)
    ours.store.flush()
    return ours


def scan_of(url: str, *, hashed: bool = False) -> Callable[[int], None]:
    """The bare driver over all columns of the log; `hashed`: and SHA-256 of each row, twice, as a digest needs."""

    def operate(operations: int) -> None:
        sha = hashlib.sha256
        for _ in range(operations):
            before = b""
            for row in _rows(url):
                if hashed:
                    salt, body, digest = row[16], row[17], row[19]
                    before = sha(before + digest + sha(salt if body is None else salt + body).digest()).digest()

    return operate


def _rows(url: str) -> Iterator[tuple[Any, ...]]:
    if url.startswith("postgresql"):
        with psycopg.connect(url) as connection, connection.cursor("scan", binary=True) as cursor:
            cursor.itersize = 1000
            yield from cursor.execute(f"SELECT {COLUMNS} FROM events WHERE run = 1 ORDER BY seq".encode())
        return
    plain = sqlite3.connect(url.removeprefix("sqlite:///"))
    yield from plain.execute(f"SELECT {COLUMNS} FROM events ORDER BY pos")
    plain.close()


def repeated(work: Callable[[], object]) -> Callable[[int], None]:
    """A side that does its work so many times."""

    def operate(operations: int) -> None:
        for _ in range(operations):
            work()

    return operate


@benchmark("hashing", "verify against a bare scan and SHA-256 of the same bytes")
def hashing(lab: Lab) -> Iterator[Line]:
    """Digests, density and versions of a log, against fetching and hashing the same rows."""
    for backend in lab.options.backends:
        ours = history(lab, backend, lab.options.scale)
        url = ours.url
        ours.close()
        sides = [
            Side("scan+sha", scan_of(url, hashed=True), fixed=1),
            Side("verify", repeated(lambda url=url: verify(url, level="digest", workers=1)), fixed=1),  # type: ignore[misc]
        ]
        times = lab.compare(sides, whole_runs=True)
        line = Line("verify digests, density, versions", backend, RAM, note=f"{lab.options.scale:,} events")
        line.checks.append(ratio_check(times, "verify", "scan+sha", HASHED_AIM, what="x scan and SHA-256"))
        line.microseconds = {name: times.microseconds(name) for name in times.rounds}
        yield line


def asked(ours: Refold) -> list[Side]:
    """The questions of a postmortem, and the scan beside them."""
    run, key, middle = ours.run, ours.keys[0], ours.head() // 2
    condition = f'state["{key}"] == 0'
    return [
        Side("scan", scan_of(ours.url), fixed=1),
        Side("blame", repeated(lambda: blame(run, key)), fixed=1),
        Side("find", repeated(lambda: find(run, condition, which="all")), fixed=1),
        Side("diff", repeated(lambda: compare(run.at(middle), run.at("end"))), fixed=1),
        Side("impact", repeated(lambda: impact(run, key, 1)), fixed=1),
        Side("why", repeated(lambda: why(run, key)), fixed=1),
    ]


@benchmark("questions", "blame, find, diff, impact, why on a long run")
def questions(lab: Lab) -> Iterator[Line]:
    """Each against a bare scan of the run's rows."""
    for backend in lab.options.backends:
        ours = history(lab, backend, lab.options.scale)
        sides = asked(ours)
        times = lab.compare(sides, whole_runs=True)
        for name in ("blame", "find", "diff", "impact", "why"):
            line = Line(name, backend, RAM, note=f"{lab.options.scale:,} events, half of them reads")
            line.compared(times, name, "scan")
            yield line
        ours.close()


@benchmark("forks", "fork of a short and of a long run")
def forks(lab: Lab) -> Iterator[Line]:
    """The same cost for ten events and for a long run."""
    for backend in lab.options.backends:
        ours = history(lab, backend, lab.options.scale)
        ours.use("short")
        ours.write(SHORT)
        names = count()
        store = ours.store

        def forking(name: str, store: Store = store, names: Iterator[int] = names) -> Callable[[int], None]:
            return repeated(lambda: fork(store.run(name), f"{name}-{next(names)}", by=OWNER))

        sides = [Side("short", forking("short")), Side("long", forking(RUN))]
        times = lab.compare(sides)
        line = Line("fork", backend, RAM, note=f"{SHORT} events and {lab.options.scale:,}")
        line.checks.append(ratio_check(times, "long", "short", FORK_AIM, what="x a fork of a short run"))
        line.microseconds = {name: times.microseconds(name) for name in times.rounds}
        yield line
        ours.close()


@benchmark("bundles", "export and import of a bundle")
def bundles(lab: Lab) -> Iterator[Line]:
    """Against a bare scan of the same rows, and bytes an event against gzip of the events as JSON lines."""
    scale = lab.options.scale
    for backend in lab.options.backends:
        ours = history(lab, backend, scale)
        path = lab.fresh_file("bundle")
        report = export(ours.run, path)

        def bring(path: object = path, backend: str = backend) -> None:
            with open_store(new_store_url(lab, backend)) as store:
                import_bundle(store, str(path))

        sides = [
            Side("scan", scan_of(ours.url), fixed=1, unit=report.events),
            Side("export", repeated(lambda ours=ours, path=path: export(ours.run, path)), fixed=1, unit=report.events),  # type: ignore[misc]
            Side("import", repeated(bring), fixed=1, unit=report.events),
        ]
        times = lab.compare(sides, whole_runs=True)
        raw = gzip.compress(b"".join(_plain(event) for event in ours.run.events()), 6)
        for name in ("export", "import"):
            line = Line(name, backend, RAM, note=f"{report.events:,} events")
            line.compared(times, name, "scan")
            if name == "export":
                line.counts |= {
                    "bytes an event": report.size / report.events,
                    "x gzip of JSON lines": report.size / len(raw),
                }
            yield line
        ours.close()


def _plain(event: object) -> bytes:
    """An event as somebody would log it: no salt, no digest."""
    names = ("seq", "kind", "actor", "key", "version", "seen_seq", "recorded_at", "refs", "body")
    return json.dumps({name: getattr(event, name) for name in names}).encode() + b"\n"


MEMORY = f"""
import sys
from refold import check_bundle, export, open_store, verify
from refold_replay.bundle_import import import_bundle
work, url, path = sys.argv[1:]
with open_store(url, read_only=work != "import") as store:
    run = store.run("{RUN}")
    {{"export": lambda: export(run, path), "import": lambda: import_bundle(store, path),
      "verify": lambda: verify(store, workers=1)}}[work]()
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@benchmark("memory", "memory of verify, export and import as events grow tenfold")
def memory(lab: Lab) -> Iterator[Line]:
    """The most resident memory of a process that does it (Linux), for a tenth of the scale and for all of it."""
    scale = lab.options.scale
    peaks: dict[str, list[int]] = {"verify": [], "export": [], "import": []}
    for events in (scale // 10, scale):
        ours = history(lab, SQLITE, events)
        url, path = ours.url, str(lab.fresh_file("bundle"))
        ours.close()
        for work in peaks:
            target = url if work != "import" else new_store_url(lab, SQLITE)
            if work == "import":
                open_store(target, BenchState).close()
            done = subprocess.run(
                [sys.executable, "-c", MEMORY, work, target, path], capture_output=True, text=True, check=True
            )
            peaks[work].append(int(done.stdout))
    for work, (small, large) in peaks.items():
        line = Line(f"memory of {work}", SQLITE, RAM, note=f"{scale // 10:,} and {scale:,} events")
        line.checks.append(Check("x a tenth of the events", large / small, 1.5))
        line.counts = {"MB": large / 1024}
        yield line

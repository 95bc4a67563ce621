"""A second, straightforward reading of the log, for tests: rows by the bare driver, digests by hand.

Nothing here uses refold, so that an error in it cannot hide itself. `check_log` demands of every run what must always
hold: seq and versions dense from 1, the digest chain, times that never go back, whole transactions, and reads that name
a version which existed at their `seen_seq`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
import struct
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

# fmt: off
KINDS = (
    "", "state.written", "state.deleted", "state.read", "state.refused", "run.opened", "run.imported",
    "schema.declared", "turn.started", "turn.committed", "turn.rolled_back", "handoff.made", "route.decided",
    "model.answered", "tool.returned", "message.added", "failure.raised", "branch.opened", "branch.merged",
    "owner.changed", "value.erased", "reads.pruned", "note.added", "replay.started",
)
COLUMNS = (
    "run", "seq", "kind", "actor", "owner", "txn", "turn", "key", "version", "seen_seq", "recorded_at", "clock",
    "request_id", "refs", "salt", "body", "commitment", "digest", "trace_id", "span_id", "trace_flags",
)
# fmt: on

RunName = tuple[str, int, str]
"""Tenant, scope, run name."""


@dataclass(frozen=True)
class Raw:
    """One stored row, names as text."""

    seq: int
    kind: str
    actor: str | None
    owner: str | None
    txn: int | None
    turn: int | None
    key: str | None
    version: int | None
    seen_seq: int | None
    recorded_at: int
    clock: int | None
    request_id: str | None
    refs: str | None
    salt: bytes
    body: bytes | None
    digest: bytes
    trace_id: bytes | None
    span_id: bytes | None
    trace_flags: int | None

    @property
    def value(self) -> Any:
        """The value of a write that stores whole values."""
        return json.loads(self.body or b"{}").get("value")


def rows_of(url: str, sql: str) -> list[tuple[Any, ...]]:
    """All rows of a statement, by the bare driver."""
    if url.startswith("postgresql://"):
        with psycopg.connect(url) as connection:
            return connection.execute(sql.encode()).fetchall()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as plain:
        return plain.execute(sql).fetchall()


def read_log(url: str, name: str | None = None) -> dict[RunName, list[Raw]]:
    """The events, in seq order, of every run or of those of one name. Runs without events are listed, too."""
    runs = {row[0]: (row[1], row[2], row[3]) for row in rows_of(url, "SELECT id, tenant, scope, name FROM runs")}
    runs = {number: run for number, run in runs.items() if name in (None, run[2])}
    wanted = ", ".join(str(number) for number in runs) or "0"
    names: dict[Any, Any] = dict(rows_of(url, "SELECT id, name FROM names"))
    names[None] = None
    log: dict[RunName, list[Raw]] = {run: [] for run in runs.values()}
    for row in rows_of(url, f"SELECT {', '.join(COLUMNS)} FROM events WHERE run IN ({wanted}) ORDER BY run, seq"):
        cell = dict(zip(COLUMNS, row, strict=True))
        run = runs[cell.pop("run")]
        assert cell.pop("commitment") is None, "nothing here erases"
        cell["kind"] = KINDS[cell["kind"]]
        for column in ("actor", "owner", "key"):
            assert cell[column] in names, f"{run} seq {cell['seq']}: {column} {cell[column]} has no name"
            cell[column] = names[cell[column]]
        log[run].append(Raw(**cell))
    return log


def check_log(url: str, name: str | None = None) -> dict[RunName, list[Raw]]:
    """Read the log and demand of each run, or of those of one name, what must always hold."""
    log = read_log(url, name)
    declared = {row[0] for row in rows_of(url, "SELECT fingerprint FROM schemas")}
    for run, events in log.items():
        check_run(run, events)
        for event in events:
            if event.kind == "schema.declared":
                assert json.loads(event.body or b"")["fingerprint"] in declared, f"{run}: its schema is not stored"
    return log


def check_run(run: RunName, events: list[Raw]) -> None:
    """Density, digests, times, transactions and reads of one run."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), f"{run}: seq is not dense"
    assert digests(run, events) == [event.digest for event in events], f"{run}: the digests do not chain"
    times = [event.recorded_at for event in events]
    assert all(before < after for before, after in itertools.pairwise(times)), f"{run}: time went back"
    requests = [event.request_id for event in events if event.request_id is not None]
    assert len(requests) == len(set(requests)), f"{run}: a request_id is bound twice"
    _check_versions(run, events)
    _check_transactions(run, events)


def digests(run: RunName, events: Iterable[Raw]) -> list[bytes]:
    """The chain, computed anew from the stored columns."""
    tenant, scope, name = run
    digest = hashlib.sha256(b"refold.log.1" + _text(tenant) + _text(name) + bytes([scope])).digest()
    found = []
    for e in events:
        numbers = (e.seq, e.txn, e.turn, e.version, e.seen_seq, e.recorded_at, e.clock, e.trace_flags)
        head = struct.pack(">8q", *(-1 if number is None else number for number in numbers))
        for text in (e.kind, e.actor, e.owner, e.key, e.request_id, e.refs, e.trace_id, e.span_id):
            head += _text(text)
        commitment = hashlib.sha256(e.salt + (e.body or b"")).digest()
        digest = hashlib.sha256(digest + head + commitment).digest()
        found.append(digest)
    return found


def _text(text: str | bytes | None) -> bytes:
    if text is None:
        return b"\xff\xff\xff\xff"
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(raw)) + raw


def _check_versions(run: RunName, events: list[Raw]) -> None:
    made: dict[str | None, list[int]] = defaultdict(list)
    for event in events:
        if event.kind in ("state.written", "state.deleted"):
            made[event.key].append(event.seq)
            assert event.version == len(made[event.key]), f"{run} seq {event.seq}: versions are not dense"
    for event in events:
        if event.kind != "state.read" or '"scope"' in (event.refs or ""):
            continue
        seen = event.seen_seq or 0
        assert 0 <= seen < event.seq, f"{run} seq {event.seq}: a read saw its own future"
        pairs = json.loads(event.refs)["keys"] if event.key is None else [(event.key, event.version)]  # type: ignore[arg-type]
        for key, version in pairs:
            existed = bisect_right(made[key], seen)
            assert (version or 0) <= existed, f"{run} seq {event.seq}: it read version {version} of {existed}"


def _check_transactions(run: RunName, events: list[Raw]) -> None:
    seqs: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event.txn is not None:
            seqs[event.txn].append(event.seq)
    for txn, found in seqs.items():
        assert found == list(range(txn, txn + len(found))), f"{run}: transaction {txn} is not contiguous"


@contextmanager
def ram_folder() -> Iterator[Path]:
    """A folder on a RAM disk where there is one: a killed process loses nothing on either, and syncs cost nothing."""
    ram = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="refold-test-", dir=ram if os.access(ram, os.W_OK) else None) as folder:
        yield Path(folder)

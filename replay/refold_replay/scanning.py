"""The statements a verification runs beside those of the store, and its rows.

Rules of this module
- One pass over a stretch of a run, in seq order. Numbers a header packs come first, -1 for none, so that they are
  packed as they stand.
- Texts of both databases stand side by side; the backend's name chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BATCH = 1000
"""Rows fetched at once."""

_NUMBERS = ("txn", "turn", "version", "seen_seq", None, "clock", "trace_flags")
_REST = "kind, actor, owner, key, request_id, refs, trace_id, span_id, salt, body, commitment, digest"
_NUMBER_LIST = ", ".join(
    "recorded_at" if name is None else f"CASE {name} WHEN -1 THEN -2 ELSE coalesce({name}, -1) END" for name in _NUMBERS
)
"""A stored -1 is no number of an event, and must not pass for none."""

SEQ, TXN, TURN, VERSION, SEEN_SEQ, RECORDED_AT, CLOCK, TRACE_FLAGS = range(8)
KIND, ACTOR, OWNER, KEY, REQUEST_ID, REFS, TRACE_ID, SPAN_ID, SALT, BODY, COMMITMENT, DIGEST = range(8, 20)
"""Where each column stands in a scanned row."""


@dataclass(frozen=True, slots=True)
class Scans:
    """Statements of one database. Parameters: run, then what the name says."""

    rows: str
    """Rows from one seq to another, both included."""
    next_run: str
    """The first run id above one that has events."""
    runs: str
    """All runs: id, tenant, name, scope, and where a fork goes on: run and seq."""
    odd_runs: str
    """Runs opened at what is no time."""
    first: str
    """The first event that a run itself holds: seq, kind, refs."""
    named: str
    """The first run.forked that a run itself holds."""
    txn_at: str
    """The transaction of a seq."""
    schemas: str
    frames: str
    """Keyframes of a run: key, seq, version, body."""
    loose_frames: str
    """Keyframes beside no state event of their key, seq and version."""
    requests_twice: str
    file: str
    """The database's own check of tables against indexes, where there is one for everybody."""


SQLITE: Final = Scans(
    rows=(
        f"SELECT pos & 4294967295, {_NUMBER_LIST}, {_REST} FROM events "
        "WHERE pos BETWEEN (?1 << 32 | ?2) AND (?1 << 32 | ?3) ORDER BY pos"
    ),
    next_run="SELECT pos >> 32 FROM events WHERE pos > (?1 << 32 | 4294967295) ORDER BY pos LIMIT 1",
    runs="SELECT id, tenant, name, scope, parent, parent_seq FROM runs ORDER BY id",
    odd_runs="SELECT id, opened_at FROM runs WHERE typeof(opened_at) <> 'integer' OR opened_at < 0 ORDER BY id",
    first=(
        "SELECT pos & 4294967295, kind, refs FROM events "
        "WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) ORDER BY pos LIMIT 1"
    ),
    named=(
        "SELECT refs FROM events WHERE kind = 24 AND kind > 3 "
        "AND pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) ORDER BY pos LIMIT 1"
    ),
    txn_at="SELECT txn FROM events WHERE pos = (?1 << 32 | ?2)",
    schemas="SELECT fingerprint, declaration FROM schemas NOT INDEXED",
    frames="SELECT key, seq, version, body FROM keyframes WHERE run = ?1 ORDER BY key, seq",
    loose_frames=(
        "SELECT k.run, k.key, k.seq, k.version FROM keyframes k LEFT JOIN events e ON e.pos = (k.run << 32 | k.seq) "
        "WHERE e.pos IS NULL OR e.kind <> 1 OR e.key <> k.key OR e.version <> k.version ORDER BY k.run, k.seq LIMIT 100"
    ),
    requests_twice=(
        "SELECT run, request_id, max(seq) FROM events WHERE request_id IS NOT NULL "
        "GROUP BY request_id, run HAVING count(*) > 1 ORDER BY run, request_id LIMIT 100"
    ),
    file="PRAGMA integrity_check(20)",
)

POSTGRESQL: Final = Scans(
    rows=(f"SELECT seq, {_NUMBER_LIST}, {_REST} FROM events WHERE run = $1 AND seq >= $2 AND seq <= $3 ORDER BY seq"),
    next_run="SELECT run FROM events WHERE run > $1 ORDER BY run LIMIT 1",
    runs="SELECT id, tenant, name, scope, parent, parent_seq FROM runs ORDER BY id",
    odd_runs="SELECT id, opened_at FROM runs WHERE opened_at < 0 ORDER BY id",
    first="SELECT seq, kind::int8, refs FROM events WHERE run = $1 ORDER BY seq LIMIT 1",
    named="SELECT refs FROM events WHERE run = $1 AND kind = 24 AND kind > 3 ORDER BY seq LIMIT 1",
    txn_at="SELECT txn FROM events WHERE run = $1 AND seq = $2",
    schemas="SELECT fingerprint, declaration FROM schemas ORDER BY fingerprint",
    frames="SELECT key, seq, version, body FROM keyframes WHERE run = $1 ORDER BY key, seq",
    loose_frames=(
        "SELECT k.run, k.key, k.seq, k.version FROM keyframes k LEFT JOIN events e ON e.run = k.run AND e.seq = k.seq "
        "WHERE e.run IS NULL OR e.kind <> 1 OR e.key <> k.key OR e.version <> k.version ORDER BY k.run, k.seq LIMIT 100"
    ),
    requests_twice=(
        "SELECT run, request_id, max(seq) FROM events WHERE request_id IS NOT NULL "
        "GROUP BY request_id, run HAVING count(*) > 1 ORDER BY run, request_id LIMIT 100"
    ),
    file="",
)

SCANS: Final = {"sqlite": SQLITE, "postgresql": POSTGRESQL}

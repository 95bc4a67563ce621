"""The SQL that erases, prunes, archives and puts back, as constant text for both databases.

Rules of this module
- `said` events authorise each change; the triggers check it. Nothing here is run outside `exclusive`.
- Parameters of the first four: run, last seq, key or NULL, version or NULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KeepingSql:
    """Statements of one database."""

    survey: str
    """What can be erased, by key: key, events, writes, first seq."""
    erased: str
    """The first seq that was erased already."""
    erase: str
    gaps: str
    """Whether a version of a key was erased. Parameters: run, key, last seq."""
    drop_frames: str
    """Keyframes of a key from a seq on."""
    reads: str
    """Read events after a seq up to another, at most so many: seq, key, version, actor, seen_seq, recorded_at, refs,
    digest."""
    prune: str
    """Read events up to a seq, without those in a JSON list of seqs."""
    archive: str
    drop_all_frames: str


_BLANK: Final = "kind NOT IN (3, 5, 6, 7, 20, 21, 24, 25)"
"""Every kind but those that have nothing to erase."""
_LITE: Final = (
    f"pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2) AND {_BLANK} AND (?3 IS NULL OR key = ?3) "
    "AND (?4 IS NULL OR (version = ?4 AND kind <= 2))"
)
_POST: Final = (
    f"run = $1 AND seq <= $2 AND {_BLANK} AND ($3::int4 IS NULL OR key = $3::int4) "
    "AND ($4::int8 IS NULL OR (version = $4::int8 AND kind <= 2))"
)

SQLITE: Final = KeepingSql(
    survey=(
        "SELECT key, count(*), sum(kind = 1), min(pos & 4294967295) FROM events "
        f"WHERE {_LITE} AND commitment IS NULL GROUP BY key"
    ),
    erased=f"SELECT min(pos & 4294967295) FROM events WHERE {_LITE} AND commitment IS NOT NULL",
    erase=(
        "UPDATE events SET commitment = refold_commitment(salt, body), salt = NULL, body = NULL "
        f"WHERE {_LITE} AND commitment IS NULL"
    ),
    gaps=(
        "SELECT 1 FROM events WHERE key = ?2 AND kind <= 2 AND pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3) "
        "AND commitment IS NOT NULL LIMIT 1"
    ),
    drop_frames="DELETE FROM keyframes WHERE run = ?1 AND key = ?2 AND seq >= ?3",
    reads=(
        "SELECT pos & 4294967295, key, version, actor, seen_seq, recorded_at, refs, digest FROM events "
        "WHERE kind = 3 AND pos BETWEEN (?1 << 32 | ?2) + 1 AND (?1 << 32 | ?3) ORDER BY pos LIMIT ?4"
    ),
    prune=(
        "DELETE FROM events WHERE kind = 3 AND pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2) "
        "AND pos & 4294967295 NOT IN (SELECT value FROM json_each(?3))"
    ),
    archive="DELETE FROM events WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2)",
    drop_all_frames="DELETE FROM keyframes WHERE run = ?1",
)

POSTGRESQL: Final = KeepingSql(
    survey=(
        "SELECT key, count(*), count(*) FILTER (WHERE kind = 1), min(seq) FROM events "
        f"WHERE {_POST} AND commitment IS NULL GROUP BY key ORDER BY key"
    ),
    erased=f"SELECT min(seq) FROM events WHERE {_POST} AND commitment IS NOT NULL",
    erase=(
        "UPDATE events SET commitment = sha256(coalesce(salt, ''::bytea) || coalesce(body, ''::bytea)), "
        f"salt = NULL, body = NULL WHERE {_POST} AND commitment IS NULL"
    ),
    gaps=(
        "SELECT 1 FROM events WHERE run = $1 AND key = $2 AND kind <= 2 AND seq <= $3 "
        "AND commitment IS NOT NULL LIMIT 1"
    ),
    drop_frames="DELETE FROM keyframes WHERE run = $1 AND key = $2 AND seq >= $3",
    reads=(
        "SELECT seq, key, version, actor, seen_seq, recorded_at, refs, digest FROM events "
        "WHERE run = $1 AND kind = 3 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4"
    ),
    prune=(
        "DELETE FROM events WHERE run = $1 AND kind = 3 AND seq <= $2 "
        "AND NOT EXISTS (SELECT 1 FROM json_array_elements_text($3::json) j(kept) WHERE j.kept::int8 = seq)"
    ),
    archive="DELETE FROM events WHERE run = $1 AND seq <= $2",
    drop_all_frames="DELETE FROM keyframes WHERE run = $1",
)

KEEPING_SQL: Final = {"sqlite": SQLITE, "postgresql": POSTGRESQL}

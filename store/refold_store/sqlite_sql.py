"""The hot SQL of SQLite, as constant text; `pos = run << 32 | seq` is the row number. Checked in tests/test_sql.py."""

from __future__ import annotations

from refold_store.backend import Statements

_COLUMNS = (
    "kind, actor, owner, txn, turn, key, version, seen_seq, recorded_at, clock, request_id, refs, "
    "salt, body, commitment, digest, trace_id, span_id, trace_flags"
)
_FOUND = (
    "(e.pos & 4294967295), e.version, e.kind, e.actor, e.owner, e.recorded_at, e.body, e.refs, "
    "e.trace_id, e.span_id, e.trace_flags, e.key"
)
_EVENT = f"(e.pos >> 32), (e.pos & 4294967295), {', '.join('e.' + c for c in _COLUMNS.split(', '))}"
INSERT_USUAL = (
    "INSERT INTO events (pos, kind, actor, owner, key, version, recorded_at, salt, body, digest) "
    "VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?)"
)
"""The lone write of which only the usual columns are set: each null bound to a column costs, and there are twelve."""
INSERT_TRACED = (
    "INSERT INTO events (pos, kind, actor, owner, key, version, recorded_at, salt, body, digest, "
    "txn, trace_id, span_id, trace_flags) VALUES (?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
"""The same inside a transaction, or with a trace."""
_RUN_HEAD = (
    "(SELECT h.pos & 4294967295 FROM events h WHERE h.pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) "
    "ORDER BY h.pos DESC LIMIT 1)"
)
_RUN_LIST = (
    "SELECT r.id, r.tenant, r.name, r.scope, r.opened_at, (h.pos & 4294967295), h.recorded_at, p.name, r.parent_seq "
    "FROM runs r LEFT JOIN runs p ON p.id = r.parent JOIN events h ON h.pos = (SELECT x.pos FROM events x "
    "WHERE x.pos BETWEEN (r.id << 32) AND (r.id << 32 | 4294967295) ORDER BY x.pos DESC LIMIT 1) "
)

SQL = Statements(
    insert=f"INSERT INTO events (pos, {_COLUMNS}) VALUES (? << 32 | ?{', ?' * 19})",
    find_run="SELECT id, parent FROM runs WHERE tenant = ? AND scope = ? AND name = ?",
    parent_of="SELECT parent, parent_seq FROM runs WHERE id = ?",
    children=(
        "SELECT id, tenant, name, parent_seq FROM runs WHERE parent = ?1 AND parent IS NOT NULL AND id > ?1 ORDER BY id"
    ),
    lock_runs="SELECT 1",
    open_run=(
        "INSERT INTO runs (id, tenant, scope, name, opened_at, parent, parent_seq) "
        "SELECT (SELECT coalesce(max(id), 0) + 1 FROM runs), ?, ?, ?, ?, ?, ?"
    ),
    detach="UPDATE runs SET parent = NULL, parent_seq = NULL WHERE id = ?",
    names_by_text="SELECT id, name FROM names WHERE name = ?",
    names_by_ids="SELECT id, name FROM names WHERE id IN (SELECT value FROM json_each(?))",
    head=(
        "SELECT (pos & 4294967295), digest, recorded_at FROM events "
        "WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) ORDER BY pos DESC LIMIT 1"
    ),
    newest=(
        f"SELECT {_FOUND}, 0 FROM events e WHERE e.key = ?2 AND e.kind <= 2 "
        "AND e.pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3) ORDER BY e.pos DESC LIMIT 1"
    ),
    newest_seen=(
        f"SELECT {_FOUND}, {_RUN_HEAD} FROM events e WHERE e.key = ?2 AND e.kind <= 2 "
        "AND e.pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) ORDER BY e.pos DESC LIMIT 1"
    ),
    many_seen=(
        f"SELECT {_FOUND}, {_RUN_HEAD} FROM json_each(?2) j CROSS JOIN events e ON e.pos = "
        "(SELECT w.pos FROM events w WHERE w.key = j.value AND w.kind <= 2 "
        "AND w.pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) ORDER BY w.pos DESC LIMIT 1)"
    ),
    many_at=(
        "SELECT (e.pos & 4294967295), e.version, e.kind, e.key, e.body, 0 "
        "FROM json_each(?2) j CROSS JOIN events e ON e.pos = "
        "(SELECT w.pos FROM events w WHERE w.key = j.value AND w.kind <= 2 "
        "AND w.pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3) ORDER BY w.pos DESC LIMIT 1)"
    ),
    absent_seen=(
        f"SELECT {_RUN_HEAD} WHERE NOT EXISTS (SELECT 1 FROM events w WHERE w.key = ?2 AND w.kind <= 2 "
        "AND w.pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295))"
    ),
    since=(
        "SELECT (pos & 4294967295), version, kind, body FROM events WHERE key = ?2 AND kind <= 2 "
        "AND pos BETWEEN (?1 << 32 | ?3) + 1 AND (?1 << 32 | ?4) ORDER BY pos"
    ),
    sizes=(
        "SELECT coalesce(sum(length(body)), 0) FROM events WHERE key = ?2 AND kind <= 2 "
        "AND pos BETWEEN (?1 << 32 | ?3) + 1 AND (?1 << 32 | ?4)"
    ),
    frame="SELECT seq, version, body FROM keyframes WHERE run = ? AND key = ? AND seq <= ? ORDER BY seq DESC LIMIT 1",
    put_frame="INSERT OR IGNORE INTO keyframes (run, key, seq, version, body) VALUES (?, ?, ?, ?, ?)",
    state=(
        f"SELECT (e.pos & 4294967295), e.version, e.kind, e.key, e.body, {_RUN_HEAD} "
        "FROM events k INDEXED BY events_first CROSS JOIN events e ON e.pos = "
        "(SELECT w.pos FROM events w WHERE w.key = k.key AND w.kind <= 2 "
        "AND w.pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2) ORDER BY w.pos DESC LIMIT 1) "
        "WHERE k.version = 1 AND k.kind <= 2 AND k.pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2)"
    ),
    fold=(
        "SELECT key, kind, body, (pos & 4294967295) FROM events "
        "WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2) AND kind <= 2 ORDER BY pos"
    ),
    version=(
        f"SELECT {_FOUND} FROM events e WHERE e.key = ?2 AND e.kind <= 2 AND e.version = ?3 "
        "AND e.pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295)"
    ),
    history=(
        f"SELECT {_FOUND} FROM events e WHERE e.key = ?2 AND e.kind <= 2 "
        "AND e.pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3) ORDER BY e.pos"
    ),
    versions=(
        "SELECT (pos & 4294967295), version FROM events WHERE key = ?2 AND kind <= 2 "
        "AND pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3) ORDER BY pos"
    ),
    events=f"SELECT {_EVENT} FROM events e WHERE e.pos BETWEEN (?1 << 32 | ?2) + 1 AND (?1 << 32 | ?3) ORDER BY e.pos",
    reads_of_key=(
        f"SELECT {_EVENT} FROM events e WHERE e.kind = 3 AND e.key = ?2 "
        "AND e.pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) ORDER BY e.pos"
    ),
    reads_of_many=(
        f"SELECT {_EVENT} FROM events e WHERE e.kind = 3 AND e.key IS NULL "
        "AND e.pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) ORDER BY e.pos"
    ),
    by_kind=(
        f"SELECT {_EVENT} FROM events e WHERE e.kind = ?2 AND e.kind > 3 "
        "AND e.pos BETWEEN (?1 << 32) AND (?1 << 32 | 4294967295) ORDER BY e.pos"
    ),
    last_of_kind=(
        f"SELECT {_EVENT} FROM events e WHERE e.kind = ?2 AND e.kind > 3 "
        "AND e.pos BETWEEN (?1 << 32 | ?3) + 1 AND (?1 << 32 | ?4) ORDER BY e.pos DESC LIMIT 1"
    ),
    last_of_turn=(
        f"SELECT {_EVENT} FROM events e WHERE e.kind = ?2 AND e.kind > 3 AND e.turn = ?3 "
        "AND e.pos BETWEEN (?1 << 32 | ?4) + 1 AND (?1 << 32 | ?5) ORDER BY e.pos DESC LIMIT 1"
    ),
    newest_turn="SELECT max(turn) FROM events WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2)",
    request=(f"SELECT {_EVENT} FROM events e WHERE e.request_id = ?2 AND e.run = ?1"),
    runs=_RUN_LIST + "WHERE r.tenant = ?1 AND r.scope = 0 AND r.id > ?2 ORDER BY r.id LIMIT ?3",
    runs_all=_RUN_LIST + "WHERE r.id > ?1 ORDER BY r.id LIMIT ?2",
    at_seq=(
        "SELECT (pos & 4294967295), recorded_at, clock, txn, digest FROM events "
        "WHERE pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2) ORDER BY pos DESC LIMIT 1"
    ),
    txn_end=(
        "SELECT max(pos) & 4294967295 FROM events WHERE txn = ?2 AND pos BETWEEN (?1 << 32 | ?2) AND (?1 << 32 | ?3)"
    ),
    turn_end="SELECT max(pos) & 4294967295 FROM events WHERE turn = ?2 AND pos BETWEEN (?1 << 32) AND (?1 << 32 | ?3)",
    schema_get="SELECT declaration FROM schemas WHERE fingerprint = ?",
    keys=(
        "SELECT DISTINCT n.name FROM events k INDEXED BY events_first JOIN names n ON n.id = k.key "
        "WHERE k.version = 1 AND k.kind <= 2 AND k.pos BETWEEN (?1 << 32) AND (?1 << 32 | ?2) ORDER BY n.name"
    ),
)

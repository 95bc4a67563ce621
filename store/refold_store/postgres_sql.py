"""The hot SQL of PostgreSQL, as constant text. Checked against the tables in tests/test_sql.py."""

from __future__ import annotations

from refold_store.backend import Statements
from refold_store.events import Row

LOCK_RUNS, LOCK_RUN = 1919248999, 1919248998
"""First halves of the advisory lock numbers: numbering runs, appending to one run."""
NAMES = Row._fields
TYPES = {
    "request_id": "text",
    "refs": "text",
    "salt": "bytea",
    "body": "bytea",
    "commitment": "bytea",
    "digest": "bytea",
    "trace_id": "bytea",
    "span_id": "bytea",
}
_FOUND = (
    "e.seq, e.version, e.kind::int8, e.actor, e.owner, e.recorded_at, e.body, e.refs, "
    "e.trace_id, e.span_id, e.trace_flags, e.key"
)
_EVENT = ", ".join(f"e.{name}" for name in NAMES)
_RUN_HEAD = "(SELECT h.seq FROM events h WHERE h.run = $1 ORDER BY h.seq DESC LIMIT 1)"
_RUN_LIST = (
    "SELECT r.id, r.tenant, r.name, r.scope, r.opened_at, h.seq, h.recorded_at, p.name, r.parent_seq "
    "FROM runs r LEFT JOIN runs p ON p.id = r.parent CROSS JOIN LATERAL "
    "(SELECT x.seq, x.recorded_at FROM events x WHERE x.run = r.id ORDER BY x.seq DESC LIMIT 1) h "
)
INSERT_MANY = f"INSERT INTO events ({', '.join(NAMES)}) SELECT * FROM unnest({{}})".format(
    ", ".join(f"${n}::{TYPES.get(name, 'text::int8')}[]" for n, name in enumerate(NAMES, 1))
)
APPEND_MANY = (
    f"{INSERT_MANY} WHERE NOT EXISTS "
    f"(SELECT 1 FROM unnest($1::int8[], $2::int8[]) m(run, seq) JOIN events e ON e.run = m.run AND e.seq > m.seq)"
)
"""The same, or nothing at all if a run holds newer events: reads that were pruned leave room before them."""
_NEWEST_OF = (
    "CROSS JOIN LATERAL (SELECT * FROM events w WHERE w.run = $1 AND w.key = {key} AND w.kind <= 2{bound} "
    "ORDER BY w.seq DESC LIMIT 1) e "
)

SQL = Statements(
    insert=f"INSERT INTO events ({', '.join(NAMES)}) VALUES ({', '.join(f'${n}' for n in range(1, len(NAMES) + 1))})",
    find_run="SELECT id, parent FROM runs WHERE tenant = $1 AND scope = $2 AND name = $3",
    parent_of="SELECT parent, parent_seq FROM runs WHERE id = $1",
    children=(
        "SELECT id, tenant, name, parent_seq FROM runs WHERE parent = $1 AND parent IS NOT NULL AND id > $1 ORDER BY id"
    ),
    lock_runs=f"SELECT pg_advisory_xact_lock({LOCK_RUNS}::int8)",
    open_run=(
        "INSERT INTO runs (id, tenant, scope, name, opened_at, parent, parent_seq) "
        "SELECT coalesce(max(id), 0) + 1, $1::text, $2::int2, $3::text, $4::int8, $5::int4, $6::int8 FROM runs"
    ),
    detach="UPDATE runs SET parent = NULL, parent_seq = NULL WHERE id = $1",
    names_by_text="SELECT id, name FROM names WHERE name = $1",
    names_by_ids="SELECT id, name FROM names WHERE id IN (SELECT x::int FROM json_array_elements_text($1::json) j(x))",
    head="SELECT seq, digest, recorded_at FROM events WHERE run = $1 ORDER BY seq DESC LIMIT 1",
    newest=(
        f"SELECT {_FOUND}, 0::int8 FROM events e WHERE e.run = $1 AND e.key = $2 AND e.kind <= 2 AND e.seq <= $3 "
        "ORDER BY e.seq DESC LIMIT 1"
    ),
    newest_seen=(
        f"SELECT {_FOUND}, {_RUN_HEAD} FROM events e WHERE e.run = $1 AND e.key = $2 AND e.kind <= 2 "
        "ORDER BY e.seq DESC LIMIT 1"
    ),
    many_seen=(
        f"SELECT {_FOUND}, {_RUN_HEAD} FROM json_array_elements_text($2::json) j(id) "
        + _NEWEST_OF.format(key="j.id::int", bound="")
    ),
    many_at=(
        "SELECT e.seq, e.version, e.kind::int8, e.key, e.body, 0::int8 FROM json_array_elements_text($2::json) j(id) "
        + _NEWEST_OF.format(key="j.id::int", bound=" AND w.seq <= $3")
    ),
    absent_seen=(
        f"SELECT {_RUN_HEAD} WHERE NOT EXISTS (SELECT 1 FROM events w WHERE w.run = $1 AND w.key = $2 AND w.kind <= 2)"
    ),
    since=(
        "SELECT seq, version, kind::int8, body FROM events WHERE run = $1 AND key = $2 AND kind <= 2 "
        "AND seq > $3 AND seq <= $4 ORDER BY seq"
    ),
    sizes=(
        "SELECT coalesce(sum(length(body)), 0)::int8 FROM events WHERE run = $1 AND key = $2 AND kind <= 2 "
        "AND seq > $3 AND seq <= $4"
    ),
    frame=(
        "SELECT seq, version, body FROM keyframes WHERE run = $1 AND key = $2 AND seq <= $3 ORDER BY seq DESC LIMIT 1"
    ),
    put_frame=(
        "INSERT INTO keyframes (run, key, seq, version, body) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
    ),
    state=(
        f"SELECT e.seq, e.version, e.kind::int8, e.key, e.body, {_RUN_HEAD} FROM events k "
        + _NEWEST_OF.format(key="k.key", bound=" AND w.seq <= $2")
        + "WHERE k.run = $1 AND k.version = 1 AND k.kind <= 2 AND k.seq <= $2 ORDER BY k.seq"
    ),
    fold="SELECT key, kind, body, seq FROM events WHERE run = $1 AND seq <= $2 AND kind <= 2 ORDER BY seq",
    version=(f"SELECT {_FOUND} FROM events e WHERE e.run = $1 AND e.key = $2 AND e.kind <= 2 AND e.version = $3"),
    history=(
        f"SELECT {_FOUND} FROM events e WHERE e.run = $1 AND e.key = $2 AND e.kind <= 2 AND e.seq <= $3 ORDER BY e.seq"
    ),
    versions="SELECT seq, version FROM events WHERE run = $1 AND key = $2 AND kind <= 2 AND seq <= $3 ORDER BY seq",
    events=f"SELECT {_EVENT} FROM events e WHERE e.run = $1 AND e.seq > $2 AND e.seq <= $3 ORDER BY e.seq",
    reads_of_key=f"SELECT {_EVENT} FROM events e WHERE e.run = $1 AND e.kind = 3 AND e.key = $2 ORDER BY e.seq",
    reads_of_many=f"SELECT {_EVENT} FROM events e WHERE e.run = $1 AND e.kind = 3 AND e.key IS NULL ORDER BY e.seq",
    by_kind=f"SELECT {_EVENT} FROM events e WHERE e.run = $1 AND e.kind = $2 AND e.kind > 3 ORDER BY e.seq",
    last_of_kind=(
        f"SELECT {_EVENT} FROM events e WHERE e.run = $1 AND e.kind = $2 AND e.kind > 3 AND e.seq > $3 AND e.seq <= $4 "
        "ORDER BY e.seq DESC LIMIT 1"
    ),
    last_of_turn=(
        f"SELECT {_EVENT} FROM events e WHERE e.run = $1 AND e.kind = $2 AND e.kind > 3 AND e.turn = $3 "
        "AND e.seq > $4 AND e.seq <= $5 ORDER BY e.seq DESC LIMIT 1"
    ),
    newest_turn="SELECT max(turn) FROM events WHERE run = $1 AND seq <= $2",
    request=f"SELECT {_EVENT} FROM events e WHERE e.run = $1 AND e.request_id = $2",
    runs=_RUN_LIST + "WHERE r.tenant = $1 AND r.scope = 0 AND r.id > $2 ORDER BY r.id LIMIT $3",
    runs_all=_RUN_LIST + "WHERE r.id > $1 ORDER BY r.id LIMIT $2",
    at_seq=(
        "SELECT seq, recorded_at, clock, txn, digest FROM events WHERE run = $1 AND seq <= $2 ORDER BY seq DESC LIMIT 1"
    ),
    txn_end="SELECT max(seq) FROM events WHERE run = $1 AND txn = $2 AND seq >= $2 AND seq <= $3",
    turn_end="SELECT max(seq) FROM events WHERE run = $1 AND turn = $2 AND seq <= $3",
    schema_get="SELECT declaration FROM schemas WHERE fingerprint = $1",
    keys=(
        "SELECT DISTINCT n.name FROM events k JOIN names n ON n.id = k.key "
        "WHERE k.run = $1 AND k.version = 1 AND k.kind <= 2 AND k.seq <= $2 ORDER BY n.name"
    ),
)

-- refold, revision 0001, SQLite. An empty line ends a statement.
CREATE TABLE names (
    id INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    CONSTRAINT names_name UNIQUE (name)
);

CREATE TABLE runs (
    id INTEGER NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    scope SMALLINT NOT NULL DEFAULT 0,
    opened_at BIGINT NOT NULL,
    CONSTRAINT runs_name UNIQUE (tenant, scope, name)
);

CREATE TABLE schemas (
    fingerprint TEXT NOT NULL PRIMARY KEY,
    declaration BLOB NOT NULL
);

-- Whole values of accumulating keys: outside the log, free to delete.
CREATE TABLE keyframes (
    run INTEGER NOT NULL,
    key INTEGER NOT NULL,
    seq BIGINT NOT NULL,
    version BIGINT NOT NULL,
    body BLOB NOT NULL,
    CONSTRAINT keyframes_pkey PRIMARY KEY (run, key, seq)
) WITHOUT ROWID;

-- pos = run << 32 | seq. body stands last: a long one overflows the page, and nothing after it would be cheap to read.
CREATE TABLE events (
    pos INTEGER NOT NULL PRIMARY KEY,
    txn BIGINT,
    turn BIGINT,
    version BIGINT,
    seen_seq BIGINT,
    recorded_at BIGINT NOT NULL,
    clock BIGINT,
    actor INTEGER,
    owner INTEGER,
    key INTEGER,
    kind SMALLINT NOT NULL,
    trace_flags SMALLINT,
    digest BLOB NOT NULL,
    salt BLOB,
    commitment BLOB,
    trace_id BLOB,
    span_id BLOB,
    request_id TEXT,
    refs TEXT,
    body BLOB,
    run INTEGER GENERATED ALWAYS AS (pos >> 32) VIRTUAL,
    seq INTEGER GENERATED ALWAYS AS (pos & 4294967295) VIRTUAL
);

CREATE INDEX events_state ON events (key, pos, version) WHERE kind <= 2;

CREATE INDEX events_reads ON events (key, version, pos) WHERE kind = 3 AND key IS NOT NULL;

CREATE INDEX events_other ON events (kind, pos) WHERE kind > 3 OR key IS NULL;

CREATE INDEX events_first ON events (pos, key) WHERE version = 1 AND kind <= 2;

CREATE UNIQUE INDEX events_request ON events (request_id, run) WHERE request_id IS NOT NULL;

-- What is recorded stays. INSERT OR REPLACE removes a row without firing a delete trigger, so that the inserts
-- are watched too: by every unique key of the table.
CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN
    SELECT RAISE(ABORT, 'refold: events are immutable');
END;

CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN
    SELECT RAISE(ABORT, 'refold: events are immutable');
END;

CREATE TRIGGER events_no_replace BEFORE INSERT ON events
WHEN EXISTS (SELECT 1 FROM events WHERE pos = NEW.pos) BEGIN
    SELECT RAISE(ABORT, 'refold: event exists');
END;

CREATE TRIGGER events_no_rebind BEFORE INSERT ON events
WHEN NEW.request_id IS NOT NULL AND EXISTS (
    SELECT 1 FROM events WHERE request_id = NEW.request_id AND run = NEW.pos >> 32
) BEGIN
    SELECT RAISE(ABORT, 'refold: request exists');
END;

CREATE TRIGGER runs_no_update BEFORE UPDATE ON runs BEGIN
    SELECT RAISE(ABORT, 'refold: runs are immutable');
END;

CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs BEGIN
    SELECT RAISE(ABORT, 'refold: runs are immutable');
END;

CREATE TRIGGER runs_no_replace BEFORE INSERT ON runs
WHEN EXISTS (SELECT 1 FROM runs WHERE id = NEW.id)
  OR EXISTS (SELECT 1 FROM runs WHERE tenant = NEW.tenant AND scope = NEW.scope AND name = NEW.name) BEGIN
    SELECT RAISE(ABORT, 'refold: run exists');
END;

CREATE TRIGGER names_no_update BEFORE UPDATE ON names BEGIN
    SELECT RAISE(ABORT, 'refold: names are immutable');
END;

CREATE TRIGGER names_no_delete BEFORE DELETE ON names BEGIN
    SELECT RAISE(ABORT, 'refold: names are immutable');
END;

-- NEW.id is -1 here when the insert leaves the id to SQLite.
CREATE TRIGGER names_no_replace BEFORE INSERT ON names
WHEN EXISTS (SELECT 1 FROM names WHERE id = NEW.id AND name <> NEW.name)
  OR EXISTS (SELECT 1 FROM names WHERE name = NEW.name AND id <> NEW.id) BEGIN
    SELECT RAISE(ABORT, 'refold: name exists');
END;

CREATE TRIGGER schemas_no_update BEFORE UPDATE ON schemas BEGIN
    SELECT RAISE(ABORT, 'refold: schemas are immutable');
END;

CREATE TRIGGER schemas_no_delete BEFORE DELETE ON schemas BEGIN
    SELECT RAISE(ABORT, 'refold: schemas are immutable');
END;

-- The same declaration again is no harm: INSERT OR IGNORE is how a schema is stored once.
CREATE TRIGGER schemas_no_replace BEFORE INSERT ON schemas
WHEN EXISTS (SELECT 1 FROM schemas WHERE fingerprint = NEW.fingerprint AND declaration <> NEW.declaration) BEGIN
    SELECT RAISE(ABORT, 'refold: schema exists');
END;

-- Views for people. `json` is the body where SQLite can read it as JSON; `body` is the exact text.
-- A run is joined both ways: by the range of its events from runs, by its id from events.
CREATE VIEW event_log AS
SELECT
    runs.tenant,
    runs.scope,
    runs.name AS run,
    events.pos,
    events.seq,
    events.kind,
    events.key AS key_id,
    keys.name AS key,
    events.version,
    events.seen_seq,
    actors.name AS actor,
    owners.name AS owner,
    strftime('%Y-%m-%dT%H:%M:%S', events.recorded_at / 1000000, 'unixepoch')
        || printf('.%06dZ', events.recorded_at % 1000000) AS recorded_at,
    events.txn,
    events.turn,
    events.request_id,
    events.refs,
    lower(nullif(hex(events.trace_id), '')) AS trace_id,
    CASE WHEN json_valid(CAST(events.body AS TEXT)) THEN CAST(events.body AS TEXT) END AS json,
    CAST(events.body AS TEXT) AS body
FROM runs
JOIN events ON events.pos BETWEEN runs.id << 32 AND (runs.id << 32) + 4294967295 AND runs.id = events.run
LEFT JOIN names AS keys ON keys.id = events.key
LEFT JOIN names AS actors ON actors.id = events.actor
LEFT JOIN names AS owners ON owners.id = events.owner;

-- A value as JSON text: json_extract of one path would turn true into 1, of two paths it gives "[value,null]" as it
-- stands in the body ('$[0]' of an object is never there).
CREATE VIEW state_events AS
SELECT
    tenant, scope, run, seq, key, version, kind = 2 AS deleted, actor AS writer, owner, recorded_at,
    CASE WHEN json_type(json, '$.value') IS NOT NULL THEN
        substr(json_extract(json, '$.value', '$[0]'), 2, length(json_extract(json, '$.value', '$[0]')) - 7)
    END AS value,
    CASE WHEN json_type(json, '$.update') IS NOT NULL THEN
        substr(json_extract(json, '$.update', '$[0]'), 2, length(json_extract(json, '$.update', '$[0]')) - 7)
    END AS update_value,
    json_extract(json, '$.basis') AS basis,
    txn, turn, request_id, trace_id, body, pos, key_id
FROM event_log
WHERE kind <= 2;

-- The newest state event of each key that is not deleted. `value` is null for a key that stores updates: its value is
-- a fold, which SQL does not do; update_value is its newest update. CROSS JOIN and INDEXED BY keep the order of seeks.
CREATE VIEW current_state AS
SELECT
    runs.tenant, runs.scope, runs.name AS run, state_events.key, state_events.version, state_events.value,
    state_events.update_value, state_events.writer, state_events.owner, state_events.seq, state_events.recorded_at,
    state_events.basis, state_events.trace_id, state_events.body
FROM runs
CROSS JOIN events AS first INDEXED BY events_first ON first.pos BETWEEN runs.id << 32 AND (runs.id << 32) + 4294967295
CROSS JOIN state_events ON state_events.pos = (
    SELECT newest.pos FROM events AS newest
    WHERE newest.kind <= 2 AND newest.key = first.key
      AND newest.pos BETWEEN first.pos AND first.pos | 4294967295
    ORDER BY newest.pos DESC
    LIMIT 1
)
WHERE first.version = 1 AND first.kind <= 2 AND NOT state_events.deleted;

-- One line for each key read. A read of many keys lists them in refs. `newest_version` is the newest at seen_seq.
CREATE VIEW reads AS
WITH read AS (
    SELECT tenant, scope, run, pos, seq, actor, key_id, key, version, seen_seq, recorded_at, turn, trace_id
    FROM event_log
    WHERE kind = 3 AND key_id IS NOT NULL
    UNION ALL
    SELECT
        event_log.tenant, event_log.scope, event_log.run, event_log.pos, event_log.seq, event_log.actor,
        (SELECT id FROM names WHERE name = json_extract(item.value, '$[0]')), json_extract(item.value, '$[0]'),
        json_extract(item.value, '$[1]'), event_log.seen_seq, event_log.recorded_at, event_log.turn,
        event_log.trace_id
    FROM event_log, json_each(event_log.refs, '$.keys') AS item
    WHERE event_log.kind = 3 AND event_log.key_id IS NULL
),
judged AS (
    SELECT read.*, coalesce((
        SELECT newest.version FROM events AS newest
        WHERE newest.kind <= 2 AND newest.key = read.key_id
          AND newest.pos BETWEEN read.pos - read.seq AND read.pos - read.seq + read.seen_seq
        ORDER BY newest.pos DESC
        LIMIT 1
    ), 0) AS newest_version
    FROM read
)
SELECT
    tenant, scope, run, seq, actor AS reader, key, version, seen_seq, newest_version,
    newest_version > version AS stale, recorded_at, turn, trace_id
FROM judged;

CREATE VIEW refusals AS
SELECT
    tenant, scope, run, seq, key, actor AS writer, owner,
    json_extract(json, '$.reason') AS reason,
    json_extract(json, '$.message') AS message,
    json_extract(json, '$.path') AS path,
    CASE WHEN json_type(json, '$.update') IS NOT NULL THEN
        substr(json_extract(json, '$.update', '$[0]'), 2, length(json_extract(json, '$.update', '$[0]')) - 7)
    END AS update_value,
    recorded_at, turn, trace_id, body
FROM event_log
WHERE kind = 4;

-- refold, revision 0002, SQLite. An empty line ends a statement.
-- A fork goes on from event parent_seq of another run: its own events begin behind it.
ALTER TABLE runs ADD COLUMN parent INTEGER;

ALTER TABLE runs ADD COLUMN parent_seq BIGINT;

CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;

DROP TRIGGER runs_no_update;

CREATE TRIGGER runs_no_update BEFORE UPDATE OF id, tenant, name, scope, opened_at ON runs BEGIN
    SELECT RAISE(ABORT, 'refold: runs are immutable');
END;

-- A fork may be made self-contained: once it holds a copy of what it shared, it has no parent.
CREATE TRIGGER runs_keep_parent BEFORE UPDATE OF parent, parent_seq ON runs
WHEN NOT (
    OLD.parent IS NOT NULL AND NEW.parent IS NULL AND NEW.parent_seq IS NULL
    AND EXISTS (SELECT 1 FROM events WHERE pos BETWEEN OLD.id << 32 AND OLD.id << 32 | OLD.parent_seq)
) BEGIN
    SELECT RAISE(ABORT, 'refold: runs are immutable');
END;

-- What is recorded stays, but for three things, each on the record first: a value is erased (20), reads are
-- pruned (21), a run is archived (25). The event that says so stands behind the row, in the same run.
DROP TRIGGER events_no_update;

CREATE TRIGGER events_no_update BEFORE UPDATE OF
    pos, txn, turn, version, seen_seq, recorded_at, clock, actor, owner, key, kind, trace_flags, digest, trace_id,
    span_id, request_id, refs
ON events BEGIN
    SELECT RAISE(ABORT, 'refold: events are immutable');
END;

CREATE TRIGGER events_no_rewrite BEFORE UPDATE OF salt, commitment, body ON events
WHEN NOT (
    OLD.commitment IS NULL AND NEW.salt IS NULL AND NEW.body IS NULL
    AND typeof(NEW.commitment) = 'blob' AND length(NEW.commitment) = 32
    AND OLD.kind NOT IN (3, 5, 6, 7, 20, 21, 24, 25)
    AND EXISTS (
        SELECT 1 FROM events AS said
        WHERE said.kind = 20 AND said.kind > 3 AND said.pos > OLD.pos AND said.pos <= OLD.pos | 4294967295
          AND json_extract(said.refs, '$.until') >= OLD.pos & 4294967295
          AND (said.key IS NULL OR said.key = OLD.key)
          AND (said.version IS NULL OR (said.version = OLD.version AND OLD.kind <= 2))
    )
) BEGIN
    SELECT RAISE(ABORT, 'refold: events are immutable');
END;

DROP TRIGGER events_no_delete;

CREATE TRIGGER events_no_delete BEFORE DELETE ON events
WHEN NOT (
    EXISTS (
        SELECT 1 FROM events AS said
        WHERE said.kind = 25 AND said.kind > 3 AND said.pos > OLD.pos AND said.pos <= OLD.pos | 4294967295
          AND json_extract(said.refs, '$.until') >= OLD.pos & 4294967295
    )
    OR OLD.kind = 3 AND EXISTS (
        SELECT 1 FROM events AS said
        WHERE said.kind = 21 AND said.kind > 3 AND said.pos > OLD.pos AND said.pos <= OLD.pos | 4294967295
          AND json_extract(said.refs, '$.until') >= OLD.pos & 4294967295
    )
) BEGIN
    SELECT RAISE(ABORT, 'refold: events are immutable');
END;

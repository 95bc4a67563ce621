-- refold, revision 0002, PostgreSQL.

-- A fork goes on from event parent_seq of another run: its own events begin behind it.
ALTER TABLE runs ADD COLUMN parent integer, ADD COLUMN parent_seq bigint;
CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;

CREATE FUNCTION refold_refuse(tab text, op text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refold: % are immutable', tab
        USING ERRCODE = 'RF001',
              DETAIL = format('%s was refused', op),
              HINT = 'Write a new version instead.';
END
$$;

-- A fork may be made self-contained: once it holds a copy of what it shared, it has no parent.
CREATE FUNCTION refold_guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE'
        AND ROW(NEW.id, NEW.tenant, NEW.name, NEW.scope, NEW.opened_at)
            IS NOT DISTINCT FROM ROW(OLD.id, OLD.tenant, OLD.name, OLD.scope, OLD.opened_at)
        AND OLD.parent IS NOT NULL AND NEW.parent IS NULL AND NEW.parent_seq IS NULL
        AND EXISTS (SELECT 1 FROM events WHERE run = OLD.id AND seq <= OLD.parent_seq)
    THEN
        RETURN NEW;
    END IF;
    PERFORM refold_refuse(TG_TABLE_NAME, TG_OP);
    RETURN NULL;
END
$$;

-- What is recorded stays, but for three things, each on the record first: a value is erased (20), reads are
-- pruned (21), a run is archived (25). The event that says so stands behind the row, in the same run.
CREATE FUNCTION refold_guard_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE'
        AND ROW(NEW.run, NEW.seq, NEW.kind, NEW.actor, NEW.owner, NEW.txn, NEW.turn, NEW.key, NEW.version,
                NEW.seen_seq, NEW.recorded_at, NEW.clock, NEW.request_id, NEW.refs, NEW.digest, NEW.trace_id,
                NEW.span_id, NEW.trace_flags)
            IS NOT DISTINCT FROM
            ROW(OLD.run, OLD.seq, OLD.kind, OLD.actor, OLD.owner, OLD.txn, OLD.turn, OLD.key, OLD.version,
                OLD.seen_seq, OLD.recorded_at, OLD.clock, OLD.request_id, OLD.refs, OLD.digest, OLD.trace_id,
                OLD.span_id, OLD.trace_flags)
        AND OLD.commitment IS NULL AND NEW.salt IS NULL AND NEW.body IS NULL
        AND NEW.commitment = sha256(coalesce(OLD.salt, ''::bytea) || coalesce(OLD.body, ''::bytea))
        AND OLD.kind NOT IN (3, 5, 6, 7, 20, 21, 24, 25)
        AND EXISTS (
            SELECT 1 FROM events AS said
            WHERE said.run = OLD.run AND said.kind = 20 AND said.kind > 3 AND said.seq > OLD.seq
              AND (said.refs::json ->> 'until')::bigint >= OLD.seq
              AND (said.key IS NULL OR said.key = OLD.key)
              AND (said.version IS NULL OR (said.version = OLD.version AND OLD.kind <= 2))
        )
    THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE' AND EXISTS (
        SELECT 1 FROM events AS said
        WHERE said.run = OLD.run AND said.kind IN (21, 25) AND said.kind > 3 AND said.seq > OLD.seq
          AND (said.kind = 25 OR OLD.kind = 3)
          AND (said.refs::json ->> 'until')::bigint >= OLD.seq
    ) THEN
        RETURN OLD;
    END IF;
    PERFORM refold_refuse(TG_TABLE_NAME, TG_OP);
    RETURN NULL;
END
$$;

DROP TRIGGER events_immutable ON events;
CREATE TRIGGER events_immutable BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION refold_guard_event();
DROP TRIGGER runs_immutable ON runs;
CREATE TRIGGER runs_immutable BEFORE UPDATE OR DELETE ON runs
    FOR EACH ROW EXECUTE FUNCTION refold_guard_run();
-- ALWAYS: session_replication_role does not switch them off.
ALTER TABLE events ENABLE ALWAYS TRIGGER events_immutable;
ALTER TABLE runs ENABLE ALWAYS TRIGGER runs_immutable;

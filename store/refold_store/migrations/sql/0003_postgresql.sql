-- refold, revision 0003, PostgreSQL.

-- An insert before the newest event of its run is a writer who remembers an older end: reads that were pruned leave
-- room there. Only a fork that gets its own copy of the past, and an archived run that comes back, fill in. The writer
-- hears what a taken (run, seq) says, and looks again.
CREATE FUNCTION refold_guard_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM events WHERE run = NEW.run AND seq > NEW.seq)
        AND NOT EXISTS (SELECT 1 FROM runs WHERE id = NEW.run AND parent_seq >= NEW.seq)
        AND NOT EXISTS (
            SELECT 1 FROM events AS said
            WHERE said.run = NEW.run AND said.kind = 25 AND said.kind > 3 AND said.seq > NEW.seq
              AND (said.refs::json ->> 'until')::bigint >= NEW.seq
        )
    THEN
        RAISE EXCEPTION 'refold: event exists' USING ERRCODE = 'unique_violation';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER events_at_the_end BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refold_guard_insert();
-- ALWAYS: session_replication_role does not switch it off.
ALTER TABLE events ENABLE ALWAYS TRIGGER events_at_the_end;

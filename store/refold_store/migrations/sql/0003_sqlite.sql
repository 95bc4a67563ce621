-- refold, revision 0003, SQLite. An empty line ends a statement.
-- An insert before the newest event of its run is a writer who remembers an older end: reads that were pruned leave
-- room there. Only a fork that gets its own copy of the past, and an archived run that comes back, fill in.
DROP TRIGGER events_no_replace;

CREATE TRIGGER events_no_replace BEFORE INSERT ON events
WHEN EXISTS (SELECT 1 FROM events WHERE pos >= NEW.pos AND pos <= NEW.pos | 4294967295)
AND (
    EXISTS (SELECT 1 FROM events WHERE pos = NEW.pos)
    OR NOT (
        EXISTS (SELECT 1 FROM runs WHERE id = NEW.pos >> 32 AND parent_seq >= NEW.pos & 4294967295)
        OR EXISTS (
            SELECT 1 FROM events AS said
            WHERE said.kind = 25 AND said.kind > 3 AND said.pos > NEW.pos AND said.pos <= NEW.pos | 4294967295
              AND json_extract(said.refs, '$.until') >= NEW.pos & 4294967295
        )
    )
) BEGIN
    SELECT RAISE(ABORT, 'refold: event exists');
END;

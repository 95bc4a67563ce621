-- Erases values and prunes reads, where the triggers find the event that authorises it: until then they refuse.
REVOKE ALL ON {tables} FROM {role};
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {tables} TO {role};
GRANT INSERT ON {schema}.names, {schema}.runs, {schema}.schemas, {schema}.events, {schema}.keyframes TO {role};
GRANT UPDATE (body, salt, commitment), DELETE ON {schema}.events TO {role};
GRANT UPDATE (parent, parent_seq) ON {schema}.runs TO {role};
GRANT DELETE ON {schema}.keyframes TO {role};

-- Appends events, sees everything, changes nothing.
REVOKE ALL ON {tables} FROM {role};
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {tables} TO {role};
GRANT INSERT ON {schema}.names, {schema}.runs, {schema}.schemas, {schema}.events, {schema}.keyframes TO {role};

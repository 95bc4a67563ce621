-- Sees everything, changes nothing.
REVOKE ALL ON {tables} FROM {role};
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {tables} TO {role};

"""Rights of PostgreSQL roles on a store's tables and views.

Rules of this module
- PostgreSQL only warns when somebody who owns nothing grants or revokes: so what came of it is looked up afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from refold_store.errors import ConfigError
from refold_store.revision import VERSION_TABLE

if TYPE_CHECKING:
    import psycopg

RELATIONS: Final = (
    *("names", "runs", "schemas", "events", "keyframes", VERSION_TABLE),
    *("event_log", "state_events", "current_state", "reads", "refusals"),
)
"""Tables and views that roles get rights on."""

_FOLDER: Final = Path(__file__).parent / "migrations" / "roles"
_GIVEN: Final = """
SELECT bool_and(
    pg_has_role(relowner, 'USAGE')
    AND has_schema_privilege(%(role)s, relnamespace, 'USAGE')
    AND has_table_privilege(%(role)s, oid, 'SELECT')
)
FROM pg_class
WHERE relname = ANY(%(names)s)
AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass(%(version)s))
"""
"""Whether the rights took: who acts for the owners of all tables can give the others, too, and take them away."""


def grant(connection: psycopg.Connection[Any], kind: str, role: str) -> None:
    """Give a role the rights of its kind. Raises ConfigError if there is no such role, or they were not given."""
    from psycopg import sql

    if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None:
        raise ConfigError(f'PostgreSQL has no role {role!r}; create it first: CREATE ROLE "{role}" LOGIN')
    home = connection.execute(
        "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass(%s)", (VERSION_TABLE,)
    ).fetchone()
    assert home is not None, "the revision was just read from it"
    script = (_FOLDER / f"{kind}.sql").read_text(encoding="utf-8")
    schema = sql.SQL(home[0])
    tables = sql.SQL(", ").join(sql.SQL("{}.{}").format(schema, sql.Identifier(name)) for name in RELATIONS)
    statement = sql.SQL(script).format(role=sql.Identifier(role), schema=schema, tables=tables)
    connection.execute(statement)
    given = connection.execute(_GIVEN, {"role": role, "version": VERSION_TABLE, "names": list(RELATIONS)}).fetchone()
    if given is None or not given[0]:
        raise ConfigError(
            f"this PostgreSQL user could not give role {role!r} its rights: connect as the owner of the tables"
        )

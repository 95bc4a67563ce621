"""How a migration runs the SQL file written for its database.

Rules: statements go to the driver as they stand, inside the transaction the caller opened; nothing here commits.
In a SQLite file an empty line ends a statement (sqlite3 takes one at a time, and its `executescript` commits first).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "sql"


class NoWayBack(NotImplementedError):
    """A downgrade was asked for. There is none: an event log does not go back."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"revision {revision} has no downgrade, because an event log does not go back: restore a backup instead"
        )


def statements(revision: str, database: str) -> list[str]:
    """The SQL of one revision, in the pieces its driver takes."""
    script = (FOLDER / f"{revision}_{database}.sql").read_text(encoding="utf-8")
    return script.split("\n\n") if database == "sqlite" else [script]


def run_script(connection: Any, revision: str) -> None:
    """Run `sql/<revision>_<database>.sql` on the driver connection below a SQLAlchemy connection."""
    cursor = connection.connection.driver_connection.cursor()
    for statement in statements(revision, connection.dialect.name):
        cursor.execute(statement)
    cursor.close()

"""The store: names, runs, schemas, events, keyframes, the triggers that keep events as they are, views for people.

Its SQL stands in sql/0001_sqlite.sql and sql/0001_postgresql.sql.
"""

from __future__ import annotations

from alembic import op

from refold_store.migrations.scripts import NoWayBack, run_script

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

PHASE = "pre"


def upgrade() -> None:
    """Run the script of this database."""
    run_script(op.get_bind(), revision)


def downgrade() -> None:
    """Refuse: an event log does not go back."""
    raise NoWayBack(revision)

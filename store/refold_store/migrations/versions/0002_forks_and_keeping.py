"""Forks, and what may leave the log: triggers let erasing, pruning and archiving through, once on the record.

Its SQL stands in sql/0002_sqlite.sql and sql/0002_postgresql.sql.
"""

from __future__ import annotations

from alembic import op

from refold_store.migrations.scripts import NoWayBack, run_script

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

PHASE = "pre"


def upgrade() -> None:
    """Run the script of this database."""
    run_script(op.get_bind(), revision)


def downgrade() -> None:
    """Refuse: an event log does not go back."""
    raise NoWayBack(revision)

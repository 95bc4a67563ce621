"""Events are inserted at the end of their run: what pruned reads leave free is nobody's to fill.

Its SQL stands in sql/0003_sqlite.sql and sql/0003_postgresql.sql.
"""

from __future__ import annotations

from alembic import op

from refold_store.migrations.scripts import NoWayBack, run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PHASE = "pre"


def upgrade() -> None:
    """Run the script of this database."""
    run_script(op.get_bind(), revision)


def downgrade() -> None:
    """Refuse: an event log does not go back."""
    raise NoWayBack(revision)

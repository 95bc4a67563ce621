"""${message}.

Its SQL stands in sql/${up_revision}_sqlite.sql and sql/${up_revision}_postgresql.sql.
"""

from __future__ import annotations

from alembic import op

from refold_store.migrations.scripts import NoWayBack, run_script

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None

PHASE = "pre"


def upgrade() -> None:
    """Run the script of this database."""
    run_script(op.get_bind(), revision)


def downgrade() -> None:
    """Refuse: an event log does not go back."""
    raise NoWayBack(revision)

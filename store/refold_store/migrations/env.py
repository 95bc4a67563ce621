"""What Alembic runs for each migration: the connection comes from `refold_store.migrate`, with its transaction open."""

from __future__ import annotations

from alembic import context

from refold_store.revision import VERSION_TABLE
from refold_store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata(connection.dialect.name),
    version_table=VERSION_TABLE,
)
context.run_migrations()

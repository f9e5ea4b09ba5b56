"""Run by Alembic for each migration. `schema.migrate` hands it the connection to work on."""

from __future__ import annotations

from alembic import context

from autotune.store.models import Base
from autotune.store.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,  # SQLite alters a table by copying it
)
with context.begin_transaction():
    context.run_migrations()

"""Who searched what, and where."""

from __future__ import annotations

from alembic import op

from autotune.store.schema import create_tables

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    create_tables(op.get_bind(), "run")

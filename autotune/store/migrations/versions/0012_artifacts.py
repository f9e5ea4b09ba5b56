"""Signed tables, decisions about them, tokens, how programs were served."""

from __future__ import annotations

from alembic import op

from autotune.store.schema import create_tables

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    create_tables(op.get_bind(), "artifact", "artifact_event", "token", "usage")

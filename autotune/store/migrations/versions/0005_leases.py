"""Workers and their leases: who is at work on what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "worker",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_worker"),
        sa.UniqueConstraint("name", name="uq_worker"),
    )
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_lease"),
        sa.UniqueConstraint("scope", "task", name="uq_lease"),
    )
    op.create_index("ix_lease_worker_id", "lease", ["worker_id"])

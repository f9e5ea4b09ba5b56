"""Who searched what, and where."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("name", "host", "login", "command")),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("shapes", sa.JSON(), nullable=False),
        sa.Column("num_trials", sa.Integer(), nullable=True),
        sa.Column("began_at", sa.DateTime(), nullable=False),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_run_environment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("name", name="uq_run"),
    )

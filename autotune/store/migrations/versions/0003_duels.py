"""Comparisons: pairs of configs that were timed in the same rounds while the GPU had nothing else to do."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "duel",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("first_id", sa.Integer(), nullable=False),
        sa.Column("second_id", sa.Integer(), nullable=False),
        sa.Column("first_us", sa.JSON(), nullable=False),
        sa.Column("second_us", sa.JSON(), nullable=False),
        sa.Column("winner", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="fk_duel_study_id"),
        sa.ForeignKeyConstraint(["first_id"], ["config.id"], name="fk_duel_first_id"),
        sa.ForeignKeyConstraint(["second_id"], ["config.id"], name="fk_duel_second_id"),
        sa.PrimaryKeyConstraint("id", name="pk_duel"),
    )
    op.create_index("ix_duel_study_id", "duel", ["study_id"])

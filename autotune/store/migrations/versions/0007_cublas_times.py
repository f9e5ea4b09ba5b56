"""Times of cuBLAS on problems that nobody searched."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_PROBLEM = ("m", "n", "k", "trans_a", "trans_b")


def upgrade() -> None:
    op.create_table(
        "cublas_time",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in _PROBLEM[:3]),
        *(sa.Column(name, sa.Boolean(), nullable=False) for name in _PROBLEM[3:]),
        sa.Column("policy", sa.String(16), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("time_us", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.CheckConstraint("time_us > 0", name=op.f("ck_cublas_time_is_time")),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_cublas_time_environment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_cublas_time"),
        sa.UniqueConstraint("environment_id", *_PROBLEM, "policy", "policy_version", name="uq_cublas_time"),
    )

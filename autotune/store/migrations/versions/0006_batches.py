"""Batches: how many products a study's problem has, and which operand they share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_BEFORE = ("environment_id", "kernel_id", "m", "n", "k", "trans_a", "trans_b")
_BEHIND = ("policy", "policy_version")


def upgrade() -> None:
    """The studies that are there are of single products.

    SQLite cannot alter a constraint: the table is copied, by a connection that heeds no foreign keys.
    """
    with op.batch_alter_table("study") as study:
        study.add_column(sa.Column("batch", sa.Integer(), nullable=False, server_default="1"))
        study.add_column(_flag("shares_a"))
        study.add_column(_flag("shares_b"))
        study.drop_constraint("uq_study", type_="unique")
        study.create_unique_constraint("uq_study", [*_BEFORE, "batch", "shares_a", "shares_b", *_BEHIND])


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.false())

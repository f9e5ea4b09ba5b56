"""Who is at a config stands in its trial of Optuna."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.drop_table("lease")

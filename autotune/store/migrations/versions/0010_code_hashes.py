"""By which trials of equal machine code are known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("trial", sa.Column("code_hash", sa.Text(), nullable=True))

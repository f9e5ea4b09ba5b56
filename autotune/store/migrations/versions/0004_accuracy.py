"""The error of a trial's C over that of cuBLAS's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """NULL in the rows that are there: nobody compared errors then."""
    op.add_column("trial", sa.Column("error_over_cublas", sa.Double(), nullable=True))

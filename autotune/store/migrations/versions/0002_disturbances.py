"""What disturbed samples, the samples that were taken again, and the energy of finalists."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for table in ("trial", "final"):
        op.add_column(table, _list("marks"))
    for table in ("trial", "final_entry"):
        op.add_column(table, _list("discarded"))
    op.add_column("final_entry", sa.Column("joules", sa.Double(), nullable=True))


def _list(name: str) -> sa.Column[object]:
    """Empty in the rows that are there: nobody looked for disturbances then."""
    return sa.Column(name, sa.JSON(), nullable=False, server_default="[]")

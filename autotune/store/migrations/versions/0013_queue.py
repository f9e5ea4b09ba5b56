"""The queue of a service: requests for shapes, who serves them, kernels that are compiled for others."""

from __future__ import annotations

from alembic import op

from autotune.store.schema import create_tables

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    create_tables(op.get_bind(), "request", "service_worker", "build")

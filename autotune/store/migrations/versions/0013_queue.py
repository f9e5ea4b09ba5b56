"""The queue of a service: requests for shapes, who serves them, kernels that are compiled for others."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def _column(name: str, kind: sa.types.TypeEngine[Any], is_nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=is_nullable)


def upgrade() -> None:
    op.create_table(
        "request",
        _column("id", sa.Integer()),
        _column("open_key", sa.Text(), True),
        *(_column(name, sa.Integer()) for name in ("m", "n", "k", "batch", "num_tries", "num_claims")),
        *(_column(name, sa.Boolean()) for name in ("trans_a", "trans_b", "shares_a", "shares_b")),
        *(_column(name, sa.Text()) for name in ("gpu", "call", "reason", "result", "worker", "asked_by")),
        *(_column(name, sa.Double()) for name in ("num_calls", "gain_us", "not_before_s", "asked_s")),
        *(_column(name, sa.Double(), True) for name in ("until_s", "ended_s")),
        _column("state", sa.String(16)),
        _column("worker_id", sa.Integer(), True),
        sa.PrimaryKeyConstraint("id", name="pk_request"),
        sa.UniqueConstraint("open_key", name="uq_request"),
    )
    op.create_index("ix_request_state", "request", ["state"])
    op.create_table(
        "service_worker",
        _column("id", sa.Integer()),
        *(_column(name, sa.Text()) for name in ("name", "host", "gpu", "gpu_uuid", "doing")),
        _column("kind", sa.String(16)),
        *(_column(name, sa.Integer()) for name in ("slots", "num_done")),
        *(_column(name, sa.Double()) for name in ("since_s", "began_s")),
        _column("ended_s", sa.Double(), True),
        sa.PrimaryKeyConstraint("id", name="pk_service_worker"),
        sa.UniqueConstraint("name", name="uq_service_worker"),
    )
    op.create_table(
        "build",
        _column("id", sa.Integer()),
        _column("key", sa.String(64)),
        _column("task", sa.Text()),
        _column("worker_id", sa.Integer(), True),
        _column("outcome", sa.String(32)),
        _column("reason", sa.Text()),
        _column("packed", sa.LargeBinary(), True),
        _column("asked_s", sa.Double()),
        _column("ended_s", sa.Double(), True),
        sa.PrimaryKeyConstraint("id", name="pk_build"),
        sa.UniqueConstraint("key", name="uq_build"),
    )
    op.create_index("ix_build_ended_s", "build", ["ended_s"])

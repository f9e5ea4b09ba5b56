"""Signed tables, decisions about them, tokens, how programs were served."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    _make(
        "artifact",
        sa.Column("address", sa.String(64), nullable=False),
        *_all(sa.Text(), "gpu_name", "driver_version", "cublas_version", "facts"),
        *_all(sa.Integer(), "cc_major", "cc_minor"),
        *_all(sa.LargeBinary(), "signed", "table_json", "cubins"),
        sa.UniqueConstraint("address", name="uq_artifact"),
    )
    _make(
        "artifact_event",
        *_all(sa.Integer(), "artifact_id"),
        sa.Column("what", sa.String(16), nullable=False),
        *_all(sa.Text(), "by"),
        sa.ForeignKeyConstraint(["artifact_id"], ["artifact.id"], name="fk_artifact_event_artifact_id"),
    )
    op.create_index("ix_artifact_event_artifact_id", "artifact_event", ["artifact_id"])
    _make(
        "token",
        *_all(sa.Text(), "name"),
        sa.Column("sha256", sa.String(64), nullable=False),
        *_all(sa.JSON(), "roles"),
        sa.UniqueConstraint("sha256", name="uq_token"),
        sa.UniqueConstraint("name", name="uq_token_name"),
    )
    _make(
        "usage",
        *_all(sa.Text(), "gpu_name", "shape"),
        sa.Column("how", sa.String(16), nullable=False),
        *_all(sa.BigInteger(), "calls"),
        *_all(sa.Double(), "saved_us"),
        sa.UniqueConstraint("gpu_name", "shape", "how", name="uq_usage"),
        timestamp="updated_at",
    )


def _make(name: str, *parts: sa.schema.SchemaItem, timestamp: str = "created_at") -> None:
    own = sa.Column("id", sa.Integer(), nullable=False)
    key = sa.PrimaryKeyConstraint("id", name=f"pk_{name}")
    op.create_table(name, own, *parts, *_all(sa.DateTime(), timestamp), key)


def _all(kind: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]

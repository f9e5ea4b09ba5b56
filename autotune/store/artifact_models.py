"""What the database holds of signed tables, tokens and programs (artifacts.py); all else is in models.py."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from .models import Base


class ArtifactRow(Base):
    """A signed table (runtime/service/table_server.py), whole: its statement and its two files."""

    __tablename__ = "artifact"
    __table_args__ = (UniqueConstraint("address"),)

    address: Mapped[str] = mapped_column(String(64))
    gpu_name: Mapped[str]
    cc_major: Mapped[int]
    cc_minor: Mapped[int]
    driver_version: Mapped[str]
    cublas_version: Mapped[str]
    signed: Mapped[bytes] = mapped_column(LargeBinary)
    table_json: Mapped[bytes] = mapped_column(LargeBinary)
    cubins: Mapped[bytes] = mapped_column(LargeBinary)
    facts: Mapped[dict[str, Any]]  # of its content, for lists: shapes, gain over cuBLAS
    created_at: Mapped[datetime]


class ArtifactEventRow(Base):
    """What was decided about artefacts, in order: the last ones say which is current (artifacts.py)."""

    __tablename__ = "artifact_event"

    artifact_id: Mapped[int] = mapped_column(ForeignKey("artifact.id"), index=True)
    what: Mapped[str] = mapped_column(String(16))
    by: Mapped[str]
    created_at: Mapped[datetime]


class TokenRow(Base):
    """Who may ask a server: the SHA-256 of a token of 256 random bits, and what it is for."""

    __tablename__ = "token"
    __table_args__ = (UniqueConstraint("sha256"), UniqueConstraint("name", name="uq_token_name"))

    name: Mapped[str]
    sha256: Mapped[str] = mapped_column(String(64))
    roles: Mapped[list[str]]
    created_at: Mapped[datetime]


class UsageRow(Base):
    """How programs were served on one GPU model: calls of a shape, by how the table chose, since ever."""

    __tablename__ = "usage"
    __table_args__ = (UniqueConstraint("gpu_name", "shape", "how"),)

    gpu_name: Mapped[str]
    shape: Mapped[str]
    how: Mapped[str] = mapped_column(String(16))
    calls: Mapped[int] = mapped_column(BigInteger)
    saved_us: Mapped[float]
    updated_at: Mapped[datetime]

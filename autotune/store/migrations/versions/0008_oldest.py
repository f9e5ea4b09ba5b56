"""The oldest tables that are read. Nothing makes them any more: a new database has the newest at once."""

from __future__ import annotations

revision = "0008"
down_revision = None


def upgrade() -> None:
    pass

"""Studies and trials as Optuna has them."""

from __future__ import annotations

from alembic import op

from autotune.store.schema import create_tables

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    create_tables(op.get_bind(), "optuna_study", "optuna_trial")

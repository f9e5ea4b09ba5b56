"""Studies and trials as Optuna has them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "optuna_study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("directions", sa.JSON(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("num_given", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["study_id"], ["study.id"], name="fk_optuna_study_study_id"),
        sa.PrimaryKeyConstraint("id", name="pk_optuna_study"),
        sa.UniqueConstraint("name", name="uq_optuna_study_name"),
        sa.UniqueConstraint("study_id", name="uq_optuna_study_study_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "optuna_trial",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("optuna_study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("config_id", sa.Integer(), nullable=True),
        sa.Column("worker_id", sa.Integer(), nullable=True),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.Column("began_at", sa.DateTime(), nullable=True),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["optuna_study_id"], ["optuna_study.id"], name="fk_optuna_trial_optuna_study_id"
        ),
        sa.ForeignKeyConstraint(["config_id"], ["config.id"], name="fk_optuna_trial_config_id"),
        sa.PrimaryKeyConstraint("id", name="pk_optuna_trial"),
        sa.UniqueConstraint("optuna_study_id", "number", name="uq_optuna_trial_number"),
        sa.UniqueConstraint("optuna_study_id", "config_id", name="uq_optuna_trial_config_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_optuna_trial_optuna_study_id_state", "optuna_trial", ["optuna_study_id", "state"])
    op.create_index("ix_optuna_trial_worker_id", "optuna_trial", ["worker_id"])

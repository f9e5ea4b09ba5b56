"""The first tables. `store/models.py` explains them; this file never changes again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_identity()
    _create_study()
    _create_trial()
    _create_baseline()
    _create_final()


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False)


def _integer(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=nullable)


def _double(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(), nullable=False)


def _created_at() -> sa.Column[object]:
    return sa.Column("created_at", sa.DateTime(), nullable=False)


def _refers(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}"))


def _primary(table: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}"))


def _unique(table: str, *columns: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*columns, name=op.f(f"uq_{table}"))


def _create_identity() -> None:
    op.create_table(
        "environment",
        _integer("id"),
        _text("gpu_name"),
        _text("gpu_uuid"),
        _integer("cc_major"),
        _integer("cc_minor"),
        _text("driver_version"),
        _text("cuda_version"),
        _text("nvrtc_version"),
        _text("cublas_version"),
        _text("recorded_on"),
        _primary("environment"),
        _unique(
            "environment",
            *("gpu_name", "gpu_uuid", "cc_major", "cc_minor", "driver_version"),
            *("cuda_version", "nvrtc_version", "cublas_version", "recorded_on"),
        ),
    )
    op.create_table(
        "kernel",
        _integer("id"),
        _text("source_hash"),
        _text("compiler"),
        _primary("kernel"),
        _unique("kernel", "source_hash", "compiler"),
    )
    op.create_table(
        "config",
        _integer("id"),
        _text("key"),
        _json("point"),
        _primary("config"),
        _unique("config", "key"),
    )


def _create_study() -> None:
    op.create_table(
        "study",
        _integer("id"),
        _integer("environment_id"),
        _integer("kernel_id"),
        _integer("m"),
        _integer("n"),
        _integer("k"),
        _flag("trans_a"),
        _flag("trans_b"),
        sa.Column("policy", sa.String(16), nullable=False),
        _integer("policy_version"),
        _created_at(),
        _refers("study", "environment_id", "environment"),
        _refers("study", "kernel_id", "kernel"),
        _primary("study"),
        _unique(
            "study",
            *("environment_id", "kernel_id", "m", "n", "k", "trans_a", "trans_b"),
            *("policy", "policy_version"),
        ),
    )


def _create_trial() -> None:
    op.create_table(
        "trial",
        _integer("id"),
        _integer("study_id"),
        _integer("config_id"),
        sa.Column("outcome", sa.String(32), nullable=False),
        _text("reason"),
        _double("time_us", nullable=True),
        _json("samples_us"),
        _flag("is_cut_short"),
        _double("error_ratio", nullable=True),
        _integer("registers", nullable=True),
        _integer("spill_bytes", nullable=True),
        _integer("smem_bytes", nullable=True),
        _double("compile_s"),
        _double("verify_s"),
        _double("measure_s"),
        _integer("sm_clock_mhz", nullable=True),
        _integer("memory_clock_mhz", nullable=True),
        _double("power_w", nullable=True),
        _integer("temperature_c", nullable=True),
        _json("throttle_reasons"),
        _text("origin"),
        _created_at(),
        sa.CheckConstraint(
            "outcome <> 'ok' OR (time_us IS NOT NULL AND time_us > 0)", name=op.f("ck_trial_ok_has_time")
        ),
        _refers("trial", "study_id", "study"),
        _refers("trial", "config_id", "config"),
        _primary("trial"),
        _unique("trial", "study_id", "config_id"),
    )


def _create_baseline() -> None:
    op.create_table(
        "baseline",
        _integer("id"),
        _integer("study_id"),
        _double("time_us", nullable=True),
        _json("samples_us"),
        _created_at(),
        _refers("baseline", "study_id", "study"),
        _primary("baseline"),
    )
    op.create_index(op.f("ix_baseline_study_id"), "baseline", ["study_id"])


def _create_final() -> None:
    op.create_table(
        "final",
        _integer("id"),
        _integer("study_id"),
        _integer("baseline_id", nullable=True),
        _created_at(),
        _refers("final", "study_id", "study"),
        _refers("final", "baseline_id", "baseline"),
        _primary("final"),
    )
    op.create_index(op.f("ix_final_study_id"), "final", ["study_id"])
    op.create_table(
        "final_entry",
        _integer("id"),
        _integer("final_id"),
        _integer("config_id"),
        _integer("rank"),
        _flag("is_tied"),
        _double("time_us"),
        _json("samples_us"),
        _refers("final_entry", "final_id", "final"),
        _refers("final_entry", "config_id", "config"),
        _primary("final_entry"),
        _unique("final_entry", "final_id", "rank"),
    )

"""The tables. Names are singular: Optuna's own (`trials`, `studies`) may live in the same file.

    environment ─┬─ cublas_time, bias_time, batch_time, run
    kernel ──────┼─ study ─┬─ trial ────────┐
                 │         ├─ search        │
                 │         ├─ baseline      ├─ config
                 │         ├─ duel ─────────┤
                 │         ├─ final ─ final_entry ┤
                 │         └─ optuna_study ─ optuna_trial

Raw samples are a JSON list beside the time computed from them, not rows of their own table: they are written
once and read as a whole; so a trial is one row, stored or not. SQL can still read them one by one:
`SELECT trial.id, value FROM trial, json_each(trial.samples_us)`.

A change here needs a step in `schema.migrate`; a test compares the two.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column, relationship

from ..kernel.config import Value
from .columns import (
    DISCARDED,
    NAMES,
    NUMBERS,
    POINT,
    SAMPLES,
    TEXTS,
    Document,
    Flag,
    Number,
    UtcDateTime,
    Whole,
    Words,
)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    """Every constraint gets a name, so that a later migration can drop it."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime,
        bool: Flag,
        int: Whole,
        float: Number,
        str: Words,
        list[float]: SAMPLES,
        list[str]: NAMES,
        dict[str, Value]: POINT,
        dict[str, float]: NUMBERS,
        dict[str, str]: TEXTS,
        dict[str, Any]: Document,
        list[dict[str, Any]]: DISCARDED,
    }
    id: Mapped[int] = mapped_column(primary_key=True, sort_order=-1)


class EnvironmentRow(Base):
    """Who measured (`device.Environment`)."""

    __tablename__ = "environment"
    __table_args__ = (
        UniqueConstraint(
            "gpu_name", "gpu_uuid", "cc_major", "cc_minor", "driver_version",
            "cuda_version", "nvrtc_version", "cublas_version", "recorded_on",
        ),
    )  # fmt: skip

    gpu_name: Mapped[str]
    gpu_uuid: Mapped[str]
    cc_major: Mapped[int]  # compute capability 9.0: 9 and 0
    cc_minor: Mapped[int]
    driver_version: Mapped[str]
    cuda_version: Mapped[str]
    nvrtc_version: Mapped[str]
    cublas_version: Mapped[str]
    recorded_on: Mapped[str]


class KernelRow(Base):
    """A kernel source and what compiles it."""

    __tablename__ = "kernel"
    __table_args__ = (UniqueConstraint("source_hash", "compiler"),)

    source_hash: Mapped[str]
    compiler: Mapped[str]


class ConfigRow(Base):
    """One point of a space; shared by all studies that tried it."""

    __tablename__ = "config"
    __table_args__ = (UniqueConstraint("key"),)

    key: Mapped[str]  # name=value,... of every parameter
    point: Mapped[dict[str, Value]]


class StudyRow(Base):
    """One problem in one environment with one kernel, timed in one way."""

    __tablename__ = "study"
    __table_args__ = (
        UniqueConstraint(
            "environment_id", "kernel_id", "m", "n", "k", "trans_a", "trans_b", "batch", "shares_a",
            "shares_b", "policy", "policy_version",
        ),
    )  # fmt: skip

    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    kernel_id: Mapped[int] = mapped_column(ForeignKey("kernel.id"))
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    trans_a: Mapped[bool]
    trans_b: Mapped[bool]
    batch: Mapped[int]
    shares_a: Mapped[bool]  # all products of the batch read the same A
    shares_b: Mapped[bool]
    policy: Mapped[str] = mapped_column(String(16))  # a CachePolicy
    policy_version: Mapped[int]
    created_at: Mapped[datetime]


class SearchRow(Base):
    """The options of one search of a study; `policy` is a `SearchPolicy` by name."""

    __tablename__ = "search"

    study_id: Mapped[int] = mapped_column(ForeignKey("study.id"), index=True)
    sampler: Mapped[str] = mapped_column(String(32))
    seed: Mapped[int]
    policy: Mapped[dict[str, float]]
    created_at: Mapped[datetime]


class RunRow(Base):
    """Who searched, where and with what. `name` is the process's (`this_process`); `shapes` is what for,
    `num_trials` how many it stored; NULL with `ended_at` until it ends in order."""

    __tablename__ = "run"
    __table_args__ = (UniqueConstraint("name"),)

    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    name: Mapped[str]
    host: Mapped[str]
    login: Mapped[str]
    command: Mapped[str]
    versions: Mapped[dict[str, str]]
    shapes: Mapped[list[str]]
    num_trials: Mapped[int | None]
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class _TimeOfCublas:
    """A time of cuBLAS on a product."""

    extents: ClassVar[tuple[str, ...]] = ("m", "n", "k")

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        return (
            UniqueConstraint(
                *("environment_id", *cls.extents, "trans_a", "trans_b", "policy", "policy_version")
            ),
            CheckConstraint("time_us > 0", name="is_time"),
        )

    environment_id: Mapped[int] = mapped_column(ForeignKey("environment.id"))
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    trans_a: Mapped[bool]
    trans_b: Mapped[bool]
    policy: Mapped[str] = mapped_column(String(16))  # a CachePolicy
    policy_version: Mapped[int]
    time_us: Mapped[float]
    created_at: Mapped[datetime]


class CublasTimeRow(_TimeOfCublas, Base):
    """Of one that nobody searched."""

    __tablename__ = "cublas_time"


class BiasTimeRow(_TimeOfCublas, Base):
    """Of one that adds a vector to each row, as torch calls it (gpu/cublaslt.py)."""

    __tablename__ = "bias_time"


class BatchTimeRow(_TimeOfCublas, Base):
    """Of a strided batch that nobody searched, packed, whose products share nothing."""

    __tablename__ = "batch_time"

    extents: ClassVar[tuple[str, ...]] = ("m", "n", "k", "batch")
    batch: Mapped[int]


class TrialRow(Base):
    """One `Measurement` of one config in one study; never a second one of the same."""

    __tablename__ = "trial"
    __table_args__ = (
        UniqueConstraint("study_id", "config_id"),
        CheckConstraint("outcome <> 'ok' OR (time_us IS NOT NULL AND time_us > 0)", name="ok_has_time"),
    )

    study_id: Mapped[int] = mapped_column(ForeignKey("study.id"))
    config_id: Mapped[int] = mapped_column(ForeignKey("config.id"))
    outcome: Mapped[str] = mapped_column(String(32))  # an Outcome
    reason: Mapped[str]
    time_us: Mapped[float | None]
    samples_us: Mapped[list[float]]
    is_cut_short: Mapped[bool]
    error_ratio: Mapped[float | None]
    error_over_cublas: Mapped[float | None]
    registers: Mapped[int | None]
    spill_bytes: Mapped[int | None]
    smem_bytes: Mapped[int | None]
    code_hash: Mapped[str | None]
    compile_s: Mapped[float]
    verify_s: Mapped[float]
    measure_s: Mapped[float]
    sm_clock_mhz: Mapped[int | None]
    memory_clock_mhz: Mapped[int | None]
    power_w: Mapped[float | None]
    temperature_c: Mapped[int | None]
    throttle_reasons: Mapped[list[str]]
    marks: Mapped[list[str]]  # what disturbed samples_us
    discarded: Mapped[list[dict[str, Any]]]  # disturbed samples and their marks, taken before
    origin: Mapped[str]
    created_at: Mapped[datetime]


class BaselineRow(Base):
    """One timing of cuBLAS on a study's problem; `time_us` is NULL if cuBLAS is absent."""

    __tablename__ = "baseline"

    study_id: Mapped[int] = mapped_column(ForeignKey("study.id"), index=True)
    time_us: Mapped[float | None]
    samples_us: Mapped[list[float]]
    created_at: Mapped[datetime]


class ComparisonRow(Base):
    """Two configs of a study, timed in the same rounds; `winner` is 0, 1, or NULL if they are tied."""

    __tablename__ = "duel"

    study_id: Mapped[int] = mapped_column(ForeignKey("study.id"), index=True)
    first_id: Mapped[int] = mapped_column(ForeignKey("config.id"))
    second_id: Mapped[int] = mapped_column(ForeignKey("config.id"))
    first_us: Mapped[list[float]]
    second_us: Mapped[list[float]]
    winner: Mapped[int | None]
    created_at: Mapped[datetime]


class FinalRow(Base):
    """One final of a study. The newest counts."""

    __tablename__ = "final"

    study_id: Mapped[int] = mapped_column(ForeignKey("study.id"), index=True)
    baseline_id: Mapped[int | None] = mapped_column(ForeignKey("baseline.id"))
    marks: Mapped[list[str]]
    created_at: Mapped[datetime]
    baseline: Mapped[BaselineRow | None] = relationship()
    entries: Mapped[list[FinalEntryRow]] = relationship()


class FinalEntryRow(Base):
    """One config's place in a final."""

    __tablename__ = "final_entry"
    __table_args__ = (UniqueConstraint("final_id", "rank"),)

    final_id: Mapped[int] = mapped_column(ForeignKey("final.id"))
    config_id: Mapped[int] = mapped_column(ForeignKey("config.id"))
    rank: Mapped[int]
    is_tied: Mapped[bool]
    time_us: Mapped[float]
    samples_us: Mapped[list[float]]
    discarded: Mapped[list[dict[str, Any]]]
    joules: Mapped[float | None]


class OptunaStudyRow(Base):
    """A study as Optuna has it: one of ours, or somebody's own of anything (`study_id` is NULL)."""

    __tablename__ = "optuna_study"
    __table_args__ = (
        UniqueConstraint("name", name="uq_optuna_study_name"),
        UniqueConstraint("study_id", name="uq_optuna_study_study_id"),
        {"sqlite_autoincrement": True},
    )

    study_id: Mapped[int | None] = mapped_column(ForeignKey("study.id"))
    name: Mapped[str]
    directions: Mapped[list[str]]
    facts: Mapped[dict[str, Any]]  # user: and system: attributes, space: distributions by parameter
    num_given: Mapped[int]  # numbers of trials, those of deleted ones too


class OptunaTrialRow(Base):
    """A trial as Optuna has it, from when it is asked for. What came of a config of a study of ours stands in
    `trial`. `worker_id` is who is at it (no foreign key: workers go): without a living one it never was."""

    __tablename__ = "optuna_trial"
    __table_args__ = (
        UniqueConstraint("optuna_study_id", "number", name="uq_optuna_trial_number"),
        UniqueConstraint("optuna_study_id", "config_id", name="uq_optuna_trial_config_id"),
        Index("ix_optuna_trial_optuna_study_id_state", "optuna_study_id", "state"),
        {"sqlite_autoincrement": True},
    )

    optuna_study_id: Mapped[int] = mapped_column(ForeignKey("optuna_study.id"))
    number: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))  # a TrialState
    config_id: Mapped[int | None] = mapped_column(ForeignKey("config.id"))
    worker_id: Mapped[int | None] = mapped_column(index=True)
    facts: Mapped[dict[str, Any]]  # values, params, user, system, steps, as far as there are any
    began_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class WorkerRow(Base):
    """A process that takes part in the work on this database, as long as its heartbeat is recent."""

    __tablename__ = "worker"
    __table_args__ = (UniqueConstraint("name"),)

    name: Mapped[str]
    expires_s: Mapped[float]  # seconds since 1970 on the database's clock


# ---- the queue of a service (queue.py). Its times are seconds since 1970 on the database's clock.


class RequestRow(Base):
    """A shape that somebody wants tuned on GPUs of a model. `open_key` names both until the request ends, so
    that there is one at a time; `num_claims` says whose claim of it counts, the last one's."""

    __tablename__ = "request"
    __table_args__ = (UniqueConstraint("open_key"), Index("ix_request_state", "state"))

    open_key: Mapped[str | None]
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    trans_a: Mapped[bool]
    trans_b: Mapped[bool]
    batch: Mapped[int]
    shares_a: Mapped[bool]
    shares_b: Mapped[bool]
    gpu: Mapped[str]  # a model's name; "": any
    call: Mapped[dict[str, Any]]  # what else is known of the calls: leading dimensions, epilogue
    num_calls: Mapped[float]  # a count, perhaps beyond an integer of 32 bits
    gain_us: Mapped[float]  # of a call, as predicted
    state: Mapped[str] = mapped_column(String(16))  # a RequestState
    reason: Mapped[str]  # why it was refused or given up, or what the last try failed by
    result: Mapped[dict[str, Any]]
    num_tries: Mapped[int]  # that failed
    num_claims: Mapped[int]
    worker: Mapped[str]  # who is at it, or was: a name of `service_worker`
    worker_id: Mapped[int | None]  # no foreign key, as in `optuna_trial`
    until_s: Mapped[float | None]  # when the claim lapses although its worker lives
    not_before_s: Mapped[float]
    asked_by: Mapped[str]
    asked_s: Mapped[float]
    ended_s: Mapped[float | None]


class ServiceWorkerRow(Base):
    """A process that serves the queue, `name` as in `worker`; it stays a while once it ended."""

    __tablename__ = "service_worker"
    __table_args__ = (UniqueConstraint("name"),)

    name: Mapped[str]
    host: Mapped[str]
    kind: Mapped[str] = mapped_column(String(16))  # gpu, or compile
    gpu: Mapped[str]
    gpu_uuid: Mapped[str]
    slots: Mapped[int]  # what it does at a time
    doing: Mapped[str]
    since_s: Mapped[float]
    num_done: Mapped[int]
    began_s: Mapped[float]
    ended_s: Mapped[float | None]


class BuildRow(Base):
    """A kernel that GPU workers wait for, and what a compile worker made of it: `packed` as the kernel cache
    keeps it, or a failure's `outcome` and `reason`. `key` is the cache's, of all that decides the bytes."""

    __tablename__ = "build"
    __table_args__ = (UniqueConstraint("key"), Index("ix_build_ended_s", "ended_s"))

    key: Mapped[str] = mapped_column(String(64))
    task: Mapped[dict[str, Any]]
    worker_id: Mapped[int | None]
    outcome: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str]
    packed: Mapped[bytes | None] = mapped_column(LargeBinary)
    asked_s: Mapped[float]
    ended_s: Mapped[float | None]


# ---- signed tables, tokens and programs (artifacts.py)


class ArtifactRow(Base):
    """A signed table (runtime/service/table_server.py), whole: its statement and its two files, read
    only where they are asked for."""

    __tablename__ = "artifact"
    __table_args__ = (UniqueConstraint("address"),)

    address: Mapped[str] = mapped_column(String(64))
    gpu_name: Mapped[str]
    cc_major: Mapped[int]
    cc_minor: Mapped[int]
    driver_version: Mapped[str]
    cublas_version: Mapped[str]
    signed: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    table_json: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
    cubins: Mapped[bytes] = mapped_column(LargeBinary, deferred=True)
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

"""Turns records into rows and rows into records. Nothing here touches a database.

What is read may be damaged: whatever turns a row into a record raises BadRowError, which names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from functools import cache
from typing import Any, NoReturn, TypeVar

from ..facts.device import Environment
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy, Measurement, Outcome, discarded_from, is_time
from ..facts.other_problem import problem_of
from ..files.errors import UsageError
from ..kernel.config import PARAMETER, Value
from ..target import Baseline, point_key
from .bad_rows import BadRowError
from .columns import InvalidValue
from .models import (
    Base,
    BaselineRow,
    BatchTimeRow,
    BiasTimeRow,
    ComparisonRow,
    ConfigRow,
    CublasTimeRow,
    EnvironmentRow,
    FinalEntryRow,
    KernelRow,
    RequestRow,
    RunRow,
    SearchRow,
    StudyRow,
    TrialRow,
)
from .records import ComparisonRecord, FinalEntry, RunRecord, SearchRecord, StudyRef, TrialRecord

LONGEST_S = 1e9  # that anything took
R = TypeVar("R", bound=Base)


@cache
def _columns(model: type[Base]) -> dict[str, bool]:
    """Whether each column may be NULL."""
    return {column.name: bool(column.nullable) for column in model.__table__.columns}


def check(row: R) -> R:
    """The row. Raises BadRowError for a value that its column cannot hold, or NULL where none may be."""
    values = vars(row)  # what was fetched, without SQLAlchemy's descriptors: this runs for every trial
    for name, is_nullable in _columns(type(row)).items():
        value = values[name]
        if isinstance(value, InvalidValue):
            refuse(row, f"{name} is {value}")
        if value is None and not is_nullable:
            refuse(row, f"{name} is NULL")
    return row


def refuse(row: Base, what: str) -> NoReturn:
    raise BadRowError(row.__tablename__, row.id, what)


def check_config(row: Base, config: ConfigRow | None, name: str = "config_id") -> ConfigRow:
    """The config that a row refers to. Raises BadRowError if it is not there, or if it is damaged."""
    if config is None:
        refuse(row, f"{name} {getattr(row, name)} is not there")
    check(config)
    if not _is_of(config.key, config.point):
        refuse(config, "key and point name different configs")
    return config


def _is_of(key: str, point: Mapping[str, Value]) -> bool:
    """Whether a key names a point; of kernels that are not autotune's it may be anything."""
    items = sorted(key.split(","))
    is_autotune = point.keys() == PARAMETER.keys() or any(
        item.partition("=")[0] in PARAMETER for item in items
    )
    if not is_autotune:
        return True
    named = ",".join(f"{name}={value}" for name, value in point.items())
    return items == sorted(named.split(",")) or items == sorted(point_key(point).split(","))


def environment_columns(environment: Environment) -> dict[str, Any]:
    columns = environment.to_dict()
    columns["cc_major"], columns["cc_minor"] = columns.pop("compute_capability")
    return columns


def environment(row: EnvironmentRow) -> Environment:
    check(row)
    return Environment(
        row.gpu_name, row.gpu_uuid, (row.cc_major, row.cc_minor), row.driver_version, row.cuda_version,
        row.nvrtc_version, row.cublas_version, row.recorded_on,
    )  # fmt: skip


# The type of A is told by a study's source (problem_of)
_COLUMNS = tuple(field.name for field in fields(Gemm) if field.name != "a_type")


def gemm_columns(gemm: Gemm) -> dict[str, Any]:
    return {name: getattr(gemm, name) for name in _COLUMNS}


def gemm_of(row: StudyRow | RequestRow) -> Gemm:
    """Raises UsageError for columns that are no problem."""
    return Gemm(*(getattr(row, name) for name in _COLUMNS))


def study_gemm(study_id: int, *columns: Any) -> tuple[int, Gemm]:
    """Id and problem of a study; columns as `gemm_columns` names them."""
    for name, value in zip(_COLUMNS, columns, strict=True):
        if value is None or isinstance(value, InvalidValue):
            raise BadRowError(StudyRow.__tablename__, study_id, f"{name} is {value or 'NULL'}")
    try:
        return study_id, Gemm(*columns)
    except UsageError as error:
        raise BadRowError(StudyRow.__tablename__, study_id, str(error)) from None


def cublas_time(row: CublasTimeRow | BiasTimeRow | BatchTimeRow) -> tuple[Gemm, float]:
    check(row)
    batch = row.batch if isinstance(row, BatchTimeRow) else 1
    try:
        return Gemm(row.m, row.n, row.k, row.trans_a, row.trans_b, batch), row.time_us
    except UsageError as error:
        refuse(row, str(error))


def search_record(row: SearchRow) -> SearchRecord:
    check(row)
    return SearchRecord(row.sampler, row.seed, dict(row.policy), row.created_at)


def run_record(run: RunRow, measured_by: EnvironmentRow | None) -> RunRecord:
    check(run)
    if measured_by is None:
        refuse(run, f"environment_id {run.environment_id} is not there")
    return RunRecord(
        run.id, run.name, environment(measured_by), run.host, run.login, run.command, run.versions,
        tuple(run.shapes), run.num_trials, run.began_at, run.ended_at,
    )  # fmt: skip


def study_ref(study: StudyRow, measured_by: EnvironmentRow | None, kernel: KernelRow | None) -> StudyRef:
    check(study)
    if measured_by is None:
        refuse(study, f"environment_id {study.environment_id} is not there")
    if kernel is None:
        refuse(study, f"kernel_id {study.kernel_id} is not there")
    check(kernel)
    try:
        return StudyRef(
            **picked(study, "id policy_version"),
            **picked(kernel, "source_hash compiler"),
            environment=environment(measured_by),
            gemm=problem_of(kernel.source_hash, gemm_of(study)),
            policy=CachePolicy(study.policy),
        )
    except (ValueError, UsageError) as error:  # a problem or a policy that is none
        refuse(study, str(error))


def measurement_columns(measurement: Measurement) -> dict[str, Any]:
    columns = measurement.to_dict()
    state = columns.pop("state")
    ratio = measurement.error_ratio
    # Every database takes this: a log with NULs or broken UTF-8 must not cost the trial
    reason = measurement.reason.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")
    return {
        **columns,
        **state,
        "outcome": measurement.outcome.value,
        "reason": reason,
        "samples_us": list(measurement.samples_us),
        "throttle_reasons": list(measurement.state.throttle_reasons),
        "marks": list(measurement.marks),
        "error_ratio": math.inf if ratio is not None and math.isnan(ratio) else ratio,
    }


def outcome_of(row_id: int, outcome: Any, time_us: Any) -> Outcome:
    """How a trial ended. Raises BadRowError if no trial ends so, or if a time cannot be."""
    try:
        found = Outcome(outcome)
    except ValueError:
        raise BadRowError(TrialRow.__tablename__, row_id, f"outcome is {outcome!r}") from None
    if not is_time(time_us) and (time_us is not None or found is Outcome.OK):
        raise BadRowError(TrialRow.__tablename__, row_id, f"outcome is {found} and time_us is {time_us}")
    return found


def timed(
    keys: Mapping[int, str], trial_id: int, config_id: int, outcome: Any, time_us: Any, origin: Any
) -> tuple[str, tuple[float, str]]:
    """Key, time and origin of an ok trial."""
    if config_id not in keys or not isinstance(origin, str):
        what = "origin" if config_id in keys else f"config_id {config_id}"
        raise BadRowError(TrialRow.__tablename__, trial_id, f"{what} is not there")
    outcome_of(trial_id, outcome, time_us)
    return keys[config_id], (float(time_us), origin)


def totals_of(
    trial_id: int, outcome: Any, time_us: Any, error_over_cublas: Any, created_at: Any
) -> tuple[Outcome, datetime]:
    """What a summary takes of a trial."""
    for name, value in (("error_over_cublas", error_over_cublas), ("created_at", created_at)):
        if isinstance(value, InvalidValue):
            raise BadRowError(TrialRow.__tablename__, trial_id, f"{name} is {value}")
    if created_at is None:
        raise BadRowError(TrialRow.__tablename__, trial_id, "created_at is NULL")
    return outcome_of(trial_id, outcome, time_us), created_at


def trial_record(trial: TrialRow, config: ConfigRow | None) -> TrialRecord:
    tried = check_config(trial, config)
    found = vars(check(trial))
    for name in ("compile_s", "verify_s", "measure_s"):
        if not 0 <= found[name] < LONGEST_S:
            refuse(trial, f"{name} is {found[name]}")
    outcome_of(trial.id, trial.outcome, trial.time_us)
    measured = Measurement.from_dict({**found, "state": found})
    return TrialRecord(trial.id, tried.key, tried.point, measured, trial.origin, trial.created_at)


def trial_of_study(trial: TrialRow, config: ConfigRow | None) -> tuple[int, TrialRecord]:
    return trial.study_id, trial_record(trial, config)


def baseline_row(study_id: int, baseline: Baseline, created_at: datetime) -> BaselineRow:
    return BaselineRow(study_id=study_id, created_at=created_at, **asdict(baseline))


def baseline(row: BaselineRow) -> Baseline:
    check(row)
    if row.time_us is not None and not is_time(row.time_us):
        refuse(row, f"time_us is {row.time_us}")
    return Baseline(row.time_us, tuple(row.samples_us))


def comparison_record(
    comparison: ComparisonRow, first: ConfigRow | None, second: ConfigRow | None
) -> ComparisonRecord:
    check(comparison)
    configs = check_config(comparison, first, "first_id"), check_config(comparison, second, "second_id")
    if comparison.first_id == comparison.second_id:
        refuse(comparison, "both configs are the same")
    if len(comparison.first_us) != len(comparison.second_us):
        refuse(comparison, "first_us and second_us are not of the same rounds")
    if comparison.winner not in (None, 0, 1):
        refuse(comparison, f"winner is {comparison.winner}")
    samples_us = tuple(comparison.first_us), tuple(comparison.second_us)
    return ComparisonRecord((configs[0].key, configs[1].key), samples_us, comparison.winner)


def final_entry_row(config_id: int, entry: FinalEntry) -> FinalEntryRow:
    columns = asdict(entry)
    del columns["key"], columns["point"]
    return FinalEntryRow(config_id=config_id, **columns)


def final_entry(entry: FinalEntryRow, config: ConfigRow | None) -> tuple[int, FinalEntry]:
    """With the id of its final."""
    check(entry)
    ranked = check_config(entry, config)
    if not is_time(entry.time_us):
        refuse(entry, f"time_us is {entry.time_us}")
    place = ranked.key, ranked.point, entry.rank, entry.is_tied, entry.time_us
    discarded = tuple(map(discarded_from, entry.discarded))
    return entry.final_id, FinalEntry(*place, tuple(entry.samples_us), entry.joules, discarded)

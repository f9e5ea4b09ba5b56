"""Turns records into rows and rows into records. Nothing here touches a database."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..config import Value
from ..device import Environment
from ..gemm import Gemm
from ..measurement import CachePolicy, GpuState, Measurement, Outcome, discarded_from
from ..target import Baseline
from .models import BaselineRow, EnvironmentRow, FinalEntryRow, KernelRow, StudyRow, TrialRow, utc_now
from .records import FinalEntry, StudyRef, TrialRecord


def environment_columns(environment: Environment) -> dict[str, Any]:
    columns = environment.to_dict()
    columns["cc_major"], columns["cc_minor"] = columns.pop("compute_capability")
    return columns


def environment(row: EnvironmentRow) -> Environment:
    return Environment(
        gpu_name=row.gpu_name,
        gpu_uuid=row.gpu_uuid,
        compute_capability=(row.cc_major, row.cc_minor),
        driver_version=row.driver_version,
        cuda_version=row.cuda_version,
        nvrtc_version=row.nvrtc_version,
        cublas_version=row.cublas_version,
        recorded_on=row.recorded_on,
    )


def gemm_columns(gemm: Gemm) -> dict[str, Any]:
    return asdict(gemm)


def study_ref(study: StudyRow, measured_by: EnvironmentRow, kernel: KernelRow) -> StudyRef:
    return StudyRef(
        id=study.id,
        environment=environment(measured_by),
        source_hash=kernel.source_hash,
        compiler=kernel.compiler,
        gemm=Gemm(study.m, study.n, study.k, study.trans_a, study.trans_b),
        policy=CachePolicy(study.policy),
        policy_version=study.policy_version,
    )


def measurement_columns(measurement: Measurement) -> dict[str, Any]:
    columns = measurement.to_dict()
    state = columns.pop("state")
    ratio = measurement.error_ratio
    return {
        **columns,
        **state,
        "outcome": measurement.outcome.value,
        "reason": _storable(measurement.reason),
        "samples_us": list(measurement.samples_us),
        "throttle_reasons": list(measurement.state.throttle_reasons),
        "marks": list(measurement.marks),
        "error_ratio": math.inf if ratio is not None and math.isnan(ratio) else ratio,
    }


def _storable(text: str) -> str:
    """Text that every database takes: a log with NULs or broken UTF-8 must not cost the trial."""
    return text.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")


def measurement(row: TrialRow) -> Measurement:
    return Measurement(
        outcome=Outcome(row.outcome),
        reason=row.reason,
        time_us=row.time_us,
        samples_us=tuple(row.samples_us),
        is_cut_short=row.is_cut_short,
        error_ratio=row.error_ratio,
        error_over_cublas=row.error_over_cublas,
        registers=row.registers,
        spill_bytes=row.spill_bytes,
        smem_bytes=row.smem_bytes,
        compile_s=row.compile_s,
        verify_s=row.verify_s,
        measure_s=row.measure_s,
        state=GpuState(
            sm_clock_mhz=row.sm_clock_mhz,
            memory_clock_mhz=row.memory_clock_mhz,
            power_w=row.power_w,
            temperature_c=row.temperature_c,
            throttle_reasons=tuple(row.throttle_reasons),
        ),
        marks=tuple(row.marks),
        discarded=tuple(map(discarded_from, row.discarded)),
    )


def trial_record(trial: TrialRow, key: str, point: Mapping[str, Value]) -> TrialRecord:
    return TrialRecord(trial.id, key, point, measurement(trial), trial.origin, trial.created_at)


def baseline_row(study_id: int, baseline: Baseline) -> BaselineRow:
    return BaselineRow(
        study_id=study_id,
        time_us=baseline.time_us,
        samples_us=list(baseline.samples_us),
        created_at=utc_now(),
    )


def baseline(row: BaselineRow | None) -> Baseline | None:
    return None if row is None else Baseline(row.time_us, tuple(row.samples_us))


def final_entry_row(final_id: int, config_id: int, entry: FinalEntry) -> FinalEntryRow:
    return FinalEntryRow(
        final_id=final_id,
        config_id=config_id,
        rank=entry.rank,
        is_tied=entry.is_tied,
        time_us=entry.time_us,
        samples_us=list(entry.samples_us),
        discarded=[asdict(discarded) for discarded in entry.discarded],
        joules=entry.joules,
    )


def final_entry(entry: FinalEntryRow, key: str, point: Mapping[str, Value]) -> FinalEntry:
    return FinalEntry(
        key=key,
        point=point,
        rank=entry.rank,
        is_tied=entry.is_tied,
        time_us=entry.time_us,
        samples_us=tuple(entry.samples_us),
        joules=entry.joules,
        discarded=tuple(map(discarded_from, entry.discarded)),
    )

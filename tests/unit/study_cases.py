"""Studies made up for tests of what pages say of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from autotune.facts.device import KNOWN, DeviceLimits, Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.report.numbers import StudyNumbers, StudyRecords
from autotune.store import Final, StudyRef, TrialRecord

HERE = Environment("NVIDIA H200", "GPU-0", (9, 0), "580.1", "13.0", "13.4", "13.1")
RECORDED = replace(HERE, recorded_on="2026-11-21")
STARTED = datetime(2026, 11, 21, 12, tzinfo=UTC)
GEMM = Gemm(1024, 1024, 1024)


def ok_in(time_us: float, **facts: Any) -> Measurement:
    return Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,), **facts)


def failed(reason: str = "too much") -> Measurement:
    return Measurement(Outcome.SPILLED, reason)


def at_s(number: int, measurement: Measurement, seconds: float = 0.0, **changes: Any) -> TrialRecord:
    """A trial that was stored so many seconds after the first."""
    at = STARTED + timedelta(seconds=seconds)
    return replace(TrialRecord(number, f"a={number}", {"a": number}, measurement, "seed", at), **changes)


def study_of(
    trials: list[TrialRecord],
    *,
    environment: Environment = HERE,
    final: Final | None = None,
    cublas_us: float | None = 50.0,
    limits: DeviceLimits | None = KNOWN["h200"],
    gemm: Gemm = GEMM,
    number: int = 7,
    max_error: float | None = None,
) -> StudyNumbers:
    ref = StudyRef(number, environment, "0" * 64, "nvrtc 13.4", gemm, CachePolicy.COLD, 1)
    return StudyNumbers(StudyRecords(ref, trials, final, cublas_us, limits, max_error))

"""Reads Kernel Tuner's T1 caches: spaces that others recorded, of whatever kernel.

T1: one JSON object of device_name, kernel_name, problem_size, tune_params_keys, tune_params and
cache, whose entries hold the parameters, `time` (ms, or the name of a failure), `times` (ms) and how
long compiling, verifying and timing took (ms).
Source: the T1 schema of the Auto-Tuning Association's benchmark hub, and its files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import stats
from .device import KNOWN, DeviceLimits, Environment
from .errors import UsageError
from .gemm import Gemm
from .measurement import CachePolicy, Measurement, Outcome
from .recording import Recording, collect
from .target import Baseline, Point

UNDATED = "undated"  # T1 does not say when it was recorded
_FAILURES = {
    "CompilationFailedConfig": Outcome.COMPILE_FAILED,
    "RuntimeFailedConfig": Outcome.FAULTED,
    "InvalidConfig": Outcome.ILLEGAL,
}


def is_t1(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a T1 cache."""
    return {"device_name", "problem_size", "tune_params_keys", "cache"} <= data.keys()


def from_t1(data: Mapping[str, Any], path: Path) -> Recording:
    """The recording in a T1 cache. Raises UsageError where it is damaged or names no matrix product."""
    try:
        gemm = _gemm(data["problem_size"])
        names = tuple(data["tune_params_keys"])
        trials = [_trial(names, entry) for entry in data["cache"].values()]
        device = str(data["device_name"])
        environment = Environment(device, "", _limits(device).compute_capability, "", "", "", "", UNDATED)
        problems = {gemm: (Baseline(None), trials)}
        source = f"kernel-tuner:{data.get('kernel_name', '')}"
        return collect(_limits(device), environment, CachePolicy.WARM, source, problems)
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise UsageError(f"{path} is no usable Kernel Tuner T1 cache: {error}") from error


def _gemm(problem_size: list[int]) -> Gemm:
    """m and n, and k where it is given; T1 caches of matrix products without it have k = m."""
    if len(problem_size) not in (2, 3):
        raise UsageError(f"problem size {problem_size} is not that of a matrix product: [m, n] or [m, n, k]")
    m, n, *k = map(int, problem_size)
    return Gemm(m, n, k[0] if k else m)


def _limits(device: str) -> DeviceLimits:
    """Of a known GPU; of others nothing is known, and no roofline bounds their times."""
    known = {limits.name: limits for limits in KNOWN.values()}
    nothing = DeviceLimits(device, (0, 0), 0, 0, 0, 0, 0, 0, 0, math.inf, math.inf)
    return known.get(device, nothing)


def _trial(names: tuple[str, ...], entry: Mapping[str, Any]) -> tuple[Point, Measurement]:
    point = {name: entry[name] for name in names}
    compile_s, verify_s, measure_s = (
        float(entry.get(f"{part}_time", 0.0)) / 1e3 for part in ("compile", "verification", "benchmark")
    )
    if isinstance(entry["time"], str):
        outcome = _FAILURES.get(entry["time"], Outcome.FAULTED)
        return point, Measurement(outcome, entry["time"], compile_s=compile_s)
    samples_us = tuple(float(time) * 1e3 for time in entry.get("times") or [entry["time"]])
    return point, Measurement(
        Outcome.OK,
        time_us=stats.median(samples_us),
        samples_us=samples_us,
        compile_s=compile_s,
        verify_s=verify_s,
        measure_s=measure_s,
    )

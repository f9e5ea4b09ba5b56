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

from .. import stats
from ..device import KNOWN, DeviceLimits, Environment
from ..entries import LARGEST, items, number, shown, table, text, whole
from ..errors import UsageError
from ..gemm import Gemm
from ..kernel.config import Value
from ..measurement import CachePolicy, Measurement, Outcome
from ..target import Baseline, Point
from .recorded_space import LEAST_US, MOST_S, MOST_US, Recording, collect

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
    """The recording in a T1 cache. Keys that are not known are left alone: the format is not ours.

    Raises UsageError where it is damaged or names no matrix product.
    """
    try:
        gemm = _gemm(data["problem_size"])
        names = tuple(text(name, "tune_params_keys") for name in items(data["tune_params_keys"], "keys"))
        cache = table(data["cache"], "cache")
        trials = [_trial(names, table(entry, where), where) for where, entry in cache.items()]
        device = text(data["device_name"], "device_name")
        environment = Environment(device, "", _limits(device).compute_capability, "", "", "", "", UNDATED)
        problems = {gemm: (Baseline(None), trials)}
        source = f"kernel-tuner:{text(data.get('kernel_name', ''), 'kernel_name')}"
        return collect(_limits(device), environment, CachePolicy.WARM, source, problems)
    except (ValueError, LookupError, TypeError, UsageError) as error:
        raise UsageError(f"{path} is no usable Kernel Tuner T1 cache: {error}") from error


def _gemm(problem_size: Any) -> Gemm:
    """m and n, and k where it is given; T1 caches of matrix products without it have k = m."""
    sizes = items(problem_size, "problem_size")
    if len(sizes) not in (2, 3):
        raise UsageError(f"problem size {shown(sizes)} is not that of a matrix product: [m, n] or [m, n, k]")
    m, n, *k = (whole(_number_in(size), "problem_size") for size in sizes)
    return Gemm(m, n, k[0] if k else m)


def _number_in(size: Any) -> Any:
    """Some caches write sizes as text."""
    return int(size) if isinstance(size, str) and size.isascii() and size.isdecimal() else size


def _limits(device: str) -> DeviceLimits:
    """Of a known GPU; of others nothing is known, and no roofline bounds their times."""
    known = {limits.name: limits for limits in KNOWN.values()}
    nothing = DeviceLimits(device, (0, 0), 0, 0, 0, 0, 0, 0, 0, math.inf, math.inf)
    return known.get(device, nothing)


def _trial(names: tuple[str, ...], entry: Mapping[str, Any], where: str) -> tuple[Point, Measurement]:
    point = {name: _value(entry[name], f"{where}: {name}") for name in names}
    compile_s, verify_s, measure_s = (
        number(entry.get(f"{part}_time", 0.0), f"{where}: {part}_time", 0, MOST_S * 1e3) / 1e3
        for part in ("compile", "verification", "benchmark")
    )
    if isinstance(entry["time"], str):
        reason = text(entry["time"], f"{where}: time")
        return point, Measurement(_FAILURES.get(reason, Outcome.FAULTED), reason, compile_s=compile_s)
    times_ms = items(entry.get("times") or [entry["time"]], f"{where}: times")
    samples_us = tuple(number(ms, f"{where}: times", LEAST_US / 1e3, MOST_US / 1e3) * 1e3 for ms in times_ms)
    return point, Measurement(
        Outcome.OK,
        time_us=stats.median(samples_us),
        samples_us=samples_us,
        compile_s=compile_s,
        verify_s=verify_s,
        measure_s=measure_s,
    )


def _value(value: Any, where: str) -> Value:
    """A word or a whole number; a flag counts as one."""
    if isinstance(value, str):
        return text(value, where)
    return whole(int(value) if isinstance(value, bool) else value, where, -LARGEST)

"""Writes trials as T4, the results format that Kernel Tuner and others share.

T4: one JSON object of schema_version and results. Each result holds its configuration, `times` (in ms here,
as Kernel Tuner writes them), `invalidity` (why it counts for nothing, or "correct"), `correctness`, and
`measurements` with units. One file holds one problem.
Source: the results schema of the Auto-Tuning Association, version 1.0.0, as Kernel Tuner carries it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..device import Environment
from ..gemm import Gemm
from ..measurement import Measurement
from ..target import Point

SCHEMA_VERSION = "1.0.0"
# By outcome; a kernel that would not fit or that spills is refused before it runs.
INVALIDITY: dict[str, str] = {
    "ok": "correct",
    "illegal": "constraints",
    "compile_failed": "compile",
    "compile_timeout": "timeout",
    "compile_crashed": "compile",
    "spilled": "constraints",
    "does_not_fit": "constraints",
    "wrong_result": "correctness",
    "inaccurate": "correctness",
    "too_fast": "correctness",
    "faulted": "runtime",
    "timed_out": "timeout",
    "out_of_memory": "runtime",
}


@dataclass(frozen=True)
class T4Trial:
    """`timestamp` is ISO 8601, as exact as it is known."""

    point: Point
    measurement: Measurement
    timestamp: str


def to_t4(gemm: Gemm, environment: Environment, trials: Iterable[T4Trial]) -> dict[str, Any]:
    """The trials of one problem. What T4 has no field for, the problem and its environment, is `metadata`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": {
            "kernel": "sgemm",
            "problem": _problem(gemm),
            "environment": replace(environment, gpu_uuid="").to_dict(),
        },
        "results": [_result(trial) for trial in trials],
    }


def _problem(gemm: Gemm) -> dict[str, Any]:
    """A single product is told without a batch."""
    single = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "layout": gemm.layout}
    batch = {"batch": gemm.batch, "shares_a": gemm.shares_a, "shares_b": gemm.shares_b}
    return {**single, **(batch if gemm.is_batched else {})}


def _result(trial: T4Trial) -> dict[str, Any]:
    found = trial.measurement
    return {
        "timestamp": trial.timestamp,
        "configuration": dict(trial.point),
        "objectives": ["time"],
        "times": {
            "compilation_time": _ms(found.compile_s),
            "validation": _ms(found.verify_s),
            "benchmark": _ms(found.measure_s),
            "framework": 0.0,
            "search_algorithm": 0.0,
            "runtimes": [_ms(sample / 1e6) for sample in found.samples_us],
        },
        "invalidity": INVALIDITY[found.outcome],
        "correctness": float(found.is_ok),
        "measurements": list(_measurements(found)),
    }


def _measurements(found: Measurement) -> Iterable[dict[str, Any]]:
    """What was measured; T4 knows no null and JSON no infinity, so what is not known is left out."""
    time_ms = None if found.time_us is None else _ms(found.time_us / 1e6)
    facts = (
        ("time", time_ms, "ms"),
        ("registers", found.registers, ""),
        ("spills", found.spill_bytes, "bytes"),
        ("shared_memory", found.smem_bytes, "bytes"),
        ("error_ratio", found.error_ratio, ""),
    )
    for name, value, unit in facts:
        if value is not None and math.isfinite(value):
            yield {"name": name, "value": value, "unit": unit}
    if found.reason:
        yield {"name": "reason", "value": found.reason, "unit": ""}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)

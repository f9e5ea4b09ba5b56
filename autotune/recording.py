"""A recorded space: what every config of a set came to on some GPU, in one compact file.

Format: gzip-compressed JSON, one object:

    format, version     "autotune-recording", 1
    limits, environment what was measured on; environment.recorded_on is the date
    policy, policy_version, source_hash
    names, values       parameters of a config, and the values of each in their natural order
    problems            one per GEMM, each of columns with one entry per config:
        gemm            "4096x4096x4096:NN"
        cublas_us       samples of cuBLAS, in us; empty where it was absent
        configs         codes of the values as hexadecimal digits, two per parameter
        outcome, reason indices into `outcomes` and `reasons` of the problem
        samples_us      in the order taken, five significant digits; empty for failures
        is_cut_short, error_ratio, registers, spill_bytes, smem_bytes, compile_s, verify_s, measure_s
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import stats
from .config import PARAMETER, Value
from .device import DeviceLimits, Environment
from .errors import AutotuneError, UsageError
from .gemm import Gemm
from .measurement import POLICY_VERSION, CachePolicy, Measurement, Outcome
from .space import Factor, FeasibleSet
from .target import Baseline, Point

FORMAT = "autotune-recording"
VERSION = 1
SAMPLE_DIGITS = 5  # significant: finer than any timer
_SECONDS_DECIMALS = 4
_MAX_VALUES = 256  # codes are bytes
_COLUMNS = (
    "is_cut_short", "error_ratio", "registers", "spill_bytes", "smem_bytes",
    "compile_s", "verify_s", "measure_s",
)  # fmt: skip
_DAMAGE = (
    OSError, EOFError, zlib.error, UnicodeDecodeError, ValueError, KeyError, IndexError, TypeError,
    AttributeError, AutotuneError,
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What was recorded for one GEMM: row i of `codes` (configs, parameters) came to `measurements[i]`."""

    codes: np.ndarray  # uint8, rows ascending and distinct
    measurements: tuple[Measurement, ...]
    cublas_us: tuple[float, ...]

    @property
    def baseline(self) -> Baseline:
        return Baseline(stats.median(self.cublas_us) if self.cublas_us else None, self.cublas_us)


@dataclass(frozen=True)
class Recording:
    """A whole file. All problems share parameter names and values."""

    limits: DeviceLimits
    environment: Environment
    policy: CachePolicy
    source_hash: str
    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    problems: Mapping[Gemm, Problem]

    def space(self, gemm: Gemm) -> FeasibleSet:
        """The configs recorded for this problem, numbered as its measurements are."""
        return FeasibleSet((Factor(self.names, self.values, self.problems[gemm].codes),))


Trials = Iterable[tuple[Point, Measurement]]


def collect(
    limits: DeviceLimits,
    environment: Environment,
    policy: CachePolicy,
    source_hash: str,
    problems: Mapping[Gemm, tuple[Baseline, Trials]],
) -> Recording:
    """A recording of these trials. Raises UsageError where there are none or their parameters differ."""
    trials = {gemm: list(pairs) for gemm, (_, pairs) in problems.items()}
    points = [point for pairs in trials.values() for point, _ in pairs]
    if not points or not all(trials.values()):
        raise UsageError("nothing to record: a problem without trials; measure some first")
    names = tuple(points[0])
    if any(set(point) != set(names) for point in points):
        raise UsageError("trials of different kernels cannot share a recording: their parameters differ")
    values = tuple(_natural_order(name, {point[name] for point in points}) for name in names)
    if max(map(len, values)) > _MAX_VALUES:
        raise UsageError(f"a parameter has more than {_MAX_VALUES} values; record fewer configs")
    return Recording(
        limits, environment, policy, source_hash, names, values,
        {g: _problem(names, values, trials[g], base.samples_us) for g, (base, _) in problems.items()},
    )  # fmt: skip


def _natural_order(name: str, seen: set[Value]) -> tuple[Value, ...]:
    known = PARAMETER[name].values if name in PARAMETER else ()
    if seen <= set(known):
        return tuple(value for value in known if value in seen)
    return tuple(sorted(seen, key=lambda value: (isinstance(value, str), value)))


def _problem(
    names: Sequence[str],
    values: Sequence[Sequence[Value]],
    trials: Sequence[tuple[Point, Measurement]],
    cublas_us: tuple[float, ...],
) -> Problem:
    code_of = [{value: code for code, value in enumerate(choices)} for choices in values]
    codes = [tuple(c[point[n]] for n, c in zip(names, code_of, strict=True)) for point, _ in trials]
    if len(set(codes)) < len(codes):
        raise UsageError("a config was recorded twice for one problem")
    order = sorted(range(len(codes)), key=codes.__getitem__)
    table = np.array([codes[i] for i in order], dtype=np.uint8)
    return Problem(table, tuple(trials[i][1] for i in order), cublas_us)


# ------------------------------------------------------------------------------------------------
# Writing


def write_recording(
    path: Path,
    *,
    limits: DeviceLimits,
    environment: Environment,
    policy: CachePolicy,
    source_hash: str,
    recorded_on: str,
    problems: Mapping[Gemm, tuple[Baseline, Trials]],
) -> None:
    """Write trials of one GPU and kernel as a recording. `recorded_on` is an ISO date.

    The same trials give the same bytes. Raises UsageError where `collect` does.
    """
    # Of which card of its kind it was made is nobody's business, and is not needed to replay it.
    dated = replace(environment, recorded_on=recorded_on, gpu_uuid="")
    recording = collect(limits, dated, policy, source_hash, problems)
    data = {
        "format": FORMAT,
        "version": VERSION,
        "limits": limits.to_dict(),
        "environment": dated.to_dict(),
        "policy": policy.value,
        "policy_version": POLICY_VERSION,
        "source_hash": source_hash,
        "names": recording.names,
        "values": recording.values,
        "problems": [_problem_to_json(gemm, problem) for gemm, problem in recording.problems.items()],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _problem_to_json(gemm: Gemm, problem: Problem) -> dict[str, Any]:
    reasons = sorted({m.reason for m in problem.measurements})
    outcomes = sorted({m.outcome for m in problem.measurements})
    return {
        "gemm": str(gemm),
        "cublas_us": _rounded(problem.cublas_us),
        "configs": [row.tobytes().hex() for row in problem.codes],
        "outcomes": outcomes,
        "outcome": [outcomes.index(m.outcome) for m in problem.measurements],
        "reasons": reasons,
        "reason": [reasons.index(m.reason) for m in problem.measurements],
        "samples_us": [_rounded(m.samples_us) for m in problem.measurements],
        **{name: [_plain(getattr(m, name)) for m in problem.measurements] for name in _COLUMNS},
    }


def _rounded(samples: Iterable[float]) -> list[float]:
    return [float(f"{sample:.{SAMPLE_DIGITS}g}") for sample in samples]


def _plain(value: float | int | bool | None) -> float | int | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return round(value, _SECONDS_DECIMALS) if np.isfinite(value) else None
    return value


# ------------------------------------------------------------------------------------------------
# Reading


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, compressed or not. Raises UsageError with the reason."""
    try:
        content = path.read_bytes()
        data = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except FileNotFoundError:
        raise UsageError(f"no recording at {path}; name an existing file") from None
    except _DAMAGE as error:
        raise UsageError(f"{path} is no readable recording: {error}; fetch or record it again") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no recording; name a file written by `autotune record`")
    return data


def from_json(data: Mapping[str, Any], path: Path) -> Recording:
    """Our own format, checked. Raises UsageError where it is newer than this code, or damaged."""
    version = data.get("version")
    if version != VERSION:
        raise UsageError(
            f"{path} is a recording of version {version}, this autotune reads {VERSION}; use a matching one"
        )
    try:
        names, values = tuple(data["names"]), tuple(map(tuple, data["values"]))
        if len(names) != len(values):
            raise ValueError("names and values do not match")
        return Recording(
            limits=DeviceLimits.from_dict(data["limits"]),
            environment=Environment.from_dict(data["environment"]),
            policy=CachePolicy(data["policy"]),
            source_hash=str(data["source_hash"]),
            names=names,
            values=values,
            problems=dict(_problem_from_json(entry, values) for entry in data["problems"]),
        )
    except _DAMAGE as error:
        raise UsageError(f"{path} is a damaged recording: {error!r}; fetch or record it again") from error


def _problem_from_json(entry: Mapping[str, Any], values: Sequence[Sequence[Value]]) -> tuple[Gemm, Problem]:
    codes = np.array([list(bytes.fromhex(text)) for text in entry["configs"]], dtype=np.uint8)
    if codes.shape != (len(entry["configs"]), len(values)):
        raise ValueError("configs and parameters do not match")
    if not len(codes) or any(codes[:, j].max() >= len(choices) for j, choices in enumerate(values)):
        raise ValueError("a config names a value that is not listed")
    rows = [bytes(row) for row in codes]
    if rows != sorted(set(rows)):
        raise ValueError("configs are repeated or out of order")
    columns = {name: entry[name] for name in ("outcome", "reason", "samples_us", *_COLUMNS)}
    if any(len(column) != len(codes) for column in columns.values()):
        raise ValueError("columns differ in length")
    measurements = tuple(
        _measurement({name: column[i] for name, column in columns.items()}, entry) for i in range(len(codes))
    )
    return Gemm.parse(entry["gemm"]), Problem(codes, measurements, tuple(map(float, entry["cublas_us"])))


def _measurement(cell: dict[str, Any], entry: Mapping[str, Any]) -> Measurement:
    outcome = Outcome(entry["outcomes"][cell.pop("outcome")])
    reason = str(entry["reasons"][cell.pop("reason")])
    samples = tuple(map(float, cell.pop("samples_us")))
    if not all(0 < sample < float("inf") for sample in samples):
        raise ValueError("a sample is no positive time")
    is_ok = outcome is Outcome.OK
    time_us = stats.median(samples) if is_ok else None  # without samples: ValueError, told as damage
    cell["is_cut_short"] = bool(cell["is_cut_short"])
    return Measurement(outcome, reason, time_us, samples, **cell)

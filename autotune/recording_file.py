"""The file of a recorded space: written and read, compact, the same bytes for the same trials.

Format: gzip-compressed JSON, one object:

    format, version     "autotune-recording", 2
    limits, environment what was measured on; environment.recorded_on is the date
    policy, policy_version, source_hash
    compile_threads     that the recording machine compiled on
    names, values       parameters of a config, and the values of each in their natural order
    configs             of all problems: codes of the values as hexadecimal digits, two per parameter
    problems            one per GEMM, each of columns with one entry per config:
        gemm            "4096x4096x4096:NN"
        cublas_us       samples of cuBLAS, in us; empty where it was absent
        rows            the configs it has, as indices into `configs`; null for all of them
        outcome, reason indices into `outcomes` and `reasons` of the problem
        samples_us      in the order taken, five significant digits; empty for failures
        is_cut_short, error_ratio, registers, spill_bytes, smem_bytes, compile_s, verify_s, measure_s
        error_over_cublas  may be missing: nobody held errors against cuBLAS's then
        marks           what disturbed the samples: [entry, mark, mark, ...] for each that was

`compile_s` is 0 where a kernel came from a cache. Version 1 kept `configs` in each problem, and no
`compile_threads`; it is read, too.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from . import stats
from .config import Value
from .device import DeviceLimits, Environment
from .errors import AutotuneError, UsageError
from .gemm import Gemm
from .measurement import POLICY_VERSION, CachePolicy, Measurement, Outcome
from .output_file import write_file
from .recording import COMPILE_THREADS, Problem, Recording, Trials, collect
from .target import Baseline

FORMAT = "autotune-recording"
VERSION = 2
READABLE = (1, 2)
SAMPLE_DIGITS = 5  # significant: finer than any timer
_SECONDS_DECIMALS = 4
_COLUMNS = (
    "is_cut_short", "error_ratio", "registers", "spill_bytes", "smem_bytes",
    "compile_s", "verify_s", "measure_s",
)  # fmt: skip
_DAMAGE = (
    OSError, EOFError, zlib.error, UnicodeDecodeError, ValueError, KeyError, IndexError, TypeError,
    AttributeError, AutotuneError,
)  # fmt: skip

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
    compile_threads: int = COMPILE_THREADS,
) -> int:
    """Write trials of one GPU and kernel as a recording; returns its size in bytes. `recorded_on` is an ISO
    date.

    The same trials give the same bytes. Raises what `collect` and `output_file.write_file` do.
    """
    # Of which card of its kind it was made is nobody's business, and is not needed to replay it.
    dated = replace(environment, recorded_on=recorded_on, gpu_uuid="")
    recording = collect(limits, dated, policy, source_hash, problems, compile_threads)
    configs = sorted({row.tobytes() for problem in recording.problems.values() for row in problem.codes})
    data = {
        "format": FORMAT,
        "version": VERSION,
        "limits": limits.to_dict(),
        "environment": dated.to_dict(),
        "policy": policy.value,
        "policy_version": POLICY_VERSION,
        "source_hash": source_hash,
        "compile_threads": compile_threads,
        "names": recording.names,
        "values": recording.values,
        "configs": [config.hex() for config in configs],
        "problems": [_problem_to_json(gemm, recording.problems[gemm], configs) for gemm in problems],
    }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    content = gzip.compress(text.encode(), mtime=0)
    write_file(path, content)
    return len(content)


def _problem_to_json(gemm: Gemm, problem: Problem, configs: Sequence[bytes]) -> dict[str, Any]:
    row_of = {config: row for row, config in enumerate(configs)}
    rows = [row_of[codes.tobytes()] for codes in problem.codes]
    reasons = sorted({m.reason for m in problem.measurements})
    outcomes = sorted({m.outcome for m in problem.measurements})
    return {
        "gemm": str(gemm),
        "cublas_us": _rounded(problem.cublas_us),
        "rows": None if len(rows) == len(configs) else rows,
        "outcomes": outcomes,
        "outcome": [outcomes.index(m.outcome) for m in problem.measurements],
        "reasons": reasons,
        "reason": [reasons.index(m.reason) for m in problem.measurements],
        "samples_us": [_rounded(m.samples_us) for m in problem.measurements],
        **{name: [_plain(getattr(m, name)) for m in problem.measurements] for name in _COLUMNS},
        "error_over_cublas": [_plain(m.error_over_cublas) for m in problem.measurements],
        "marks": [[entry, *m.marks] for entry, m in enumerate(problem.measurements) if m.marks],
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
    if version not in READABLE:
        raise UsageError(
            f"{path} is a recording of version {version}, this autotune reads {VERSION}; use a newer one"
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
            problems=dict(_problem_from_json(e, _configs_of(e, data), values) for e in data["problems"]),
            compile_threads=_positive(data["compile_threads"]) if version > 1 else COMPILE_THREADS,
        )
    except _DAMAGE as error:
        raise UsageError(f"{path} is a damaged recording: {error!r}; fetch or record it again") from error


def _positive(number: Any) -> int:
    if type(number) is not int or number < 1:
        raise ValueError(f"{number!r} is no positive whole number")
    return number


def _configs_of(entry: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    """Codes of a problem's configs, as text."""
    if data["version"] == 1:
        return list(entry["configs"])
    return list(data["configs"]) if entry["rows"] is None else [data["configs"][row] for row in entry["rows"]]


def _problem_from_json(
    entry: Mapping[str, Any], configs: Sequence[str], values: Sequence[Sequence[Value]]
) -> tuple[Gemm, Problem]:
    codes = np.array([list(bytes.fromhex(text)) for text in configs], dtype=np.uint8)
    if codes.shape != (len(configs), len(values)):
        raise ValueError("configs and parameters do not match")
    if not len(codes) or any(codes[:, j].max() >= len(choices) for j, choices in enumerate(values)):
        raise ValueError("a config names a value that is not listed")
    rows = [bytes(row) for row in codes]
    if rows != sorted(set(rows)):
        raise ValueError("configs are repeated or out of order")
    columns = {name: entry[name] for name in ("outcome", "reason", "samples_us", *_COLUMNS)}
    columns["error_over_cublas"] = entry.get("error_over_cublas", [None] * len(codes))
    if any(len(column) != len(codes) for column in columns.values()):
        raise ValueError("columns differ in length")
    marks = {int(row): tuple(map(str, found)) for row, *found in entry.get("marks", ())}
    if not marks.keys() <= set(range(len(codes))):
        raise ValueError("a mark on an entry that is not there")
    measurements = tuple(
        _measurement({name: column[i] for name, column in columns.items()}, entry, marks.get(i, ()))
        for i in range(len(codes))
    )
    return Gemm.parse(entry["gemm"]), Problem(codes, measurements, tuple(map(float, entry["cublas_us"])))


def _measurement(cell: dict[str, Any], entry: Mapping[str, Any], marks: tuple[str, ...]) -> Measurement:
    outcome = Outcome(entry["outcomes"][cell.pop("outcome")])
    reason = str(entry["reasons"][cell.pop("reason")])
    samples = tuple(map(float, cell.pop("samples_us")))
    if not all(0 < sample < float("inf") for sample in samples):
        raise ValueError("a sample is no positive time")
    is_ok = outcome is Outcome.OK
    time_us = stats.median(samples) if is_ok else None  # without samples: ValueError, told as damage
    cell["is_cut_short"] = bool(cell["is_cut_short"])
    return Measurement(outcome, reason, time_us, samples, **cell, marks=marks)

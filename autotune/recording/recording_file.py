"""The file of a recorded space: compact, the same bytes for the same trials. Reading takes nothing on trust.

Format: gzip-compressed JSON, one object:

    format, version     "autotune-recording", 2
    limits, environment what was measured on; environment.recorded_on is the date
    policy, policy_version, source_hash
    compile_threads     that the recording machine compiled on
    names, values       parameters of a config, and the values of each in their natural order
    configs             of all problems: codes of the values as hexadecimal digits, two per parameter
    problems            one per GEMM, each of columns with one entry per config:
        gemm            "4096x4096x4096:NN", or of a batch "512x512x64b32:NT"
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..facts import stats
from ..facts.device import DeviceLimits, Environment
from ..facts.gemm import Gemm
from ..facts.measurement import POLICY_VERSION, CachePolicy, Measurement, Outcome
from ..files import strict
from ..files.errors import AutotuneError, UsageError
from ..files.output_file import write_file
from ..files.strict import check_keys, items, number, table, text, whole
from ..files.user_file import decoded, read_file
from ..files.words import shown
from ..kernel.config import PARAMETER, Value
from ..target import Baseline
from .recorded_space import (
    COMPILE_THREADS,
    LEAST_US,
    MAX_VALUES,
    MOST_S,
    MOST_US,
    RecordedProblem,
    Recording,
    Trials,
    collect,
)

FORMAT = "autotune-recording"
VERSION = 2
SAMPLE_DIGITS = 5  # significant: finer than any timer
_SECONDS_DECIMALS = 4
COLUMNS = (
    "is_cut_short", "error_ratio", "registers", "spill_bytes", "smem_bytes",
    "compile_s", "verify_s", "measure_s",
)  # fmt: skip
READABLE = (1, 2)
MOST_BYTES = 1 << 30
MOST_THREADS = 4096
_MOST_INT = 2**53  # of a parameter's value: JSON keeps it
_MOST_SHARE = 1e300  # of an error: what is not finite is null
_COUNTS = ("registers", "spill_bytes", "smem_bytes")
_SECONDS = ("compile_s", "verify_s", "measure_s")
_KEYS = (
    "format", "version", "limits", "environment", "policy", "policy_version", "source_hash", "names",
    "values", "problems",
)  # fmt: skip
_KEYS_OF_2 = (*_KEYS, "compile_threads", "configs")
_PROBLEM_KEYS = ("gemm", "cublas_us", "outcomes", "outcome", "reasons", "reason", "samples_us", *COLUMNS)
_LATER_KEYS = ("error_over_cublas", "marks")  # older files lack them
T = TypeVar("T", DeviceLimits, Environment)
_READ_ERRORS = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError, AutotuneError)


# --------------------------------------------------------------------------------- writing


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
    date. The same trials give the same bytes. Raises what `collect` and `output_file.write_file` do."""
    # A recording does not tell which card of its kind it was made on: no replay needs that.
    stamped = replace(environment, recorded_on=recorded_on, gpu_uuid="")
    recording = collect(limits, stamped, policy, source_hash, problems, compile_threads, MAX_VALUES)
    configs = sorted({row.tobytes() for problem in recording.problems.values() for row in problem.codes})
    data = {
        "format": FORMAT,
        "version": VERSION,
        "limits": limits.to_dict(),
        "environment": stamped.to_dict(),
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


def _problem_to_json(gemm: Gemm, problem: RecordedProblem, configs: Sequence[bytes]) -> dict[str, Any]:
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
        **{name: [_plain(getattr(m, name)) for m in problem.measurements] for name in COLUMNS},
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


# --------------------------------------------------------------------------------- reading


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, compressed or not. Raises UsageError with the reason."""
    content = read_file(path, "recording", MOST_BYTES)
    try:
        data = _parsed(decoded(content))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no readable recording: {error}; fetch or record it again") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds no recording; name a file written by `autotune record`")
    return data


def _parsed(content: str) -> Any:
    """A stopped tuner's cache lacks its last braces, perhaps half an entry: left out. Raises ValueError."""
    try:
        return json.loads(content)
    except ValueError:
        if '"cache"' in content:
            for rest in (content.rstrip().rstrip(","), content[: content.rfind("},") + 1]):
                with suppress(ValueError):
                    return json.loads(f"{rest}}}}}")
        raise


def from_json(data: Mapping[str, Any], path: Path) -> Recording:
    """Our own format, checked. Raises UsageError where it is newer than this code, or damaged."""
    version = data.get("version")
    try:
        strict.check_version(version, VERSION)
        if type(version) is not int or version not in READABLE:
            raise ValueError(f"its version is {shown(version)}")
        return _recording(data, version)
    except strict.NewerVersion as error:
        raise UsageError(f"{path} is a recording of {error}; use a newer autotune") from error
    except _READ_ERRORS as error:
        raise UsageError(f"{path} is a damaged recording: {error}; fetch or record it again") from error


def _recording(data: Mapping[str, Any], version: int) -> Recording:
    keys = _KEYS if version == 1 else _KEYS_OF_2
    check_keys(data, keys, "at the top", required=keys)
    whole(data["policy_version"], "policy_version", least=1)
    names, values = _parameters(data)
    threads = whole(data["compile_threads"], "compile_threads", 1, MOST_THREADS) if version > 1 else None
    return Recording(
        limits=read_record(DeviceLimits, data["limits"], "limits"),
        environment=_environment(data["environment"]),
        policy=CachePolicy(data["policy"]),
        source_hash=text(data["source_hash"], "source_hash"),
        names=names,
        values=values,
        problems=_problems(data, version, values),
        compile_threads=threads or COMPILE_THREADS,
    )


# ------------------------------------------ what it was recorded on, and which parameters there are


def read_record(cls: type[T], value: Any, where: str) -> T:
    """A record by what its fields declare; those that have defaults may be missing."""
    found, known = table(value, where), fields(cls)
    required = [field.name for field in known if field.default is MISSING]
    check_keys(found, [field.name for field in known], where, required)
    for name, entry in found.items():
        if isinstance(entry, str):
            text(entry, f"{where}.{name}")
    defaults = {field.name: field.default for field in known if field.default is not MISSING}
    record: T = strict.read(cls, {**defaults, **found}, where)
    return record


def _environment(value: Any) -> Environment:
    environment = read_record(Environment, value, "environment")
    date.fromisoformat(environment.recorded_on)  # without a date it would pass for a GPU that is here
    return environment


def _parameters(data: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[Value, ...], ...]]:
    """Names of parameters and the values of each."""
    names = tuple(text(name, "names") for name in items(data["names"], "names"))
    if not names or len(set(names)) < len(names):
        raise ValueError("names: expected names of parameters, each once")
    lists = items(data["values"], "values", len(names))
    values = tuple(tuple(map(_value, items(found, "values"))) for found in lists)
    is_ours = set(names) == PARAMETER.keys()
    for name, choices in zip(names, values, strict=True):
        if len(set(choices)) < len(choices) or not 1 <= len(choices) <= MAX_VALUES:
            raise ValueError(f"values of {shown(name)}: expected 1 to {MAX_VALUES}, each once")
        if is_ours and not set(choices) <= set(PARAMETER[name].values):
            raise ValueError(f"values of {name}: {shown(choices)}; known are {PARAMETER[name].values}")
    return names, values


def _value(value: Any) -> Value:
    return text(value, "values") if type(value) is str else whole(value, "values", -_MOST_INT, _MOST_INT)


# ----------------------------------------------------------------------------------------- problems


def _problems(
    data: Mapping[str, Any], version: int, values: Sequence[Sequence[Value]]
) -> dict[Gemm, RecordedProblem]:
    configs = items(data["configs"], "configs") if version > 1 else []
    problems: dict[Gemm, RecordedProblem] = {}
    for i, entry in enumerate(items(data["problems"], "problems"), 1):
        where = f"problem {i}"
        required = (*_PROBLEM_KEYS, "configs" if version == 1 else "rows")
        check_keys(table(entry, where), (*required, *_LATER_KEYS), where, required)
        gemm = Gemm.parse(text(entry["gemm"], f"{where}: gemm"))
        if gemm in problems:
            raise ValueError(f"{where}: {gemm} is there twice")
        gemm.need_output()
        problems[gemm] = _problem(entry, _codes(_configs_of(entry, configs, where), values, where), where)
    if not problems:
        raise ValueError("it holds no problem")
    return problems


def _configs_of(entry: Mapping[str, Any], configs: Sequence[Any], where: str) -> Sequence[Any]:
    """Codes of a problem's configs, as text."""
    if "configs" in entry:
        return items(entry["configs"], f"{where}: configs")
    if entry["rows"] is None:
        return configs
    where, most = f"{where}: rows", len(configs) - 1
    return [configs[whole(row, where, most=most)] for row in items(entry["rows"], where)]


def _codes(configs: Sequence[Any], values: Sequence[Sequence[Value]], where: str) -> np.ndarray:
    rows = [bytes.fromhex(text(config, f"{where}: configs")) for config in configs]
    if not rows or any(len(row) != len(values) for row in rows):
        raise ValueError(f"{where}: configs and parameters do not match")
    codes = np.array([list(row) for row in rows], dtype=np.uint8)
    if any(codes[:, j].max() >= len(choices) for j, choices in enumerate(values)):
        raise ValueError(f"{where}: a config names a value that is not listed")
    if rows != sorted(set(rows)):
        raise ValueError(f"{where}: configs are repeated or out of order")
    return codes


def _problem(entry: Mapping[str, Any], codes: np.ndarray, where: str) -> RecordedProblem:
    size = len(codes)
    columns = {
        name: items(entry.get(name, [None] * size), f"{where}: {name}", size)
        for name in ("outcome", "reason", "samples_us", *COLUMNS, "error_over_cublas")
    }
    outcomes = [Outcome(name) for name in items(entry["outcomes"], f"{where}: outcomes")]
    reasons = [text(reason, f"{where}: reasons") for reason in items(entry["reasons"], f"{where}: reasons")]
    marks = _marks(entry, size, where)
    measurements = []
    for i in range(size):
        cell = {name: column[i] for name, column in columns.items()}
        one = _measurement(cell, outcomes, reasons, marks.get(i, ()), f"{where}, config {i + 1}")
        measurements.append(one)
    cublas_us = _samples(entry["cublas_us"], f"{where}: cublas_us")
    return RecordedProblem(codes, tuple(measurements), cublas_us)


def _marks(entry: Mapping[str, Any], size: int, where: str) -> dict[int, tuple[str, ...]]:
    where = f"{where}: marks"
    marks = {}
    for row, *found in (items(mark, where) for mark in items(entry.get("marks", []), where)):
        marks[whole(row, where, most=size - 1)] = tuple(text(mark, where) for mark in found)
    return marks


def _measurement(
    cell: dict[str, Any],
    outcomes: Sequence[Outcome],
    reasons: Sequence[str],
    marks: tuple[str, ...],
    where: str,
) -> Measurement:
    outcome = outcomes[whole(cell["outcome"], where, most=len(outcomes) - 1)]
    samples = _samples(cell["samples_us"], where)
    facts: dict[str, Any] = {name: _known(whole, cell[name], where) for name in _COUNTS}
    errors = ("error_ratio", "error_over_cublas")
    facts |= {name: _known(number, cell[name], where, 0, _MOST_SHARE) for name in errors}
    facts |= {name: number(cell[name], where, 0, MOST_S) for name in _SECONDS}
    return Measurement(
        outcome,
        reasons[whole(cell["reason"], where, most=len(reasons) - 1)],
        # without samples: ValueError, told as damage
        time_us=stats.median(samples) if outcome is Outcome.OK else None,
        samples_us=samples,
        is_cut_short=bool(whole(cell["is_cut_short"], where, most=1)),
        marks=marks,
        **facts,
    )


def _samples(value: Any, where: str) -> tuple[float, ...]:
    return tuple(number(sample, where, LEAST_US, MOST_US) for sample in items(value, where))


def _known(read: Callable[..., Any], value: Any, *bounds: Any) -> Any:
    """What is read of a value; None where there is none."""
    return None if value is None else read(value, *bounds)

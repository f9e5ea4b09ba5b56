"""The file of a recorded space, and how it is written: compact, the same bytes for the same trials.

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
`compile_threads`; `reader` reads it, too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..facts.device import DeviceLimits, Environment
from ..facts.gemm import Gemm
from ..facts.measurement import POLICY_VERSION, CachePolicy
from ..files.output_file import write_file
from ..target import Baseline
from .recorded_space import COMPILE_THREADS, MAX_VALUES, RecordedProblem, Trials, collect

FORMAT = "autotune-recording"
VERSION = 2
SAMPLE_DIGITS = 5  # significant: finer than any timer
_SECONDS_DECIMALS = 4
COLUMNS = (
    "is_cut_short", "error_ratio", "registers", "spill_bytes", "smem_bytes",
    "compile_s", "verify_s", "measure_s",
)  # fmt: skip


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

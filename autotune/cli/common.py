"""What several commands share: reading shapes, opening databases and GPUs, saying what was recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..facts import stats
from ..facts.device import LIKE, DeviceLimits, Environment, limits_by_name
from ..facts.gemm import Gemm
from ..facts.other_problem import read_problem
from ..files.errors import UsageError
from ..files.words import is_command_line
from ..kernel.where import Where
from ..store import Store, StudySummary
from ..suite import adding_of, by_shape, epilogues_of, read_kinds
from . import console

_OLDEST_S = 60.0  # of a process whose command begins; else the clocks of its system differ


def read_shapes(
    shapes: Sequence[str], listed: Iterable[Gemm] = (), *, is_recorded: bool = False
) -> tuple[Gemm, ...]:
    """The problems of `--shape`, of a recording perhaps other ones than products, and those that suites list,
    each once; empty if neither was given. Raises UsageError, also for a problem of `--shape` without output.
    """
    named = [*map(read_problem if is_recorded else Gemm.parse, shapes)]
    for gemm in named:
        gemm.need_output()
    return tuple(dict.fromkeys([*named, *listed]))


def read_problems(shapes: Sequence[str]) -> tuple[Gemm, ...]:
    """The problems that `--shape` names of a database, each once: it may hold other problems than products.
    Raises UsageError, also for a product without output."""
    return read_shapes(shapes, is_recorded=True)


def read_calls(suites: Sequence[Path]) -> tuple[dict[Gemm, int], bool]:
    """How often suites together say that each shape is called for, and whether they do: else each counts
    once. Raises UsageError."""
    return read_requested(suites)[:2]


class SuiteCalls(NamedTuple):
    """What suites ask for: as `read_calls`, the names of the epilogues that calls of a shape ask for, and how
    many of its calls have cuBLAS add a bias."""

    calls: dict[Gemm, int]
    is_counted: bool
    epilogues: dict[Gemm, tuple[str, ...]]
    adding: dict[Gemm, int]


def read_requested(suites: Sequence[Path]) -> SuiteCalls:
    """Raises UsageError."""
    kinds = read_kinds(suites, console.note)
    calls = by_shape(kinds)
    try:
        for gemm in calls:
            gemm.need_output()
    except UsageError as error:
        raise UsageError(f"{', '.join(map(str, suites))}: {error}") from None
    is_counted = bool(calls) and None not in calls.values()
    counts = {gemm: count or 1 for gemm, count in calls.items()}
    return SuiteCalls(counts, is_counted, epilogues_of(kinds), adding_of(kinds))


def need_shapes(shapes: Sequence[str], suites: Sequence[Path]) -> tuple[Gemm, ...]:
    """The problems of `--shape` and `--suite`. Raises UsageError if there is none."""
    gemms = read_shapes(shapes, read_calls(suites)[0])
    if not gemms:
        raise no_shape()
    return gemms


def no_shape() -> UsageError:
    return UsageError("no shape: pass --shape 4096, --shape 4096x128x4096 or --suite FILE")


@contextmanager
def open_existing(db: str) -> Iterator[Store]:
    """A database to read from. At the end a note names the rows that are damaged and were left out. Raises
    StoreError if its file is missing."""
    with Store.open_existing(db) as store, store.bad_rows.reported(console.note):
        yield store


def studies_of(store: Store, gemms: Sequence[Gemm]) -> list[StudySummary]:
    """The studies with trials, of these problems or of all. Raises UsageError if there is none, StoreError if
    that is because rows are damaged."""
    found = [s for s in store.studies(gemms) if s.num_trials]
    if not found:
        store.bad_rows.refuse()
        what = f"of {', '.join(map(str, gemms))} " if gemms else ""
        raise UsageError(f"the database holds no trials {what}yet; run `autotune search` first")
    return found


def asked_at() -> float:
    """When this command was called, in seconds since 1970: when its process began, where that is known, as
    modules take seconds to load from a cold disk."""
    now_s, age_s = time.time(), 0.0
    if is_command_line():
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return now_s - age_s if 0 < age_s < _OLDEST_S else now_s


def accept(name: str | None) -> None:
    """From now on GPUs of this process are accepted as another, named in full or in short."""
    if name is not None:
        known = limits_by_name(name)
        os.environ[LIKE] = known.name if known else name


def source_text(environment: Environment) -> str:
    """Where times come from: `NVIDIA H200`, or `recorded on NVIDIA H200, 2026-11-21`."""
    if environment.is_recorded:
        return console.one_line(f"recorded on {environment.gpu_name}, {environment.recorded_on}")
    return console.one_line(environment.gpu_name)


def measured_on(environment: Environment) -> dict[str, Any]:
    """The GPU that times are of, and whether and when they were recorded."""
    return {
        "gpu": environment.gpu_name,
        "is_recorded": environment.is_recorded,
        "recorded_on": environment.recorded_on or None,
    }


def conditions(where: Where) -> dict[str, Any]:
    """What configs had to obey."""
    return {
        "where": str(where) or None,
        "max_workspace_mib": where.max_workspace_mib,
        "order": str(where.order) if where.order else None,
    }


def race(
    gemm: Gemm, limits: DeviceLimits, samples_us: Sequence[float], cublas_us: Sequence[float]
) -> dict[str, Any]:
    """A kernel's times in rounds that it shared with cuBLAS: medians, and 95 % intervals. Ratios are of one
    round each. None where no round has a time."""
    time_us = stats.median(samples_us) if samples_us else None
    ratios = [cublas / own for cublas, own in zip(cublas_us, samples_us, strict=False)]
    limit_us = gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    return {
        "time_us": time_us,
        "speedup": stats.median(ratios) if ratios else None,
        "speedup_interval": stats.median_interval(ratios) if ratios else None,
        "tflops": time_us and gemm.tflops(time_us),
        "limit_us": limit_us or None,
        "share_of_limit": share(limit_us, time_us),
        "samples_us": list(samples_us),
    }


def share(part: float | None, whole: float | None) -> float | None:
    """part / whole where both are there."""
    return None if part is None or not whole else part / whole


def speeds(
    gemm: Gemm, time_us: float | None, cublas_us: float | None, limit_us: float | None
) -> dict[str, Any]:
    """What follows from a kernel's time and cuBLAS's."""
    return {
        "tflops": (time_us and gemm.tflops(time_us)) or None,
        "cublas_time_us": cublas_us,
        "speedup": share(cublas_us, time_us),
        "limit_us": limit_us,
        "share_of_limit": share(limit_us, time_us),
    }


def moment(at: datetime | None) -> str | None:
    """As facts tell a time of day: to the second."""
    return None if at is None else at.isoformat(timespec="seconds")

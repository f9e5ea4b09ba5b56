"""A recorded space: the trials of every config of a set on some GPU, for one problem or several.

`recording_file` writes and reads it, `replay` searches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..facts import stats
from ..facts.device import DeviceLimits, Environment
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy, Measurement, Outcome
from ..files.errors import UsageError
from ..kernel.config import PARAMETER, Config, Value
from ..kernel.feasible_set import Factor, FeasibleSet
from ..target import Baseline, Point

COMPILE_THREADS = 16  # of the machine that recorded, where a file does not say
MAX_VALUES = 256  # of a parameter in our own files, whose codes are bytes
MOST_VALUES = 1 << 16  # in those of others
LEAST_US, MOST_US = 1e-6, 1e12  # of a sample that can be: from less than a cycle to more than a week
MOST_S = 1e6  # of compiling, verifying, timing one candidate

Trials = Iterable[tuple[Point, Measurement]]


@dataclass(frozen=True)
class RecordedProblem:
    """What was recorded for one GEMM: row i of `codes` (configs, parameters) came to `measurements[i]`."""

    codes: np.ndarray  # uint8 or uint16, rows ascending and distinct
    measurements: tuple[Measurement, ...]
    cublas_us: tuple[float, ...]

    @property
    def baseline(self) -> Baseline:
        return Baseline(stats.median(self.cublas_us) if self.cublas_us else None, self.cublas_us)

    @cached_property
    def feasible(self) -> np.ndarray:
        """Rows of what this problem allows: a space over several problems holds configs that only some of
        them do, and no search asks for what its problem forbids."""
        return np.flatnonzero([m.outcome is not Outcome.ILLEGAL for m in self.measurements])


@dataclass(frozen=True)
class Recording:
    """A whole file. All problems share parameter names and values."""

    limits: DeviceLimits
    environment: Environment
    policy: CachePolicy
    source_hash: str
    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    problems: Mapping[Gemm, RecordedProblem]
    compile_threads: int = COMPILE_THREADS
    note: str = ""  # what of a file of another tool failed, and what was left out
    is_steady: bool = True  # samples were taken of a GPU that had warmed up: the first ones are like the rest

    def space(self, gemm: Gemm) -> FeasibleSet:
        """The configs that this problem allows, in the order of its `feasible` rows."""
        problem = self.problems[gemm]
        return FeasibleSet((Factor(self.names, self.values, problem.codes[problem.feasible]),))


def collect(
    limits: DeviceLimits,
    environment: Environment,
    policy: CachePolicy,
    source_hash: str,
    problems: Mapping[Gemm, tuple[Baseline, Trials]],
    compile_threads: int = COMPILE_THREADS,
    most_values: int = MOST_VALUES,
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
    for name, choices in zip(names, values, strict=True):
        if len(choices) > most_values:
            most = f"{len(choices):,} values, and {most_values:,} are the most"
            raise UsageError(f"the parameter {name} has {most}; take fewer configs")
    return Recording(
        limits, environment, policy, source_hash, names, values,
        {g: _problem(names, values, trials[g], base.samples_us) for g, (base, _) in problems.items()},
        compile_threads,
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
) -> RecordedProblem:
    code_of = [{value: code for code, value in enumerate(choices)} for choices in values]
    codes = [tuple(c[point[n]] for n, c in zip(names, code_of, strict=True)) for point, _ in trials]
    if len(set(codes)) < len(codes):
        raise UsageError("a config was recorded twice for one problem")
    order = sorted(range(len(codes)), key=codes.__getitem__)
    kind = np.min_scalar_type(max(map(len, values), default=1) - 1)
    table = np.array([codes[i] for i in order], dtype=kind)
    return RecordedProblem(table, tuple(trials[i][1] for i in order), cublas_us)


# ---------------------------------------------------------------------------------------- compiling


def cubin_key(point: Point, gemm: Gemm) -> tuple[object, ...]:
    """Equal for candidates that one compile serves. Of kernels other than ours nothing is known to share."""
    if point.keys() != PARAMETER.keys():
        return (gemm, *point.items())
    return (Config.from_dict(point).kernel, gemm.layout, gemm.is_batched)


def with_compile_times(
    problems: Mapping[Gemm, Sequence[tuple[Point, Measurement]]],
) -> dict[Gemm, list[tuple[Point, Measurement]]]:
    """The trials, each with the compile time of its kernel, whichever trial had the kernel compiled. A kernel
    is compiled for the first candidate that needs it, and comes from the cache, in no time, for the others.
    It stays 0 where it was in the cache from the beginning."""
    compile_s: dict[tuple[object, ...], float] = {}
    for gemm, trials in problems.items():
        for point, found in trials:
            key = cubin_key(point, gemm)
            compile_s[key] = max(found.compile_s, compile_s.get(key, 0.0))
    return {
        gemm: [(point, replace(m, compile_s=compile_s[cubin_key(point, gemm)])) for point, m in trials]
        for gemm, trials in problems.items()
    }

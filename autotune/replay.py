"""A recorded space standing in for a GPU: the same searches, with a simulated clock and no device."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from . import stats
from .config import Value
from .errors import UsageError
from .gemm import Gemm
from .kernel_tuner import from_t1, is_t1
from .measurement import Measurement, Outcome
from .recording import FORMAT, Problem, Recording, from_json, load_json, write_recording
from .space import FeasibleSet
from .target import Baseline, Point

__all__ = ["ReplayTarget", "read_recording", "write_recording"]

COMPILE_THREADS = 16  # that the simulated machine compiles with
CUT_SAMPLES = 3  # samples after which a hopeless candidate is given up, as on a GPU


def read_recording(path: Path) -> Recording:
    """A recording of ours or a Kernel Tuner T1 cache. Raises UsageError with the reason if neither."""
    data = load_json(path)
    if data.get("format") == FORMAT:
        return from_json(data, path)
    if is_t1(data):
        return from_t1(data, path)
    raise UsageError(f"{path} is neither an {FORMAT} nor a Kernel Tuner T1 cache; name another file")


class ReplayTarget:
    """Implements `target.Target` on a recorded space.

    The clock is simulated: a candidate takes what it took to verify and time, or to compile on
    `num_threads` threads if that took longer, as compiling overlaps with timing. `submit` answers at
    once, so one submission at a time keeps it busy; a larger `capacity` shows a search what it is
    like to decide with that many answers outstanding.
    """

    def __init__(self, path: str | Path, *, num_threads: int = COMPILE_THREADS, capacity: int = 1) -> None:
        self._path = Path(path)
        self._recording = read_recording(self._path)
        self._num_threads = num_threads
        self._capacity = capacity
        self._now = 0.0
        self._spaces: dict[Gemm, FeasibleSet] = {}
        self._draws: dict[str, np.random.Generator] = {}
        self.limits = self._recording.limits
        self.environment = self._recording.environment
        self.policy = self._recording.policy
        self.source_hash = self._recording.source_hash

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        """The problems in this recording."""
        return tuple(self._recording.problems)

    def _problem(self, gemm: Gemm) -> Problem:
        try:
            return self._recording.problems[gemm]
        except KeyError:
            known = ", ".join(map(str, self.gemms))
            raise UsageError(f"{self._path} holds no {gemm}; ask for one of: {known}") from None

    def space(self, gemm: Gemm) -> FeasibleSet:
        """The recorded points. Raises UsageError if this problem was not recorded."""
        self._problem(gemm)
        return self._spaces.setdefault(gemm, self._recording.space(gemm))

    def baseline(self, gemm: Gemm) -> Baseline:
        return self._problem(gemm).baseline

    def optimum(self, gemm: Gemm) -> tuple[dict[str, Value], float]:
        """The fastest recorded point and its time in us. Raises UsageError if every point failed."""
        times = [(m.time_us, i) for i, m in enumerate(self._problem(gemm).measurements) if m.time_us]
        if not times:
            raise UsageError(f"{self._path} holds no config that ran for {gemm}")
        time_us, best = min(times)
        return self.space(gemm).point(best), time_us

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """The recorded measurement, cut short where it is hopeless. What was not recorded is illegal."""
        future: Future[Measurement] = Future()
        future.set_result(self._measure(gemm, point, cutoff_us))
        return future

    def _measure(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Measurement:
        number = self.space(gemm).find(point)
        if number is None:
            return Measurement(Outcome.ILLEGAL, "this point is not in the recording")
        found = _cut(self._problem(gemm).measurements[number], cutoff_us)
        self._now += max(found.compile_s / self._num_threads, found.verify_s + found.measure_s)
        return found

    def compare(
        self, gemm: Gemm, points: Sequence[Point], rounds: int
    ) -> tuple[list[tuple[float, ...]], Baseline]:
        """Draws from each point's recorded samples, with replacement: the r-th draw of a point is the same
        in every run, whatever else is compared. Recorded rounds were not interleaved, so that drift
        between points is part of what is drawn. Raises UsageError for a point without a time.
        """
        drawn = [self._draw(gemm, point, rounds) for point in points]
        self._now += sum(map(sum, drawn)) / 1e6
        cublas_us = self._problem(gemm).cublas_us
        if not cublas_us:
            return drawn, Baseline(None)
        samples = self._resample(cublas_us, rounds, f"{gemm} cuBLAS")
        return drawn, Baseline(stats.median(samples), samples)

    def _draw(self, gemm: Gemm, point: Point, rounds: int) -> tuple[float, ...]:
        number = self.space(gemm).find(point)
        found = None if number is None else self._problem(gemm).measurements[number]
        if found is None or not found.is_ok:
            raise UsageError(f"{self._path} holds no time of {dict(point)} for {gemm}")
        return self._resample(found.samples_us, rounds, f"{gemm} {number}")

    def _resample(self, samples_us: tuple[float, ...], rounds: int, label: str) -> tuple[float, ...]:
        if label not in self._draws:
            self._draws[label] = np.random.default_rng(zlib.crc32(label.encode()))
        return tuple(map(float, self._draws[label].choice(samples_us, size=rounds)))

    def now(self) -> float:
        """Simulated seconds since this target was made."""
        return self._now

    @property
    def capacity(self) -> int:
        return self._capacity

    def close(self) -> None:
        """Nothing to free; there so that a recording can stand wherever a GPU does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut(found: Measurement, cutoff_us: float | None) -> Measurement:
    """A measurement as it would have been with timing stopped once it was hopeless."""
    first = found.samples_us[:CUT_SAMPLES]
    if len(found.samples_us) <= CUT_SAMPLES or not stats.is_hopeless(first, cutoff_us):
        return found
    share = len(first) / len(found.samples_us)
    return replace(
        found,
        samples_us=first,
        time_us=stats.median(first),
        is_cut_short=True,
        measure_s=found.measure_s * share,
    )

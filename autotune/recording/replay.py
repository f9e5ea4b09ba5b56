"""A recorded space standing in for a GPU: the same searches, with a simulated clock and no device.

The clock is that of a machine that tunes: threads compile ahead while one GPU verifies and times.
"""

from __future__ import annotations

import heapq
import threading
import time
import zlib
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Self

import numpy as np

from ..facts import stats
from ..facts.gemm import Gemm
from ..facts.measurement import Failure, Measurement, Outcome, is_accurate
from ..files.errors import UsageError
from ..kernel.config import Value
from ..kernel.feasible_set import FeasibleSet
from ..kernel.summation_order import SummationOrder
from ..kernel.where import ANY, Where
from ..target import Baseline, Point, Rounds, point_key
from .recorded_space import RecordedProblem, Recording, cubin_key
from .recording_file import FORMAT, from_json, load_json
from .t1 import from_t1, is_t1
from .t4 import from_t4, is_t4


@dataclass(order=True)
class _Candidate:
    compiled_s: float  # when its kernel is there
    number: int  # of submissions before it: who comes first is served first
    run_s: float = field(compare=False)


class SimulatedMachine:
    """`num_threads` compile each kernel once, one GPU runs what is compiled, first come, first served. At
    most `depth` candidates are under way: where they are, a submission waits for one to be done. All times
    are seconds of the simulated clock, which begins at 0."""

    def __init__(self, num_threads: int, depth: int) -> None:
        self._threads = [0.0] * num_threads  # when each is free, as a heap
        self._depth = depth
        self._open: list[_Candidate] = []  # a heap
        self._compiled_s: dict[Hashable, float] = {}  # when each kernel is there
        self._num_submitted = 0
        self._requested_s = 0.0  # when the last candidate was submitted, or the next can be
        self._gpu_free_s = 0.0

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self._depth

    def submit(self, kernel: Hashable, compile_s: float, run_s: float) -> int:
        """Begin a candidate as soon as there is room for it. Compiling takes time for the first that needs
        the kernel. Returns the candidate's number: how many were submitted before it."""
        while self.is_full:
            self.finish_next()
        if kernel not in self._compiled_s:
            self._compiled_s[kernel] = max(self._requested_s, self._threads[0]) + compile_s
            heapq.heapreplace(self._threads, self._compiled_s[kernel])
        compiled_s = max(self._requested_s, self._compiled_s[kernel])
        number, self._num_submitted = self._num_submitted, self._num_submitted + 1
        heapq.heappush(self._open, _Candidate(compiled_s, number, run_s))
        return number

    def finish_next(self) -> int:
        """Let the clock run until a candidate is done; returns its number. Raises IndexError if none is open.
        Nothing that is submitted later can come before it: the GPU begins it before that."""
        candidate = heapq.heappop(self._open)
        self._gpu_free_s = max(self._gpu_free_s, candidate.compiled_s) + candidate.run_s
        self._requested_s = self._gpu_free_s
        return candidate.number

    def drain(self) -> None:
        """Let the clock run until all is done."""
        while self._open:
            self.finish_next()

    def occupy(self, seconds: float) -> None:
        """Let the GPU work on something else, once all is done."""
        self.drain()
        self._gpu_free_s += seconds
        self._requested_s = self._gpu_free_s

    @property
    def now_s(self) -> float:
        """When the last candidate was done that is known to be."""
        return self._requested_s

    @property
    def done_s(self) -> float:
        """When all that was submitted is done."""
        free_s = self._gpu_free_s
        for candidate in sorted(self._open):
            free_s = max(free_s, candidate.compiled_s) + candidate.run_s
        return free_s


EXTRA_OPEN = 2  # candidates under way besides those that compile: one on the GPU, one waiting for it
CUT_SAMPLES = 3  # samples after which a hopeless candidate is given up, as on a GPU


def read_recording(path: Path) -> Recording:
    """A recording of ours, a cache of Kernel Tuner (T1), or T4. Raises UsageError if it is none of them."""
    data = load_json(path)
    if data.get("format") == FORMAT:
        return from_json(data, path)
    if is_t1(data):
        return from_t1(data, path)
    if is_t4(data):
        return from_t4(data, path)
    raise UsageError(
        f"{path} is neither an {FORMAT}, nor a Kernel Tuner T1 cache, nor results in T4; name another file"
    )


class ReplayTarget:
    """Implements `target.Target` on a recorded space.

    The clock is simulated (`SimulatedMachine`): candidates are compiled ahead on as many threads as the
    recording machine had, or `num_threads`, and verified and timed one by one, each for as long as it took
    when it was recorded. A kernel is compiled once, and then comes from the cache.

    `submit` answers at once, so one submission at a time keeps it busy: a search then decides with every
    answer known, where on a GPU as many as are under way would be outstanding. A larger `capacity` shows it
    what that is like."""

    def __init__(
        self,
        path: str | Path,
        *,
        num_threads: int | None = None,
        capacity: int = 1,
        max_error: float | None = None,
    ) -> None:
        self._path = Path(path)
        self._recording = read_recording(self._path)
        self._capacity = capacity
        self.max_error = max_error
        self.num_threads = num_threads or self._recording.compile_threads
        self._pipeline = self.pipeline()
        self._spaces: dict[Gemm, FeasibleSet] = {}
        self._draws: dict[str, np.random.Generator] = {}
        self.limits, self.environment = self._recording.limits, self._recording.environment
        self.policy, self.source_hash = self._recording.policy, self._recording.source_hash
        self.note = self._recording.note  # "" where all that was recorded has a time

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        """The problems in this recording."""
        return tuple(self._recording.problems)

    def _problem(self, gemm: Gemm) -> RecordedProblem:
        try:
            return self._recording.problems[gemm]
        except KeyError:
            known = ", ".join(map(str, self.gemms))
            raise UsageError(f"{self._path} holds no {gemm}; ask for one of: {known}") from None

    def space(self, gemm: Gemm, order: SummationOrder | None = None) -> FeasibleSet:
        """The recorded points. Raises UsageError if this problem was not recorded."""
        self._problem(gemm)
        return self._spaces.setdefault(gemm, self._recording.space(gemm))

    def baseline(self, gemm: Gemm) -> Baseline:
        return self._problem(gemm).baseline

    def optimum(self, gemm: Gemm, where: Where = ANY) -> tuple[dict[str, Value], float]:
        """The fastest recorded point that is accurate enough and obeys, and its time in us. Raises
        UsageError if every point failed."""
        found = map(self._found, [gemm] * len(self.space(gemm)), range(len(self.space(gemm))))
        times = [
            (m.time_us, number)
            for number, m in enumerate(found)
            if m.time_us and is_accurate(m.error_over_cublas, self.max_error)
            if not where or where.holds(self.space(gemm).point(number))
        ]
        if not times:
            raise UsageError(f"{self._path} holds no config that ran for {gemm}")
        time_us, best = min(times)
        return self.space(gemm).point(best), time_us

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """The recorded measurement, cut short where it is hopeless. What was not recorded is illegal."""
        future: Future[Measurement] = Future()
        found = self.look_up(gemm, point, cutoff_us)
        if found.outcome is not Outcome.ILLEGAL:
            self._pipeline.submit(cubin_key(point, gemm), found.compile_s, found.verify_s + found.measure_s)
        future.set_result(found)
        return future

    def look_up(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Measurement:
        """What `submit` answers, without the clock. Nothing is cut short whose first samples may be of a GPU
        that was still warming up: they tell nothing of the rest."""
        number = self.space(gemm).find(point)
        if number is None:
            return Measurement(Outcome.ILLEGAL, f"not among the configs recorded for {gemm}")
        found = self._found(gemm, number)
        found = replace(found, compile_s=found.compile_s or self._default_compile_s)
        return _cut(found, cutoff_us) if self._recording.is_steady else found

    def trials(self, gemm: Gemm) -> dict[str, tuple[dict[str, Value], Measurement]]:
        """All that this problem allows, by key."""
        space = self.space(gemm)
        points = map(space.point, range(len(space)))
        return {point_key(point): (point, self._found(gemm, n)) for n, point in enumerate(points)}

    def pipeline(self) -> SimulatedMachine:
        """A machine like the one that recorded, with its clock at 0 and nothing compiled."""
        return SimulatedMachine(self.num_threads, self.num_threads + EXTRA_OPEN)

    def _found(self, gemm: Gemm, number: int) -> Measurement:
        problem = self._problem(gemm)
        return problem.measurements[int(problem.feasible[number])]

    @cached_property
    def _default_compile_s(self) -> float:
        """Taken for kernels whose compile was not timed, as a cache had them when they were recorded."""
        problems = self._recording.problems.values()
        known = [m.compile_s for problem in problems for m in problem.measurements if m.compile_s > 0]
        return stats.median(known) if known else 0.0

    def compare(self, gemm: Gemm, points: Sequence[Point], rounds: int) -> Rounds:
        """Draws from each point's recorded samples, with replacement: the r-th draw of a point is the same in
        every run, whatever else is compared. Recorded rounds were not interleaved, so that drift between
        points is part of what is drawn. A point without a recorded time, which somebody told, fails."""
        drawn = tuple(self._draw(gemm, point, rounds) for point in points)
        unknown = Failure(Outcome.ILLEGAL, f"no time of it was recorded for {gemm}")
        failures = {number: unknown for number, samples in enumerate(drawn) if not samples}
        self._pipeline.occupy(sum(map(sum, drawn)) / 1e6)
        cublas_us = self._problem(gemm).cublas_us
        if not cublas_us:
            return Rounds(drawn, Baseline(None), failures=failures)
        samples = self._resample(cublas_us, rounds, f"{gemm} cuBLAS")
        return Rounds(drawn, Baseline(stats.median(samples), samples), failures=failures)

    def joules(self, gemm: Gemm, points: Sequence[Point]) -> tuple[float | None, ...]:
        """Energy was not recorded."""
        return (None,) * len(points)

    def renew(self) -> None:
        """No process to begin anew."""

    def _draw(self, gemm: Gemm, point: Point, rounds: int) -> tuple[float, ...]:
        number = self.space(gemm).find(point)
        found = None if number is None else self._found(gemm, number)
        if found is None or not found.is_ok:
            return ()
        return self._resample(found.samples_us, rounds, f"{gemm} {number}")

    def _resample(self, samples_us: tuple[float, ...], rounds: int, label: str) -> tuple[float, ...]:
        if label not in self._draws:
            self._draws[label] = np.random.default_rng(zlib.crc32(label.encode()))
        return tuple(map(float, self._draws[label].choice(samples_us, size=rounds)))

    def now(self) -> float:
        """Simulated seconds until all that was submitted is done."""
        return self._pipeline.done_s

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
    if len(found.samples_us) <= CUT_SAMPLES or not stats.is_too_slow(first, cutoff_us):
        return found
    share = len(first) / len(found.samples_us)
    kept = replace(found, samples_us=first, time_us=stats.median(first), is_cut_short=True)
    return replace(kept, measure_s=found.measure_s * share)


RATE = "AUTOTUNE_REPLAY_RATE"  # trials a second
_CAPACITY = 4  # one is measured, the others wait: no ask leaves it idle


class PacedReplay(ReplayTarget):
    """Measures `rate` points a second, from a thread."""

    def __init__(self, path: str | Path, rate: float, *, max_error: float | None = None) -> None:
        super().__init__(path, capacity=_CAPACITY, max_error=max_error)
        self._trial_s = 1 / rate
        self._waiting: SimpleQueue[tuple[Future[Measurement], Measurement] | None] = SimpleQueue()
        self._measuring = threading.Thread(target=self._measure, name="replay", daemon=True)
        self._measuring.start()

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        future = Future[Measurement]()
        self._waiting.put((future, self.look_up(gemm, point, cutoff_us)))
        return future

    def _measure(self) -> None:
        done_s = time.monotonic()
        while (submitted := self._waiting.get()) is not None:
            future, found = submitted
            if future.set_running_or_notify_cancel():
                done_s = max(done_s, time.monotonic() - self._trial_s) + self._trial_s
                time.sleep(max(0.0, done_s - time.monotonic()))
                future.set_result(found)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._waiting.put(None)
        self._measuring.join()

"""The worker of one GPU as its target uses it: one thread sends it one request after another.

Kernels are made on that thread when they come up: requests run in the order of submission, and wait for the
compiler no longer than necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import fields, replace
from statistics import median

from ..facts.device import DeviceLimits
from ..facts.measurement import CachePolicy, Measurement, Outcome
from ..files.errors import DeviceLost, UsageError
from ..target import Baseline, Cell, CellTime, Rounds
from . import protocol
from .builder import BuildFn, Built
from .client import WorkerClient
from .deadlines import SLOWEST_OVER_LIMIT, Deadlines
from .gpu_queue import GpuQueue
from .protocol import KernelCode, Problem
from .turns import Turns


class GpuWorker:
    """Starts a worker for a GPU; `checks` is the cubin of kernels/checks.cu. Raises EnvironmentProblem and
    DeviceLost if none starts. After `close`, or `drop`, its methods raise UsageError."""

    def __init__(
        self, gpu_uuid: str, limits: DeviceLimits, checks: bytes, note: Callable[[str], None]
    ) -> None:
        self._deadlines = Deadlines(limits)
        self._baselines: dict[Problem, Baseline] = {}
        self._lost: DeviceLost | None = None
        self.is_closed = False
        start = protocol.Start(gpu_uuid, limits, checks)
        self._opened = WorkerClient(start, turns=Turns(gpu_uuid, note))
        # All requests to the worker go through this one thread, which also is the worker's parent.
        self._queue = GpuQueue()
        try:
            self.ready = self._queue.submit(self._opened.start).result()
        except BaseException:
            self.close()
            raise

    @property
    def _client(self) -> WorkerClient:
        if self.is_closed:
            raise UsageError("this target is closed; open another")
        return self._opened

    def baseline(self, problem: Problem) -> Baseline:
        """cuBLAS on this problem, timed once; None where cuBLAS is absent."""
        if problem not in self._baselines:
            samples = self._queue.submit(self._client.prepare, problem).result().baseline_us
            self._baselines[problem] = baseline_of(samples)
        return self._baselines[problem]

    def measure(
        self, future: Future[Measurement], problem: Problem, build_fn: BuildFn, cutoff_us: float | None
    ) -> None:
        """Verify and time one kernel, and settle `future` by it. The future is cancelled if this is closed
        before, and raises only EnvironmentProblem and DeviceLost."""
        self._queue.submit_into(future, self._measure, problem, build_fn, cutoff_us)

    def measure_idle(
        self, problem: Problem, build_fn: BuildFn, cutoff_us: float | None
    ) -> Future[Measurement]:
        """As `measure`, once nothing else waits for the GPU."""
        return self._queue.submit_idle(self._measure, problem, build_fn, cutoff_us)

    def check(self, problem: Problem, code: KernelCode) -> Measurement:
        """Verify and time a kernel that is compiled already: one of an exported table."""
        built = Built(Measurement(Outcome.OK, smem_bytes=code.spec.smem_bytes), code)
        return self._queue.submit(self._measure, problem, lambda: built, None).result()

    def race(
        self,
        problem: Problem,
        kernels: Sequence[KernelCode],
        rounds: int,
        slowest_over_limit: float = SLOWEST_OVER_LIMIT,
        energy_s: float = 0.0,
    ) -> protocol.RaceResult:
        """Time kernels and cuBLAS interleaved. Gives up if they take this many times the roofline. With
        `energy_s`, each then runs for that long, and the joules of a launch are measured."""
        allowed = (rounds, slowest_over_limit, energy_s)
        deadline_s = self._deadlines.race_s(problem.gemm, len(kernels), *allowed)
        request = protocol.RunRace(problem, tuple(kernels), rounds, energy_s)
        return self._queue.submit(self._client.race, request, deadline_s).result()

    def compare_pair(
        self, problem: Problem, pair: Callable[[], tuple[KernelCode, KernelCode]], rounds: int, shuffle: int
    ) -> Future[Rounds]:
        """Time two kernels interleaved, once nothing else waits for the GPU; without samples if they kill the
        worker. The future raises EnvironmentProblem, DeviceLost, and what `pair` does."""
        return self._queue.submit_idle(self._comparison, problem, pair, rounds, shuffle)

    def cells(
        self, cells: Sequence[Cell], build_fns: Sequence[BuildFn], policy: CachePolicy
    ) -> Future[tuple[CellTime, ...]]:
        """Time cells, one after another, nothing verified. `makings` are for those that are not cuBLAS's; one
        without a kernel has no samples, but a reason."""
        return self._queue.submit(self._cells, cells, build_fns, policy)

    def renew(self) -> None:
        """Go on in a fresh worker. Raises EnvironmentProblem, DeviceLost."""
        self._queue.submit(self._client.renew).result()

    def drop(self) -> None:
        """Begin no more queued work."""
        self.is_closed = True
        self._queue.drop_idle()

    def close(self) -> None:
        """`drop`, then end the worker."""
        self.drop()
        self._queue.submit(self._opened.close).result()
        self._queue.close()

    # ---------------------------------------------------------------------------- on the GPU's thread

    def _measure(self, problem: Problem, build_fn: BuildFn, cutoff_us: float | None) -> Measurement:
        built = build_fn()
        return built.facts if built.code is None else self._trial(problem, built.code, built.facts, cutoff_us)

    def _trial(
        self, problem: Problem, code: KernelCode, facts: Measurement, cutoff_us: float | None
    ) -> Measurement:
        known = self._baselines.get(problem)
        deadline_s = self._deadlines.trial_s(problem.gemm, cutoff_us or (known.time_us if known else None))
        with self._unless_lost() as client:
            result = client.trial(problem, code, cutoff_us, deadline_s)
        has_time = result.samples_us and result.outcome is Outcome.OK
        return replace(
            facts,
            **{one.name: getattr(result, one.name) for one in fields(result) if one.name != "is_last"},
            time_us=median(result.samples_us) if has_time else None,
        )

    def _comparison(
        self, problem: Problem, pair: Callable[[], tuple[KernelCode, KernelCode]], rounds: int, shuffle: int
    ) -> Rounds:
        with self._unless_lost() as client:
            request = protocol.RunComparison(problem, pair(), rounds, shuffle)
            result = client.compare_pair(request, self._deadlines.comparison_s(problem.gemm, rounds))
        if result is None:
            return Rounds(((), ()), Baseline(None))
        return Rounds(result.samples_us, Baseline(None), seconds=result.seconds)

    def _cells(
        self, cells: Sequence[Cell], build_fns: Sequence[BuildFn], policy: CachePolicy
    ) -> tuple[CellTime, ...]:
        with self._unless_lost() as client:
            made = iter(build_fns)
            built = [None if cell.point is None else next(made)() for cell in cells]  # None: cuBLAS
            both = zip(cells, built, strict=True)
            wanted = [(cell, b.code if b else None) for cell, b in both if b is None or b.code]
            request = protocol.RunCells(tuple((c.gemm, code, c.cutoff_us) for c, code in wanted), policy)
            deadline_s = self._deadlines.cells_s([cell for cell, _ in wanted])
            times = iter(client.cells(request, deadline_s))
        return tuple(CellTime((), reason=b.facts.reason) if b and not b.code else next(times) for b in built)

    @contextmanager
    def _unless_lost(self) -> Iterator[WorkerClient]:
        """Once the GPU is lost, what is queued fails at once."""
        if self._lost is not None:
            raise self._lost
        try:
            yield self._client
        except DeviceLost as error:
            self._lost = error
            raise


def baseline_of(samples: tuple[float, ...]) -> Baseline:
    """The median of cuBLAS's samples in us, and these; None where there are none."""
    return Baseline(median(samples) if samples else None, samples)

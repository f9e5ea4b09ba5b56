"""The worker of one GPU as its target uses it: one thread sends it one request after another.

Kernels are made on that thread when they come up: requests run in the order of submission, and wait for the
compiler no longer than necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property
from statistics import median

from ..facts.device import DeviceLimits
from ..facts.measurement import CachePolicy, Measurement, Outcome
from ..files.errors import DeviceLost, UsageError
from ..target import Baseline, Cell, CellTime, Rounds
from . import protocol
from .builder import BuildFn, Built
from .client import WorkerClient
from .gpu_queue import GpuQueue
from .protocol import KernelCode, Problem
from .timing import SLOWEST_OVER_LIMIT, Deadlines
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
        trial = _Trial(self, problem, build_fn, cutoff_us)
        self._queue.submit_into(future, trial.result, trial.ahead)

    def measure_idle(
        self, problem: Problem, build_fn: BuildFn, cutoff_us: float | None
    ) -> Future[Measurement]:
        """As `measure`, once nothing else waits for the GPU."""
        trial = _Trial(self, problem, build_fn, cutoff_us)
        return self._queue.submit_idle(trial.result, trial.ahead)

    def check(self, problem: Problem, code: KernelCode) -> Measurement:
        """Verify and time a kernel that is compiled already: one of an exported table."""
        _ = self._client
        built = Built(Measurement(Outcome.OK, smem_bytes=code.spec.smem_bytes), code)
        return self._queue.submit(_Trial(self, problem, lambda: built, None).result).result()

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
        comparison = _Comparison(self, problem, pair, rounds, shuffle)
        return self._queue.submit_idle(comparison.result, comparison.ahead)

    def cells(
        self, cells: Sequence[Cell], build_fns: Sequence[BuildFn], policy: CachePolicy
    ) -> Future[tuple[CellTime, ...]]:
        """Time cells, one after another, nothing verified. `build_fns` are for those that are not cuBLAS's;
        one without a kernel has no samples, but a reason."""
        return self._queue.submit(self._cells, cells, build_fns, policy)

    @property
    def prepared_s(self) -> float:
        """Seconds that the worker took to prepare problems, and to time cuBLAS on them."""
        return self._opened.prepared_s

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
        self._queue.close(self._opened.close)

    # ---------------------------------------------------------------------------- on the GPU's thread

    def _cells(
        self, cells: Sequence[Cell], build_fns: Sequence[BuildFn], policy: CachePolicy
    ) -> tuple[CellTime, ...]:
        _ = self._client  # what was not begun before this was closed is not
        with self.unless_lost() as client:
            made = iter(build_fns)
            built = [None if cell.point is None else next(made)() for cell in cells]  # None: cuBLAS
            both = zip(cells, built, strict=True)
            wanted = [(cell, b.code if b else None) for cell, b in both if b is None or b.code]
            sent = ((cell.gemm, code, cell.cutoff_us, cell.has_bias) for cell, code in wanted)
            request = protocol.RunCells(tuple(sent), policy)
            deadline_s = self._deadlines.cells_s([cell for cell, _ in wanted])
            times = iter(client.cells(request, deadline_s))
        return tuple(CellTime((), reason=b.facts.reason) if b and not b.code else next(times) for b in built)

    def trial_s(self, problem: Problem, cutoff_us: float | None) -> float:
        """How long a trial may take."""
        known = self._baselines.get(problem)
        return self._deadlines.trial_s(problem.gemm, cutoff_us or (known.time_us if known else None))

    def comparison_s(self, problem: Problem, rounds: int) -> float:
        """How long a comparison may take."""
        return self._deadlines.comparison_s(problem.gemm, rounds)

    def send_ahead(self, request: protocol.RunTrial | protocol.RunComparison, deadline_s: float) -> bool:
        """As of the client."""
        return self._lost is None and not self.is_closed and self._opened.send_ahead(request, deadline_s)

    @contextmanager
    def unless_lost(self) -> Iterator[WorkerClient]:
        """Once the GPU is lost, what is queued fails at once."""
        if self._lost is not None:
            raise self._lost
        try:
            yield self._opened  # though it is closed: what was begun is finished
        except DeviceLost as error:
            self._lost = error
            raise


class _Trial:
    """A candidate on its way: built and sent ahead, or when its turn comes."""

    def __init__(self, gpu: GpuWorker, problem: Problem, build_fn: BuildFn, cutoff_us: float | None) -> None:
        self._gpu, self._problem, self._build_fn, self._cutoff_us = gpu, problem, build_fn, cutoff_us
        self._deadline_s = gpu.trial_s(problem, cutoff_us)

    @cached_property
    def _built(self) -> Built:
        """Raises what the build does."""
        return self._build_fn()

    @cached_property
    def _request(self) -> protocol.RunTrial | None:
        """None where there is nothing to run."""
        code = self._built.code
        return None if code is None else protocol.RunTrial(self._problem, code, self._cutoff_us)

    def ahead(self) -> bool:
        """See `GpuQueue.submit_into`. Where nothing is to run, the next need not wait for this."""
        return self._request is None or self._gpu.send_ahead(self._request, self._deadline_s)

    def result(self) -> Measurement:
        facts = self._built.facts
        if self._request is None:
            return facts
        with self._gpu.unless_lost() as client:
            result = client.trial(self._request, self._deadline_s)
        has_time = result.samples_us and result.outcome is Outcome.OK
        return replace(
            facts,
            **{one.name: getattr(result, one.name) for one in fields(result) if one.name != "is_last"},
            time_us=median(result.samples_us) if has_time else None,
        )


class _Comparison:
    """Two candidates on their way."""

    def __init__(
        self, gpu: GpuWorker, problem: Problem, pair: Callable[[], tuple[KernelCode, KernelCode]],
        rounds: int, shuffle: int,
    ) -> None:  # fmt: skip
        self._gpu, self._problem, self._pair = gpu, problem, pair
        self._rounds, self._shuffle = rounds, shuffle
        self._deadline_s = gpu.comparison_s(problem, rounds)

    @cached_property
    def _request(self) -> protocol.RunComparison:
        """Raises what taking the kernels does."""
        return protocol.RunComparison(self._problem, self._pair(), self._rounds, self._shuffle)

    def ahead(self) -> bool:
        return self._gpu.send_ahead(self._request, self._deadline_s)

    def result(self) -> Rounds:
        with self._gpu.unless_lost() as client:
            result = client.compare_pair(self._request, self._deadline_s)
        if result is None:
            return Rounds(((), ()), Baseline(None))
        return Rounds(result.samples_us, Baseline(None), seconds=result.seconds)


def baseline_of(samples: tuple[float, ...]) -> Baseline:
    """The median of cuBLAS's samples in us, and these; None where there are none."""
    return Baseline(median(samples) if samples else None, samples)

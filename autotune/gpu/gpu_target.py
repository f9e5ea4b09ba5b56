"""A GPU as a search sees it: kernels are made by threads (builder.py), verified and timed by one worker
(gpu_worker.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Self

from ..facts.accuracy_class import STRICT
from ..facts.device import DeviceLimits, Environment
from ..facts.gemm import FP32, Gemm
from ..facts.measurement import ENERGY_S, CachePolicy, Measurement, Outcome
from ..files.errors import TrialFailure
from ..kernel import feasible_set, templates
from ..kernel.compiler import Cubin, Helpers
from ..kernel.feasible_set import FeasibleSet
from ..kernel.summation_order import SummationOrder
from ..target import Baseline, Cell, CellTime, Point, Rounds
from . import driver, instance
from .builder import KernelBuilder
from .client import MOST_SENT
from .gpu_worker import GpuWorker, baseline_of
from .protocol import KernelCode, Problem


class GpuTarget:
    """Implements `target.Target`, `Refining`, `Reusing`, `Preparing`, `CellTarget`, by its `builder` and
    `worker`, on the GPU that `selector` names (index, UUID or `auto`).

    Raises EnvironmentProblem if there is no usable GPU, driver or compiler, UsageError for a selector that
    names none, or a class that the GPU has no kernels for. Futures raise only EnvironmentProblem (no memory
    for the problem, no process to compile in) and DeviceLost. A candidate whose error is more than
    `max_error` times cuBLAS's fails, untimed (None: any correct result is accepted). `accuracy`: the class of
    the kernels that are searched, which each is held to; `a_type`: of A's elements in all problems. `note`
    receives messages for the user, `helpers` compile elsewhere."""

    def __init__(
        self,
        selector: str,
        *,
        policy: CachePolicy = CachePolicy.COLD,
        cache_dir: Path | None = None,
        seed: int = 0,
        max_error: float | None = None,
        accuracy: str = STRICT,
        a_type: str = FP32,
        note: Callable[[str], None] = lambda text: None,
        helpers: Helpers | None = None,
    ) -> None:
        self.gpu = driver.find_gpu(selector)
        self.limits: DeviceLimits = driver.device_limits(self.gpu.index)
        self.policy, self.max_error, self._seed = policy, max_error, seed
        templates.need_search_space(accuracy, self.limits, a_type)
        self.source_hash, self._accuracy = templates.source_of(accuracy, a_type, self.limits), accuracy
        self.builder = KernelBuilder(self.limits, cache_dir=cache_dir, note=note, helpers=helpers)
        try:
            self.worker = GpuWorker(self.gpu.uuid, self.limits, self.builder.checks(), note)
        except BaseException:
            self.builder.close()
            raise
        self.environment: Environment = driver.environment(
            self.gpu,
            driver_version=self.worker.ready.driver_version,
            nvrtc_version=self.builder.compiler.version.removeprefix("nvrtc "),
            cublas_version=self.worker.ready.cublas_version,
        )

    @property
    def capacity(self) -> int:
        """One candidate per compiler thread, those that are sent to the GPU's process, one that waits for it,
        and some that wait for a compiler thread: enough that no thread runs out of work while the search
        decides."""
        num_threads = self.builder.compiler.num_threads
        return num_threads + MOST_SENT + 1 + max(2, num_threads // 4)

    @property
    def prepared_s(self) -> float:
        return self.worker.prepared_s

    def now(self) -> float:
        return time.monotonic()

    def space(self, gemm: Gemm, order: SummationOrder | None = None) -> FeasibleSet:
        if self._accuracy == STRICT:
            return feasible_set.feasible_set(self.limits, gemm, order=order)
        return feasible_set.tensor_set(self.limits, gemm, templates.searched_for(self._accuracy, self.limits))

    def problem(self, gemm: Gemm) -> Problem:
        """The problem on which candidates are verified and timed. Raises UsageError if C is empty."""
        gemm.need_output()
        return Problem(gemm, self.policy, self._seed, self.max_error, self._accuracy)

    def baseline(self, gemm: Gemm) -> Baseline:
        """cuBLAS on this problem, timed once per worker and policy; None where cuBLAS is absent."""
        return self.worker.baseline(self.problem(gemm))

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """Compile on a thread, then verify and time. Raises UsageError for a point that is no config."""
        config = templates.read(point)
        if rejection := self.builder.rejection(gemm, config):
            return _rejected(rejection)
        problem, measured = self.problem(gemm), Future[Measurement]()

        def hand_over(compiled: Future[Cubin]) -> None:
            build_fn = partial(self.builder.built, gemm, config, compiled.result)
            self.worker.measure(measured, problem, build_fn, cutoff_us)

        self.builder.begin(gemm, config).add_done_callback(hand_over)
        return measured

    def kernel_family(self, gemm: Gemm) -> Hashable:
        return instance.variant(gemm)

    def submit_compiled(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """Take a kernel from the cache, then verify and time it, once no candidate waits for the GPU. See
        `target.Reusing`. Raises UsageError for a point that is no config."""
        config = templates.read(point)
        if rejection := self.builder.rejection(gemm, config):
            return _rejected(rejection)
        build_fn = partial(self.builder.built, gemm, config, partial(self.builder.load, gemm, config))
        return self.worker.measure_idle(self.problem(gemm), build_fn, cutoff_us)

    def code_hash(self, gemm: Gemm, point: Point) -> Future[str | None]:
        """Of the machine code of a point, compiled on a thread. See `target.Building`. Raises UsageError for
        a point that is no config."""
        config, found = templates.read(point), Future[str | None]()
        if self.builder.rejection(gemm, config):
            found.set_result(None)
            return found

        def settle(compiled: Future[Cubin]) -> None:
            try:
                found.set_result(compiled.result().code_hash)
            except TrialFailure:
                found.set_result(None)
            except BaseException as error:
                found.set_exception(error)

        self.builder.begin(gemm, config).add_done_callback(settle)
        return found

    def fill(self, cells: Sequence[Cell]) -> Future[tuple[CellTime, ...]]:
        """Compile what the cells need, then time them one after another; nothing is verified. One whose point
        is illegal, does not compile, spills or does not fit has no samples, but a reason. Raises UsageError
        for a point that is no config."""
        wanted = [(cell.gemm, templates.read(cell.point)) for cell in cells if cell.point is not None]
        return self.worker.cells(cells, self.builder.begin_all(wanted), self.policy)

    def compare(self, gemm: Gemm, points: Sequence[Point], rounds: int) -> Rounds:
        """Time points and cuBLAS interleaved. Raises TrialFailure for a point that does not compile,
        UsageError for one that is illegal, DeviceLost where they bring the worker down."""
        result = self.worker.race(self.problem(gemm), self.builder.kernels(gemm, points), rounds)
        baseline = baseline_of(result.baseline_us)
        return Rounds(result.samples_us, baseline, result.marks, result.discarded, result.failures)

    def compare_pair(
        self, gemm: Gemm, points: tuple[Point, Point], rounds: int, shuffle: int
    ) -> Future[Rounds]:
        """Time two points interleaved once no candidate waits for the GPU. See `target.Refining`. The future
        raises what `compare` does. Points that are no configs raise UsageError here."""
        first, second = map(templates.read, points)

        def pair() -> tuple[KernelCode, KernelCode]:
            return self.builder.recent(gemm, first), self.builder.recent(gemm, second)

        return self.worker.compare_pair(self.problem(gemm), pair, rounds, shuffle)

    def joules(self, gemm: Gemm, points: Sequence[Point]) -> tuple[float | None, ...]:
        """Energy of one launch of each point. Raises what `compare` raises."""
        kernels = self.builder.kernels(gemm, points)
        return self.worker.race(self.problem(gemm), kernels, rounds=1, energy_s=ENERGY_S).joules

    def renew(self) -> None:
        """Go on in a fresh worker. Raises EnvironmentProblem, DeviceLost."""
        self.worker.renew()

    def close(self) -> None:
        """Drop what is queued, end the worker and the compiler's threads. Closing again does nothing."""
        if not self.worker.is_closed:
            self.worker.drop()
            self.builder.close()
            self.worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rejected(reason: str) -> Future[Measurement]:
    future = Future[Measurement]()
    future.set_result(Measurement(Outcome.ILLEGAL, reason))
    return future

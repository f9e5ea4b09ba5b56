"""A GPU as a search sees it: compiles in threads, verifies and times in one worker."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from ..device import DeviceLimits, Environment
from ..disturbance import MAX_REPEATS
from ..errors import DeviceLost, TrialFailure, UsageError
from ..gemm import Gemm
from ..kernel import feasible_set, template
from ..kernel.compiler import Compiler, Cubin
from ..kernel.config import Config
from ..kernel.feasible_set import FeasibleSet
from ..kernel.launch import LaunchSpec
from ..measurement import CachePolicy, Measurement, Outcome
from ..target import Baseline, Cell, CellTime, Point, Rounds
from . import driver, instance, protocol
from .client import WorkerClient, trial_deadline_s
from .gpu_queue import GpuQueue
from .protocol import KernelCode, Problem
from .turns import Turns

CHECKS_FILE = "checks.cu"
CHECKS_ENTRY = "reference_tiles"
SLOWEST_OVER_LIMIT = 10.0  # a candidate's expected time over the roofline while no better one is known
RACE_DEADLINE_S = 30.0  # and RACE_BATCH_S, or ten times the roofline, for each batch
RACE_BATCH_S = 0.1
MAX_RECENT = 64  # kernels kept for duels
ENERGY_S = 0.4  # of each finalist that is tied: several readings of the energy counter


def expected_us(gemm: Gemm, limits: DeviceLimits, known_us: float | None) -> float:
    """About how long a launch may take: the best known, else ten times the roofline."""
    return known_us or SLOWEST_OVER_LIMIT * gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)


class GpuTarget:
    """Implements `target.Target` on the GPU that `selector` names (index, UUID or `auto`).

    Raises EnvironmentProblem where there is no usable GPU, driver or compiler, UsageError for a selector
    that names none. Futures raise only EnvironmentProblem (no memory for the problem, no process to
    compile in) and DeviceLost. A candidate whose error is more than `max_error` times cuBLAS's fails,
    untimed (None: any that is right will do). `note` is told what a person should know meanwhile.
    """

    def __init__(
        self,
        selector: str,
        *,
        policy: CachePolicy = CachePolicy.COLD,
        cache_dir: Path | None = None,
        seed: int = 0,
        max_error: float | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.gpu = driver.find_gpu(selector)
        self.limits: DeviceLimits = driver.device_limits(self.gpu.index)
        self.policy = policy
        self.source_hash = template.source_hash()
        self.compiler = Compiler(self.limits.arch, cache_dir=cache_dir, note=note)
        self._seed, self._note, self.max_error = seed, note, max_error
        self._baselines: dict[Gemm, Baseline] = {}
        # All that the worker does goes through this one thread, which also is the worker's parent.
        self._queue = GpuQueue()
        self._client: WorkerClient | None = None
        self._lost: DeviceLost | None = None
        self._recent: OrderedDict[tuple[Gemm, Config], KernelCode] = OrderedDict()  # that were in duels
        self._is_closed = False
        try:
            self.ready = self._queue.submit(self._open).result()
        except BaseException:
            self.close()
            raise
        self.environment: Environment = driver.environment(
            self.gpu,
            driver_version=self.ready.driver_version,
            nvrtc_version=self.compiler.version.removeprefix("nvrtc "),
            cublas_version=self.ready.cublas_version,
        )

    @property
    def capacity(self) -> int:
        """One candidate per compiler thread, one on the GPU, one that waits for the GPU, and some that wait
        for a compiler thread: enough that no thread runs dry while the search thinks."""
        return self.compiler.num_threads + 2 + max(2, self.compiler.num_threads // 4)

    def now(self) -> float:
        return time.monotonic()

    def space(self, gemm: Gemm) -> FeasibleSet:
        return feasible_set.feasible_set(self.limits, gemm)

    def baseline(self, gemm: Gemm) -> Baseline:
        """cuBLAS on this problem, timed once per worker and policy; None where cuBLAS is absent."""
        if gemm not in self._baselines:
            prepared = self._queue.submit(self._worker.prepare, self._problem(gemm)).result()
            samples = prepared.baseline_us
            self._baselines[gemm] = Baseline(median(samples) if samples else None, samples)
        return self._baselines[gemm]

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """Compile on a thread, then verify and time. Raises UsageError for a point that is no config."""
        config = Config.from_dict(point)
        future: Future[Measurement] = Future()
        refusal = instance.refusal(config, self.limits, gemm)
        if refusal:
            future.set_result(Measurement(Outcome.ILLEGAL, refusal))
            return future
        compiled = self._compile(gemm, config)

        def hand_over(done: Future[Cubin]) -> None:
            try:
                self._queue.submit(self._finish, gemm, config, done, cutoff_us, future)
            except RuntimeError:  # closed meanwhile
                future.cancel()

        compiled.add_done_callback(hand_over)
        return future

    def kernel_family(self, gemm: Gemm) -> Hashable:
        return instance.variant(gemm)

    def submit_compiled(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        """Take a kernel from the cache, then verify and time it, once no candidate waits for the GPU. See
        `target.Reusing`. Raises UsageError for a point that is no config."""
        config = Config.from_dict(point)
        if refusal := instance.refusal(config, self.limits, gemm):
            future: Future[Measurement] = Future()
            future.set_result(Measurement(Outcome.ILLEGAL, refusal))
            return future
        return self._queue.submit_idle(self._measure_compiled, gemm, config, cutoff_us)

    def fill(self, cells: Sequence[Cell]) -> Future[tuple[CellTime, ...]]:
        """Compile what the cells need, then time them one after another; nothing is verified. One whose point
        is illegal, does not compile, spills or does not fit has no samples, but a reason. Raises UsageError
        for a point that is no config."""
        compiles: dict[Hashable, Future[Cubin]] = {}  # cells of one kernel share theirs
        builds = [self._begin(cell, compiles) for cell in cells]
        return self._queue.submit(self._fill, cells, builds)

    def _begin(
        self, cell: Cell, compiles: dict[Hashable, Future[Cubin]]
    ) -> tuple[Config, Future[Cubin]] | str | None:
        """The compile that a cell waits for; why it needs none, or None for cuBLAS."""
        if cell.point is None:
            return None
        config = Config.from_dict(cell.point)
        if refusal := instance.refusal(config, self.limits, cell.gemm):
            return refusal
        kernel = (config.kernel, instance.variant(cell.gemm))
        if kernel not in compiles:
            compiles[kernel] = self._compile(cell.gemm, config)
        return config, compiles[kernel]

    def _fill(
        self, cells: Sequence[Cell], builds: Sequence[tuple[Config, Future[Cubin]] | str | None]
    ) -> tuple[CellTime, ...]:
        """On the GPU's thread."""
        if self._lost is not None:
            raise self._lost
        codes = [self._code_or_reason(c.gemm, built) for c, built in zip(cells, builds, strict=True)]
        wanted = [(c, code) for c, code in zip(cells, codes, strict=True) if not isinstance(code, str)]
        request = protocol.RunCells(tuple((c.gemm, code, c.cutoff_us) for c, code in wanted), self.policy)
        deadline_s = trial_deadline_s(sum(expected_us(c.gemm, self.limits, c.cutoff_us) for c, _ in wanted))
        try:
            times = iter(self._worker.cells(request, deadline_s))
        except DeviceLost as error:
            self._lost = error  # what is queued fails at once
            raise
        return tuple(CellTime((), reason=code) if isinstance(code, str) else next(times) for code in codes)

    def _code_or_reason(
        self, gemm: Gemm, built: tuple[Config, Future[Cubin]] | str | None
    ) -> KernelCode | str | None:
        if built is None or isinstance(built, str):
            return built
        config, compiled = built
        try:
            cubin = compiled.result()
        except TrialFailure as failure:
            return failure.reason
        code = instance.code(gemm, config, cubin, self.limits)
        return instance.spills(cubin) or instance.misfit(cubin, config, code.spec, self.limits, gemm) or code

    def compare(self, gemm: Gemm, points: Sequence[Point], rounds: int) -> Rounds:
        """Time points and cuBLAS interleaved.

        Raises TrialFailure for a point that does not compile, UsageError for one that is illegal,
        DeviceLost where they bring the worker down.
        """
        result = self.race(self._problem(gemm), self._codes(gemm, points), rounds)
        samples = result.baseline_us
        baseline = Baseline(median(samples) if samples else None, samples)
        return Rounds(result.samples_us, baseline, result.marks, result.discarded, result.failures)

    def duel(self, gemm: Gemm, points: tuple[Point, Point], rounds: int, shuffle: int) -> Future[Rounds]:
        """Time two points interleaved once no candidate waits for the GPU. See `target.Refining`.

        The future raises what `compare` does. Points that are no configs raise UsageError here."""
        first, second = map(Config.from_dict, points)
        return self._queue.submit_idle(self._duel, gemm, (first, second), rounds, shuffle)

    def joules(self, gemm: Gemm, points: Sequence[Point]) -> tuple[float | None, ...]:
        """Energy of one launch of each point. Raises what `compare` raises."""
        kernels = self._codes(gemm, points)
        return self.race(self._problem(gemm), kernels, rounds=1, energy_s=ENERGY_S).joules

    def renew(self) -> None:
        """Go on in a fresh worker. Raises EnvironmentProblem, DeviceLost."""
        self._queue.submit(self._worker.renew).result()

    def _codes(self, gemm: Gemm, points: Sequence[Point]) -> list[KernelCode]:
        configs = [Config.from_dict(point) for point in points]
        for config in configs:
            if refusal := instance.refusal(config, self.limits, gemm):
                raise UsageError(f"{config} is not legal for {gemm}: {refusal}")
        compiled = [self._compile(gemm, config) for config in configs]
        return [
            instance.code(gemm, config, future.result(), self.limits)
            for config, future in zip(configs, compiled, strict=True)
        ]

    def build(self, gemm: Gemm, config: Config) -> KernelCode:
        """Compile one config for `race`. Raises UsageError where it is illegal for the problem or does not
        fit the device, TrialFailure where it does not compile."""
        if refusal := instance.refusal(config, self.limits, gemm):
            raise UsageError(refusal)
        cubin = self._compile(gemm, config).result()
        code = instance.code(gemm, config, cubin, self.limits)
        if reason := instance.misfit(cubin, config, code.spec, self.limits, gemm):
            raise UsageError(reason)
        return code

    def build_source(self, source: str, entry: str, spec: LaunchSpec) -> KernelCode:
        """Compile a kernel that is no instance of the template, but takes its arguments."""
        cubin = self.compiler.compile_source(source, entry=entry)
        return KernelCode(cubin.code, cubin.sha256, spec, entry)

    def race(
        self,
        problem: Problem,
        kernels: Sequence[KernelCode],
        rounds: int,
        slowest_over_limit: float = SLOWEST_OVER_LIMIT,
        energy_s: float = 0.0,
    ) -> protocol.RaceResult:
        """`compare` for kernels compiled already. Gives up where they take so many times the roofline.
        With `energy_s`, each then runs for as long, and what a launch takes in joules is measured."""
        batch_s = self._batch_s(problem.gemm, slowest_over_limit)
        num_batches = (len(kernels) + 1) * (rounds + 1) * (1 + MAX_REPEATS)
        deadline_s = RACE_DEADLINE_S + num_batches * batch_s + len(kernels) * (2 * energy_s + batch_s)
        request = protocol.RunRace(problem, tuple(kernels), rounds, energy_s)
        return self._queue.submit(self._worker.race, request, deadline_s).result()

    def _batch_s(self, gemm: Gemm, slowest_over_limit: float = SLOWEST_OVER_LIMIT) -> float:
        """What a batch of launches may take."""
        expected_s = gemm.limit_us(self.limits.fma_tflops, self.limits.bandwidth_gbs) / 1e6
        return max(slowest_over_limit * expected_s, RACE_BATCH_S)

    def check(self, gemm: Gemm, code: KernelCode) -> Measurement:
        """Verify and time a kernel that is compiled already: one of an exported table."""
        facts = Measurement(Outcome.OK, smem_bytes=code.spec.smem_bytes)
        return self._queue.submit(self._run, gemm, code, None, facts).result()

    def close(self) -> None:
        """Drop what is queued, end the worker and the compiler's threads. Closing again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._queue.drop_idle()
        self.compiler.close()
        if self._client is not None:
            self._queue.submit(self._client.close).result()
        self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---------------------------------------------------------------------------- one candidate

    def _open(self) -> protocol.Ready:
        checks = self.compiler.compile_source(template.source(CHECKS_FILE), entry=CHECKS_ENTRY)
        start = protocol.Start(self.gpu.uuid, self.limits, checks.code)
        self._client = WorkerClient(start, turns=Turns(self.gpu.uuid, self._note))
        return self._client.start()

    @property
    def _worker(self) -> WorkerClient:
        if self._client is None or self._is_closed:
            raise UsageError("this target is closed; open another")
        return self._client

    def _problem(self, gemm: Gemm) -> Problem:
        gemm.need_output()
        return Problem(gemm, self.policy, self._seed, self.max_error)

    def _compile(self, gemm: Gemm, config: Config) -> Future[Cubin]:
        return self.compiler.submit(config, instance.variant(gemm))

    def _finish(
        self,
        gemm: Gemm,
        config: Config,
        compiled: Future[Cubin],
        cutoff_us: float | None,
        future: Future[Measurement],
    ) -> None:
        """On the GPU's thread: measure, and have the future settled."""
        if self._is_closed:
            future.cancel()
        if future.set_running_or_notify_cancel():
            work = partial(self._measure_when, compiled.result, gemm, config, cutoff_us)
            self._queue.settle(future, work)

    def _measure_compiled(self, gemm: Gemm, config: Config, cutoff_us: float | None) -> Measurement:
        def load() -> Cubin:
            return self.compiler.compile(config, instance.variant(gemm))

        return self._measure_when(load, gemm, config, cutoff_us)

    def _measure_when(
        self, cubin: Callable[[], Cubin], gemm: Gemm, config: Config, cutoff_us: float | None
    ) -> Measurement:
        try:
            return self._measure(gemm, config, cubin(), cutoff_us)
        except TrialFailure as failure:  # did not compile
            return Measurement(Outcome(failure.outcome), failure.reason)

    def _duel(self, gemm: Gemm, configs: tuple[Config, Config], rounds: int, shuffle: int) -> Rounds:
        if self._lost is not None:
            raise self._lost
        first, second = (self._known_code(gemm, config) for config in configs)
        request = protocol.RunDuel(self._problem(gemm), (first, second), rounds, shuffle)
        deadline_s = RACE_DEADLINE_S + 2 * (rounds + 1) * self._batch_s(gemm)
        result = self._worker.duel(request, deadline_s)
        if result is None:
            return Rounds(((), ()), Baseline(None))
        return Rounds(result.samples_us, Baseline(None), seconds=result.seconds)

    def _known_code(self, gemm: Gemm, config: Config) -> KernelCode:
        """A kernel that ran before: from the cache, without the queue of those that are compiled."""
        if (gemm, config) not in self._recent:
            cubin = self.compiler.compile(config, instance.variant(gemm))
            self._recent[gemm, config] = instance.code(gemm, config, cubin, self.limits)
            while len(self._recent) > MAX_RECENT:
                self._recent.popitem(last=False)
        self._recent.move_to_end((gemm, config))
        return self._recent[gemm, config]

    def _measure(self, gemm: Gemm, config: Config, cubin: Cubin, cutoff_us: float | None) -> Measurement:
        code = instance.code(gemm, config, cubin, self.limits)
        facts = Measurement(
            Outcome.OK,
            registers=cubin.registers,
            spill_bytes=cubin.spill_bytes,
            smem_bytes=code.spec.smem_bytes + cubin.static_smem_bytes,
            compile_s=cubin.compile_s,
        )
        if reason := instance.spills(cubin):
            return replace(facts, outcome=Outcome.SPILLED, reason=reason)
        if reason := instance.misfit(cubin, config, code.spec, self.limits, gemm):
            return replace(facts, outcome=Outcome.DOES_NOT_FIT, reason=reason)
        return self._run(gemm, code, cutoff_us, facts)

    def _run(self, gemm: Gemm, code: KernelCode, cutoff_us: float | None, facts: Measurement) -> Measurement:
        if self._lost is not None:
            raise self._lost
        known = self._baselines.get(gemm)
        known_us = cutoff_us or (known.time_us if known else None)
        deadline_s = trial_deadline_s(expected_us(gemm, self.limits, known_us))
        try:
            result = self._worker.trial(self._problem(gemm), code, cutoff_us, deadline_s)
        except DeviceLost as error:
            self._lost = error  # what is queued fails at once
            raise
        return replace(
            facts,
            outcome=result.outcome,
            reason=result.reason,
            time_us=median(result.samples_us) if result.samples_us and result.outcome is Outcome.OK else None,
            samples_us=result.samples_us,
            is_cut_short=result.is_cut_short,
            error_ratio=result.error_ratio,
            error_over_cublas=result.error_over_cublas,
            verify_s=result.verify_s,
            measure_s=result.measure_s,
            state=result.state,
            marks=result.marks,
            discarded=result.discarded,
        )

"""An open GPU inside the worker: prepares problems, verifies and times candidates."""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import suppress
from functools import partial

from .. import launch
from ..errors import AutotuneError, EnvironmentProblem
from ..measurement import Outcome
from . import cublas, driver, protocol
from .driver import CudaError, check
from .memory import Enqueue, Workspace
from .module import Module
from .nvml import Monitor
from .problem import PreparedProblem
from .protocol import KernelCode, Problem, TrialResult
from .sgemm import Sgemm
from .stopwatch import Stopwatch
from .verification import Verdict

MAX_MODULES = 16  # loaded cubins kept for configs that share one
MAX_PROBLEMS = 32  # prepared problems kept while searches take turns between shapes
PROBLEM_MEMORY = 0.3  # of the GPU's memory that prepared problems may hold together
_CUBLAS = -1  # its number among contestants

_FAILURES = {
    driver.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
    driver.LAUNCH_OUT_OF_RESOURCES: Outcome.DOES_NOT_FIT,
}


class WrongResult(AutotuneError):
    """A candidate computed something else, or wrote where it must not."""

    def __init__(self, verdict: Verdict, verify_s: float, when: str = "") -> None:
        super().__init__(f"{when}{verdict.fault}")
        self.verdict = verdict
        self.verify_s = verify_s


class Session:
    """An open GPU: context, stream, loaded cubins, prepared problems."""

    def __init__(self, start: protocol.Start) -> None:
        gpu = driver.find_gpu(start.gpu_uuid)
        self.limits = start.limits
        self.monitor = Monitor(gpu.uuid)
        num_neighbours = self.monitor.other_processes()  # before there is a context of ours
        self.driver = driver.open_driver()
        self.device = check(self.driver.cuDeviceGet, gpu.index)
        context = check(self.driver.cuDevicePrimaryCtxRetain, self.device)
        check(self.driver.cuCtxSetCurrent, context)
        non_blocking = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = check(self.driver.cuStreamCreate, int(non_blocking))
        self.checks = Module(self.driver, self.device, start.checks)
        self.stopwatch = Stopwatch(self.driver, self.stream, self.monitor.state)
        self.workspace = Workspace(self.driver, self.stream)
        self._modules: OrderedDict[str, Module] = OrderedDict()
        self._problems: OrderedDict[Problem, PreparedProblem] = OrderedDict()
        self._baselines: dict[Problem, tuple[float, ...]] = {}
        library = cublas.load_library()
        self.cublas = None if library is None else cublas.Cublas(self.driver, library, self.stream)
        self._memory_bytes = int(gpu.total_bytes * PROBLEM_MEMORY)
        self.ready = protocol.Ready(
            cublas_version="" if library is None else cublas.library_version(library),
            driver_version=self.monitor.driver_version(),
            num_neighbours=num_neighbours,
        )

    # ---------------------------------------------------------------------------- problems

    def prepare(self, problem: Problem) -> protocol.Prepared:
        """Make a problem ready and time cuBLAS on it (once). Raises EnvironmentProblem."""
        prepared = self._prepare(problem)
        if problem not in self._baselines:
            self._baselines[problem] = self._time_cublas(prepared)
        return protocol.Prepared(
            baseline_us=self._baselines[problem],
            num_sets=len(prepared.operands.sets),
            reference_share=prepared.reference_share,
        )

    def _prepare(self, problem: Problem) -> PreparedProblem:
        if problem in self._problems:
            self._problems.move_to_end(problem)
            return self._problems[problem]
        try:
            prepared = self._build(problem)
        except EnvironmentProblem:
            if not self._problems:
                raise
            self._evict(0)  # others hold the memory: let go of them and try again
            prepared = self._build(problem)
        self._problems[problem] = prepared
        self._evict(self._memory_bytes)
        return prepared

    def _build(self, problem: Problem) -> PreparedProblem:
        return PreparedProblem(self.driver, self.checks, problem, self.limits, self.cublas, self.stream)

    def _evict(self, most_bytes: int) -> None:
        """Free the problems used longest ago; the newest stays unless nothing may."""
        least = 1 if most_bytes else 0
        while len(self._problems) > least and (
            len(self._problems) > MAX_PROBLEMS
            or sum(p.num_bytes for p in self._problems.values()) > most_bytes
        ):
            self._problems.popitem(last=False)[1].free()

    def _time_cublas(self, prepared: PreparedProblem) -> tuple[float, ...]:
        if self.cublas is None:
            return ()
        enqueue = partial(self.cublas.sgemm, prepared.problem.gemm)
        sets = prepared.operands.sets
        glance_us = self.stopwatch.time_once(lambda: enqueue(sets[0]))
        return self.stopwatch.time(enqueue, sets, glance_us, None).samples_us

    # ---------------------------------------------------------------------------- candidates

    def trial(self, request: protocol.Trial) -> TrialResult:
        """Verify and time one candidate; its own failures are results."""
        prepared = self._prepare(request.problem)
        try:
            return self._trial(prepared, request)
        except WrongResult as wrong:
            self._evict(0)  # it may have written anywhere: everything is made anew
            ratio, verify_s = wrong.verdict.error_ratio, wrong.verify_s
            return TrialResult(Outcome.WRONG_RESULT, str(wrong), error_ratio=ratio, verify_s=verify_s)
        except CudaError as error:
            outcome = _FAILURES.get(error.code, Outcome.FAULTED)
            return TrialResult(outcome, str(error), is_last=error.is_sticky)
        except EnvironmentProblem as error:  # no memory for the workspace
            return TrialResult(Outcome.OUT_OF_MEMORY, str(error))

    def _trial(self, prepared: PreparedProblem, request: protocol.Trial) -> TrialResult:
        began = time.perf_counter()
        enqueue = self._load(request.kernel, prepared, self.workspace)
        glance_us, error_ratio = self._verify(prepared, enqueue, self.workspace)
        verified = time.perf_counter()
        sets = prepared.operands.sets
        timed = self.stopwatch.time(enqueue, sets, glance_us, request.cutoff_us)
        measured = time.perf_counter()
        # Again, after many launches in a row: what goes wrong only then is wrong too.
        verdict = prepared.verifier.check(sets[0].c, prepared.operands, self.workspace)
        if verdict.fault:
            raise WrongResult(verdict, verified - began, "after repeated launches ")
        return TrialResult(
            Outcome.OK,
            samples_us=timed.samples_us,
            is_cut_short=timed.is_cut_short,
            error_ratio=error_ratio,
            verify_s=verified - began,
            measure_s=measured - verified,
            state=self.stopwatch.state,
        )

    def race(self, request: protocol.Race) -> protocol.RaceResult:
        """Time candidates interleaved, cuBLAS among them. One that is wrong has no samples."""
        prepared = self._prepare(request.problem)
        # Each has a workspace of its own: counters must stay zero while others add their sums.
        workspaces = [Workspace(self.driver, self.stream) for _ in request.kernels]
        try:
            return self._race(prepared, request, workspaces)
        finally:
            for workspace in workspaces:
                workspace.free()

    def _race(
        self, prepared: PreparedProblem, request: protocol.Race, workspaces: list[Workspace]
    ) -> protocol.RaceResult:
        contestants: dict[int, tuple[Enqueue, float]] = {}
        for number, (kernel, workspace) in enumerate(zip(request.kernels, workspaces, strict=True)):
            with suppress(WrongResult):
                enqueue = self._load(kernel, prepared, workspace)
                contestants[number] = (enqueue, self._verify(prepared, enqueue, workspace)[0])
        sets = prepared.operands.sets
        if self.cublas is not None:
            sgemm = partial(self.cublas.sgemm, request.problem.gemm)
            contestants[_CUBLAS] = (sgemm, self.stopwatch.time_once(partial(sgemm, sets[0])))
        times = self.stopwatch.race([*contestants.values()], sets, request.rounds, request.problem.seed)
        samples = dict(zip(contestants, times, strict=True))
        return protocol.RaceResult(
            samples_us=tuple(samples.get(number, ()) for number in range(len(request.kernels))),
            baseline_us=samples.get(_CUBLAS, ()),
            state=self.stopwatch.state,
        )

    def _load(self, kernel: KernelCode, prepared: PreparedProblem, workspace: Workspace) -> Enqueue:
        """Load a candidate (or find it loaded) and give it its workspace."""
        gemm = prepared.problem.gemm
        if kernel.sha256 not in self._modules:
            self._modules[kernel.sha256] = Module(self.driver, self.device, kernel.code)
        self._modules.move_to_end(kernel.sha256)
        grid = launch.plan(kernel.spec, gemm.m, gemm.n)
        address = workspace.prepare(grid.sum_bytes, grid.counter_bytes)
        sgemm = Sgemm(self._modules[kernel.sha256], kernel.spec, gemm, address, kernel.entry)
        return partial(sgemm.enqueue, self.stream)

    def trim(self) -> None:
        """Unload the cubins used longest ago, between requests: a race uses many at once."""
        while len(self._modules) > MAX_MODULES:
            self._modules.popitem(last=False)[1].unload()

    def _verify(
        self, prepared: PreparedProblem, enqueue: Enqueue, workspace: Workspace
    ) -> tuple[float, float]:
        """Run once on poisoned C. Returns the launch's time in us, latency included, and the error ratio.

        Raises WrongResult.
        """
        began = time.perf_counter()
        operands = prepared.operands.sets[0]
        prepared.operands.poison(0)
        glance_us = self.stopwatch.time_once(lambda: enqueue(operands))
        verdict = prepared.verifier.check(operands.c, prepared.operands, workspace)
        if verdict.fault:
            raise WrongResult(verdict, time.perf_counter() - began)
        return glance_us, verdict.error_ratio

"""An open GPU inside the worker: prepares problems, verifies and times candidates."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from functools import cached_property, partial
from statistics import median

from ..facts.cublas_calls import TORCH_BYTES
from ..facts.gemm import FLOAT_BYTES, FP32, Gemm
from ..facts.measurement import CachePolicy, Discarded, Failure, Outcome
from ..files.errors import EnvironmentProblem
from ..kernel import templates
from ..target import CellTime
from . import cublas, cublaslt, driver, protocol, timing
from .candidate import Loader, WrongResult
from .driver import CudaError, check
from .guard import DriftReference, Guard, Guarded
from .memory import Buffer, Enqueue, OperandSet, Pool, Workspace, num_sets
from .module import Module
from .nvml import Monitor
from .problem import PreparedProblem
from .protocol import KernelCode, Problem, TrialResult
from .races import Races
from .timer import Timer
from .timing import Timing
from .verification import why_inaccurate

PROBLEM_MEMORY = 0.3  # of the GPU's memory that problems of alternating searches may hold
FRESH_SEED = 1_000_003  # added to a problem's seed for fresh inputs

_FAILURES = {
    driver.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
    driver.LAUNCH_OUT_OF_RESOURCES: Outcome.DOES_NOT_FIT,
}


def _why_too_fast(time_us: float, floor_us: float) -> str:
    """Why a time that was measured twice is impossible, or ""."""
    if not timing.is_too_fast(time_us, floor_us):
        return ""
    return (
        f"{time_us:.2f} us per launch, and this GPU needs {floor_us:.2f} at least; the result is right on "
        "fresh inputs, and timing it again gave the same: do not trust clocks or timer here"
    )


class Session:
    """An open GPU: context, stream, loaded cubins, prepared problems."""

    def __init__(self, start: protocol.Start) -> None:
        gpu = driver.find_gpu(start.gpu_uuid)
        self.limits = start.limits
        self.monitor = Monitor(gpu.uuid)
        neighbours = self.monitor.processes()  # before there is a context of ours
        self.driver = driver.open_driver()
        self.device = check(self.driver.cuDeviceGet, gpu.index)
        context = check(self.driver.cuDevicePrimaryCtxRetain, self.device)
        check(self.driver.cuCtxSetCurrent, context)
        self.guard = Guard(self.monitor)
        non_blocking = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.stream = check(self.driver.cuStreamCreate, int(non_blocking))
        self.checks = Module(self.driver, self.device, start.checks)
        self.timer = Timer(self.driver, self.stream, self.monitor.state)
        self.workspace = Workspace(self.driver, self.stream)
        self.loader = Loader(self.driver, self.device, self.stream, self.timer)
        self.pool = Pool(self.driver, self.checks.kernel("fill_normal"), self.stream)
        self.races = Races(self.driver, self.stream, self.loader, self.timer, self.guard, self.monitor)
        self._problems: OrderedDict[Problem, PreparedProblem] = OrderedDict()
        self._baselines: dict[Problem, tuple[float, ...]] = {}
        library = cublas.load_library()
        self.cublas = None if library is None else cublas.Cublas(self.driver, library, self.stream)
        self._biases: Buffer | None = None
        self._memory_bytes = int(gpu.total_bytes * PROBLEM_MEMORY)
        self.monitor.find_own_pid(neighbours)
        self.ready = protocol.Ready(
            cublas_version="" if library is None else cublas.library_version(library),
            driver_version=self.monitor.driver_version(),
            nvml_pid=self.monitor.own_pid,
        )

    # ---------------------------------------------------------------------------- problems

    def prepare(self, problem: Problem) -> protocol.Prepared:
        """Make a problem ready and time cuBLAS on it (once). Raises EnvironmentProblem."""
        started = time.perf_counter()
        prepared = self._prepare(problem)
        if problem not in self._baselines:
            self._baselines[problem] = self._time_cublas(prepared)
        return protocol.Prepared(
            baseline_us=self._baselines[problem],
            num_sets=len(prepared.operands.sets),
            reference_share=prepared.reference_share,
            held=tuple(self._problems),
            seconds=time.perf_counter() - started,
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
            self._evict(0)  # other problems hold the memory: free them and try again
            prepared = self._build(problem)
        self._problems[problem] = prepared
        self._evict(self._memory_bytes)
        return prepared

    def _build(self, problem: Problem) -> PreparedProblem:
        return PreparedProblem(self.driver, self.checks, problem, self.limits, self.cublas, self.stream)

    def _evict(self, most_bytes: int) -> None:
        """Free the least recently used problems; the newest stays unless none may."""
        least = 1 if most_bytes else 0
        held_bytes = sum(problem.num_bytes for problem in self._problems.values())
        while len(self._problems) > least and held_bytes > most_bytes:
            problem = self._problems.popitem(last=False)[1]
            held_bytes -= problem.num_bytes
            problem.free()

    def _time_cublas(self, prepared: PreparedProblem) -> tuple[float, ...]:
        if self.cublas is None:
            return ()
        enqueue = partial(self.cublas.sgemm, prepared.problem.gemm)
        sets = prepared.operands.sets
        probe_us = self.timer.time_once(lambda: enqueue(sets[0]))
        return self.timer.time(enqueue, sets, probe_us, None).samples_us

    # ---------------------------------------------------------------------------- candidates

    def trial(self, request: protocol.RunTrial) -> TrialResult:
        """Verify and time one candidate; its own failures are results."""
        prepared = self._prepare(request.problem)
        self.monitor.peers = request.peers
        try:
            return self._trial(prepared, request)
        except WrongResult as wrong:
            self._evict(0)  # it may have written anywhere: everything is rebuilt
            ratio, verify_s = wrong.verdict.error_ratio, wrong.verify_s
            return TrialResult(Outcome.WRONG_RESULT, str(wrong), error_ratio=ratio, verify_s=verify_s)
        except CudaError as error:
            outcome = _FAILURES.get(error.code, Outcome.FAULTED)
            return TrialResult(outcome, str(error), is_last=error.is_sticky)
        except EnvironmentProblem as error:  # no memory for the workspace
            return TrialResult(Outcome.OUT_OF_MEMORY, str(error))

    def _trial(self, prepared: PreparedProblem, request: protocol.RunTrial) -> TrialResult:
        started = time.perf_counter()
        enqueue = self.loader.load(request.kernel, request.problem.gemm, self.workspace)
        probe_us, verdict = self.loader.verify(prepared, enqueue, self.workspace)
        verified = time.perf_counter()
        right = TrialResult(
            Outcome.OK,
            error_ratio=verdict.error_ratio,
            error_over_cublas=verdict.error_over_cublas,
            verify_s=verified - started,
        )
        if why := why_inaccurate(verdict.error_over_cublas, request.problem.max_error):
            return replace(right, outcome=Outcome.INACCURATE, reason=why)
        if why := prepared.broken_promise(enqueue, self.workspace):
            return replace(
                right, outcome=Outcome.INACCURATE, reason=why, verify_s=time.perf_counter() - started
            )
        guarded = self._time(prepared, enqueue, probe_us, request.cutoff_us)
        gemm, policy, num_sets = request.problem.gemm, request.problem.policy, len(prepared.operands.sets)
        tflops = templates.tflops(request.kernel.accuracy, self.limits, gemm.a_type)
        reason, floor_us = "", timing.floor_us(gemm, self.limits, policy, num_sets, tflops)
        known_us = self._known_us(prepared.problem, request.cutoff_us)
        if timing.is_suspicious(guarded.taken.time_us, floor_us, known_us):
            self._verify_on_fresh_inputs(prepared, request.kernel)
            guarded = self._time(prepared, enqueue, probe_us, request.cutoff_us)
            reason = _why_too_fast(guarded.taken.time_us, floor_us)
        measured = time.perf_counter()
        return replace(
            right,
            outcome=Outcome.TOO_FAST if reason else Outcome.OK,
            reason=reason,
            samples_us=guarded.taken.samples_us,
            is_cut_short=guarded.taken.is_cut_short,
            measure_s=measured - verified,
            state=self.timer.state,
            marks=guarded.marks,
            discarded=tuple(Discarded(timed.samples_us, marks) for timed, marks in guarded.before),
        )

    def _time(
        self, prepared: PreparedProblem, enqueue: Enqueue, probe_us: float, cutoff_us: float | None
    ) -> Guarded[Timing]:
        """Time a candidate, again if something disturbs it. Raises WrongResult."""
        sets, watch = prepared.operands.sets, self.timer

        def take() -> Timing:
            timed = watch.time(enqueue, sets, probe_us, cutoff_us)
            self.loader.check_repeated(prepared, self.workspace)  # before the reference writes over C
            return timed

        return self.guard.take(take, lambda: watch.state, self._reference(prepared))

    def _reference(self, prepared: PreparedProblem) -> DriftReference | None:
        """cuBLAS on the same problem, once it was timed."""
        known = self._baselines.get(prepared.problem)
        if not known or self.cublas is None:
            return None
        enqueue, level_us = partial(self.cublas.sgemm, prepared.problem.gemm), median(known)
        sets = prepared.operands.sets

        def read() -> float:
            return self.timer.read(enqueue, sets, level_us)

        return DriftReference(prepared.problem, read, level_us)

    # ---------------------------------------------------------------------------- too good to be true

    def _known_us(self, problem: Problem, cutoff_us: float | None) -> float | None:
        """The best time known before, cuBLAS's or the incumbent's."""
        known = self._baselines.get(problem)
        times = [*([median(known)] if known else []), *([] if cutoff_us is None else [cutoff_us])]
        return min(times, default=None)

    def _verify_on_fresh_inputs(self, prepared: PreparedProblem, kernel: KernelCode) -> None:
        """Verify again on fresh inputs: a result left over from before is wrong here. All of C is checked:
        against cuBLAS, or, without it and if C is too large for a complete reference, against other tiles.
        Raises WrongResult, EnvironmentProblem."""
        problem = prepared.problem
        fresh = self._build(replace(problem, policy=CachePolicy.WARM, seed=problem.seed + FRESH_SEED))
        workspace = Workspace(self.driver, self.stream)
        try:
            self.loader.verify(fresh, self.loader.load(kernel, problem.gemm, workspace), workspace)
        finally:
            workspace.free()
            fresh.free()

    # ---------------------------------------------------------------------------- many cells

    def cells(self, request: protocol.RunCells) -> protocol.CellsResult:
        """Time kernels on problems with arbitrary numbers; their own failures are results."""
        self.monitor.peers = request.peers
        times: list[CellTime] = []
        for gemm, kernel, cutoff_us, has_bias in request.cells:
            try:
                timed = self._cell(gemm, kernel, request.policy, cutoff_us, has_bias=has_bias)
                times.append(CellTime(timed.samples_us, timed.is_cut_short))
            except CudaError as error:
                if error.is_sticky:
                    return protocol.CellsResult(tuple(times), str(error), is_last=True)
                times.append(CellTime((), reason=str(error)))
            except (EnvironmentProblem, cublas.CublasError) as error:  # no memory, or it refuses the product
                times.append(CellTime((), reason=str(error)))
        return protocol.CellsResult(tuple(times))

    def _cell(
        self,
        gemm: Gemm,
        kernel: KernelCode | None,
        policy: CachePolicy,
        cutoff_us: float | None,
        *,
        has_bias: bool,
    ) -> Timing:
        sets = self._timed_sets(gemm, policy)
        if has_bias:
            return self._cell_with_bias(gemm, sets, cutoff_us)
        if kernel is not None:
            enqueue = self.loader.load(kernel, gemm, self.workspace)
        elif self.cublas is not None:
            enqueue = partial(self.cublas.sgemm, gemm)
        else:
            raise EnvironmentProblem("cuBLAS was not found")
        return self.timer.probe(enqueue, sets, cutoff_us)

    def _cell_with_bias(self, gemm: Gemm, sets: tuple[OperandSet, ...], cutoff_us: float | None) -> Timing:
        if self._lt is None:
            raise EnvironmentProblem("cuBLASLt was not found")
        product = self._lt.product(gemm, self._bias(FLOAT_BYTES * gemm.n).address)
        try:
            return self.timer.probe(partial(product.enqueue, product.first(sets[0])), sets, cutoff_us)
        finally:
            product.free()

    @cached_property
    def _lt(self) -> cublaslt.CublasLt | None:
        """With the workspace that torch gives it."""
        library = cublaslt.load_library()
        if library is None:
            return None
        return cublaslt.CublasLt(self.driver, library, self.stream, TORCH_BYTES)

    def _bias(self, num_bytes: int) -> Buffer:
        """Any numbers."""
        if self._biases is None or self._biases.num_bytes < num_bytes:
            if self._biases is not None:
                self._biases.free()
            self._biases = Buffer(self.driver, num_bytes, "the bias of a product")
        return self._biases

    def _timed_sets(self, gemm: Gemm, policy: CachePolicy) -> tuple[OperandSet, ...]:
        """Raises EnvironmentProblem where memory does not suffice, though no problem is held."""
        count = num_sets(gemm, self.limits.l2_bytes, policy)
        try:
            return self.pool.sets(replace(gemm, a_type=FP32).operand_bytes, count)
        except EnvironmentProblem:
            self._evict(0)
            return self.pool.sets(replace(gemm, a_type=FP32).operand_bytes, count)

    # ---------------------------------------------------------------------------- in the same rounds

    def race(self, request: protocol.RunRace) -> protocol.RaceResult:
        """Time candidates interleaved, cuBLAS among them. One that is wrong has no samples."""
        gemm, failures = request.problem.gemm, dict[int, Failure]()
        sgemm = None if self.cublas is None else partial(self.cublas.sgemm, gemm)
        known = self._baselines.get(request.problem)
        level_us = median(known) if known else None
        self.monitor.peers = request.peers
        while True:  # ends: each iteration except the last finds one more that fails
            try:
                return self.races.race(self._prepare(request.problem), request, failures, sgemm, level_us)
            except WrongResult:
                self._evict(0)  # as after a trial

    def compare_pair(self, request: protocol.RunComparison) -> protocol.ComparisonResult:
        """Time two candidates interleaved. If one is wrong now, neither has samples."""
        started = time.perf_counter()
        try:
            samples = self.races.compare_pair(self._prepare(request.problem), request)
        except WrongResult:
            self._evict(0)  # as after a trial
            samples = ((), ())
        return protocol.ComparisonResult(samples, time.perf_counter() - started)

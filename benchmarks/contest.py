"""Several implementations of one product on one GPU, in this process: checked, then timed interleaved.

Used by vs_cublas.py and vs_itself.py. A search keeps CUDA in a worker that may die; here only kernels run
that a search has verified, so that ours, cuBLAS, cuBLASLt and torch can share a stream, operands and rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain
from types import ModuleType
from typing import Any

import spells
from accuracy import Accuracy, accuracy
from spells import Spell

from autotune.export.from_store import read_results
from autotune.export.tuned import TunedResults
from autotune.facts.fitted import MAX_ERROR
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, GpuState
from autotune.files import wheel_libraries
from autotune.files.errors import AutotuneError, EnvironmentProblem
from autotune.gpu import cublaslt, driver, instance
from autotune.gpu.builder import CHECKS_ENTRY, CHECKS_FILE
from autotune.gpu.cublas import Cublas, CublasError
from autotune.gpu.memory import Enqueue, OperandSet, Workspace
from autotune.gpu.module import Module
from autotune.gpu.problem import PreparedProblem
from autotune.gpu.protocol import Problem, Start
from autotune.gpu.session import Session
from autotune.gpu.sgemm import EpilogueArgument, Sgemm
from autotune.gpu.timer import LaunchGraph
from autotune.kernel import launch, resources, template
from autotune.kernel.compiler import Compiler, Cubin
from autotune.kernel.config import Config
from autotune.store import Store

Build = Callable[[Config, launch.Variant], Cubin]
OURS, CUBLAS, CUBLASLT, TORCH = "ours", "cublas", "cublaslt", "torch"
WARM_UP_S = 5.0  # at most, before turns that last


@dataclass
class Contestant:
    """One implementation. `launch_us` is about what a launch takes, `accuracy` that of its C."""

    name: str
    enqueue: Enqueue
    detail: str = ""
    launch_us: float = 0.0
    accuracy: Accuracy | None = None
    samples_us: tuple[float, ...] = ()


@dataclass
class Contest:
    """All contestants on one problem after the race. `notes` tell who could not take part, and why."""

    gemm: Gemm
    contestants: dict[str, Contestant]
    state: GpuState
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sustained:
    """By name: the contestants' `details`, and the spells of each of their turns."""

    gemm: Gemm
    details: dict[str, str]
    spells: dict[str, list[list[Spell]]]
    notes: list[str] = field(default_factory=list)


class WrongContestant(AutotuneError):
    """A contestant's C is wrong."""


class Arena:
    """An open GPU. Raises EnvironmentProblem where it, its driver or cuBLAS is missing."""

    def __init__(self, selector: str, policy: CachePolicy, *, with_torch: bool = True) -> None:
        self.gpu = driver.find_gpu(selector)
        self.limits = driver.device_limits(self.gpu.index)
        self.policy = policy
        self.max_error: float | None = MAX_ERROR  # of kernels that are taken from a database
        self.compiler = Compiler(self.limits.arch)
        # what `ours` is built by
        self.compiled: Build = cache(lambda config, variant: self.compiler.compile(config, variant))
        checks = self.compiler.compile_source(template.source(CHECKS_FILE), entry=CHECKS_ENTRY)
        self.session = Session(Start(self.gpu.uuid, self.limits, checks.code))
        self.cublas()  # before anything is measured
        library = cublaslt.load_library()
        self.lt = library and cublaslt.CublasLt(self.session.driver, library, self.session.stream)
        self.torch = _torch(self.gpu.index, int(self.session.stream)) if with_torch else None
        self.environment = driver.environment(
            self.gpu,
            driver_version=self.session.ready.driver_version,
            nvrtc_version=self.compiler.version.removeprefix("nvrtc "),
            cublas_version=self.session.ready.cublas_version,
        )

    def cublas(self) -> Cublas:
        """The library that every contest has. Raises EnvironmentProblem where it is missing."""
        if self.session.cublas is None:
            advice = wheel_libraries.pip_install(wheel_libraries.CUBLAS)
            raise EnvironmentProblem(f"cuBLAS was not found; install it with: {advice}")
        return self.session.cublas

    def results(self, store: Store, gemms: Collection[Gemm]) -> TunedResults:
        """What a database holds for GPUs of this kind: of these shapes, or of all where none is named.

        Raises DispatchError where a shape was not tuned, StoreError where the results are damaged.
        """
        return read_results(
            store,
            self.environment,
            self.limits,
            policy=self.policy,
            gemms=gemms or None,
            max_error=self.max_error,
        )

    @contextmanager
    def prepared(self, gemm: Gemm) -> Iterator[PreparedProblem]:
        """Operands and reference of a problem, freed at the end."""
        s = self.session
        problem = PreparedProblem(
            s.driver, s.checks, Problem(gemm, self.policy), self.limits, s.cublas, s.stream
        )
        try:
            yield problem
        finally:
            problem.free()

    def race(self, gemm: Gemm, config: Config, rounds: int) -> Contest:
        """Everyone on this problem. Raises WrongContestant where ours or cuBLAS computes something else."""
        notes: list[str] = []
        with (
            self.prepared(gemm) as prepared,
            self._everyone(prepared, config, notes) as (everyone, workspace),
        ):
            self.time(prepared, everyone, rounds)
            # Again, after many launches in a row: what goes wrong only then is wrong too.
            for contestant in everyone:
                self.check(contestant, prepared, workspace, is_measured=True)
            return Contest(gemm, {c.name: c for c in everyone}, self.session.timer.state, notes)

    @contextmanager
    def _everyone(
        self, prepared: PreparedProblem, config: Config, notes: list[str]
    ) -> Iterator[tuple[list[Contestant], Workspace]]:
        """All that take part, checked: ours, cuBLAS and, where they can, cuBLASLt's best and torch.mm."""
        gemm = prepared.problem.gemm
        with self.owned(gemm, config) as (ours, workspace):
            everyone = [ours, self._cublas(gemm)]
            for contestant in everyone:
                self.check(contestant, prepared, workspace)
            with self._best_of_lt(prepared, workspace, notes) as best:
                others = (best, self._torch_mm(prepared, workspace, notes))
                yield everyone + [contestant for contestant in others if contestant is not None], workspace

    def race_configs(self, gemm: Gemm, configs: Mapping[str, Config], rounds: int, loads: int) -> Contest:
        """Kernels of ours by name, and cuBLAS, in about so many rounds; the kernels are loaded several times
        for it, as one load may make a kernel slower. Equal configs race once, under the first of their names.

        Raises WrongContestant where one computes something else.
        """
        first = {config: name for name, config in reversed(list(configs.items()))}
        with self.prepared(gemm) as prepared:
            contests = [self._race_loaded(prepared, first, -(-rounds // loads)) for _ in range(loads)]
        whole = contests[-1]
        for name, contestant in whole.contestants.items():
            samples = [contest.contestants[name].samples_us for contest in contests]
            contestant.samples_us = tuple(chain.from_iterable(samples))
        return whole

    def _race_loaded(self, prepared: PreparedProblem, names: Mapping[Config, str], rounds: int) -> Contest:
        """Rounds after one load of each kernel."""
        gemm = prepared.problem.gemm
        with ExitStack() as stack:
            pairs = [stack.enter_context(self.owned(gemm, c, name)) for c, name in names.items()]
            everyone = [*pairs, (self._cublas(gemm), pairs[0][1])]
            for contestant, workspace in everyone:
                self.check(contestant, prepared, workspace)
            self.time(prepared, [contestant for contestant, _ in everyone], rounds)
            for contestant, workspace in everyone:
                self.check(contestant, prepared, workspace)
            by_name = {contestant.name: contestant for contestant, _ in everyone}
            return Contest(gemm, by_name, self.session.timer.state)

    def time(self, prepared: PreparedProblem, everyone: Sequence[Contestant], rounds: int) -> None:
        """Interleaved rounds of all contestants."""
        pairs = [(c.enqueue, c.launch_us) for c in everyone]
        sets, seed = prepared.operands.sets, prepared.problem.seed
        found = self.session.timer.race(pairs, sets, rounds, seed)
        for contestant, samples in zip(everyone, found, strict=True):
            contestant.samples_us = samples

    def sustain(self, gemm: Gemm, config: Config, seconds: float, turns: int) -> Sustained:
        """Each contestant in turns of this many seconds.

        A few uncounted seconds of cuBLAS come first, so that none begins on a cool GPU. Raises
        WrongContestant, after the turns, too.
        """
        notes: list[str] = []
        with (
            self.prepared(gemm) as prepared,
            self._everyone(prepared, config, notes) as (everyone, workspace),
        ):
            run = partial(self._run, prepared)
            run(everyone[1], min(seconds, WARM_UP_S))
            spells: dict[str, list[list[Spell]]] = {contestant.name: [] for contestant in everyone}
            for turn in range(turns):
                for contestant in everyone if turn % 2 == 0 else everyone[::-1]:
                    spells[contestant.name].append(run(contestant, seconds))
            for contestant in everyone:
                self.check(contestant, prepared, workspace)
            return Sustained(gemm, {c.name: c.detail for c in everyone}, spells, notes)

    def _run(self, prepared: PreparedProblem, contestant: Contestant, seconds: float) -> list[Spell]:
        sets = prepared.operands.sets
        return spells.sustain(self.session, contestant.enqueue, sets, contestant.launch_us, seconds)

    # ---------------------------------------------------------------------------- contestants

    @contextmanager
    def owned(
        self,
        gemm: Gemm,
        config: Config,
        name: str = OURS,
        epilogue: launch.Epilogue = launch.PLAIN,
        argument: EpilogueArgument | None = None,
    ) -> Iterator[tuple[Contestant, Workspace]]:
        """The tuned kernel, loaded, with a workspace of its own; `argument` is what its epilogue reads."""
        session, wide = self.session, instance.is_wide(gemm)
        cubin = self.compiled(config, replace(instance.variant(gemm), epilogue=epilogue))
        spec = resources.launch_spec(config, gemm, self.limits, is_wide=wide, epilogue=epilogue)
        grid = launch.plan(spec, gemm.m, gemm.n, gemm.k, gemm.strides)
        module = Module(session.driver, session.device, cubin.code)
        workspace = Workspace(session.driver, session.stream)
        try:
            address = workspace.prepare(grid.scratch_bytes, grid.counter_bytes)
            sgemm = Sgemm(module, spec, gemm, address, epilogue=argument)
            yield Contestant(name, partial(sgemm.enqueue, session.stream), config.key), workspace
        finally:
            workspace.free()
            module.unload()

    def _cublas(self, gemm: Gemm) -> Contestant:
        name = "cublasSgemmStridedBatched" if gemm.is_batched else "cublasSgemm"
        detail = f"{name} {self.environment.cublas_version}"
        return Contestant(CUBLAS, partial(self.cublas().sgemm, gemm), detail)

    @contextmanager
    def _best_of_lt(
        self, prepared: PreparedProblem, workspace: Workspace, notes: list[str]
    ) -> Iterator[Contestant | None]:
        """The fastest of cuBLASLt's candidates that compute the product, each timed shortly."""
        if self.lt is None:
            notes.append("cuBLASLt was not found")
            yield None
            return
        product = self.lt.product(prepared.problem.gemm)
        try:
            candidates = product.candidates()
            best, best_us = None, float("inf")
            for number, candidate in enumerate(candidates):
                detail = f"candidate {number + 1} of {len(candidates)}"
                contestant = Contestant(CUBLASLT, partial(product.enqueue, candidate), detail)
                time_us = self._time_candidate(contestant, prepared, workspace, best_us)
                if time_us < best_us:
                    best, best_us = contestant, time_us
            if best is None:
                notes.append(f"none of {len(candidates)} candidates of cuBLASLt computes this product")
            yield best
        finally:
            product.free()

    def _time_candidate(
        self, contestant: Contestant, prepared: PreparedProblem, workspace: Workspace, best_us: float
    ) -> float:
        """Median time in us; infinity for one that is refused, wrong or clearly slower than the best."""
        try:
            self.check(contestant, prepared, workspace)
        except (CublasError, WrongContestant):
            return float("inf")
        cutoff_us = best_us if best_us < float("inf") else None
        sets = prepared.operands.sets
        timing = self.session.timer.time(contestant.enqueue, sets, contestant.launch_us, cutoff_us)
        return float("inf") if timing.is_cut_short else timing.time_us

    def _torch_mm(
        self, prepared: PreparedProblem, workspace: Workspace, notes: list[str]
    ) -> Contestant | None:
        """torch.mm or torch.bmm into our C. Left out, with a note, where no graph can capture it."""
        if self.torch is None:
            return None
        session, sets = self.session, prepared.operands.sets
        enqueue = self.torch(prepared.problem.gemm, sets)
        contestant = Contestant(TORCH, enqueue, f"torch.mm, {self.torch.version}")
        try:
            self.check(contestant, prepared, workspace)
            LaunchGraph(session.driver, session.stream, contestant.enqueue, sets, len(sets)).close()
        except Exception as error:  # whatever torch or its allocator raises: the others go on
            notes.append(f"torch.mm was left out: {error}")
            return None
        return contestant

    def check(
        self,
        contestant: Contestant,
        prepared: PreparedProblem,
        workspace: Workspace,
        *,
        is_measured: bool = False,
    ) -> None:
        """Run once on poisoned C; note how long it took and, if asked, how accurate it is.

        Raises WrongContestant.
        """
        session, operands = self.session, prepared.operands
        first = operands.sets[0]
        operands.poison(0)
        contestant.launch_us = session.timer.time_once(partial(contestant.enqueue, first))
        verdict = prepared.verifier.check(first.c, operands, workspace)
        gemm = prepared.problem.gemm
        if verdict.fault:
            raise WrongContestant(f"{contestant.name} ({contestant.detail}) on {gemm}: {verdict.fault}")
        if is_measured:
            contestant.accuracy = accuracy(session.driver, session.stream, gemm, prepared.verifier, first.c)


# ------------------------------------------------------------------------------------------------
# torch, where it is installed


class TorchMm:
    """Makes what enqueues torch.mm (torch.bmm for a batch), on our stream and our operands, TF32 off."""

    def __init__(self, torch: ModuleType, device: int, stream: int) -> None:
        self._torch, self._device = torch, f"cuda:{device}"
        torch.set_float32_matmul_precision("highest")
        self.stream = torch.cuda.ExternalStream(stream, device=self._device)
        self.version = f"torch {torch.__version__}, CUDA {torch.version.cuda}"

    def __call__(self, gemm: Gemm, sets: Sequence[OperandSet]) -> Enqueue:
        tensors = {operands: self.tensors(gemm, operands) for operands in sets}
        multiply = self._torch.bmm if gemm.is_batched else self._torch.mm

        def enqueue(operands: OperandSet) -> None:
            a, b, c = tensors[operands]
            with self._torch.no_grad(), self._torch.cuda.stream(self.stream):
                multiply(a, b, out=c)

        return enqueue

    def tensors(self, gemm: Gemm, operands: OperandSet) -> tuple[Any, Any, Any]:
        """Of A, B and C, as torch multiplies them: (m, k), (k, n), (m, n), or a batch of these."""
        stored_a = (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)
        stored_b = (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)
        a = self._tensor(gemm, operands.a, stored_a, is_shared=gemm.shares_a)
        b = self._tensor(gemm, operands.b, stored_b, is_shared=gemm.shares_b)
        c = self._tensor(gemm, operands.c, (gemm.m, gemm.n))
        return (a.mT if gemm.trans_a else a), (b.mT if gemm.trans_b else b), c

    def _tensor(self, gemm: Gemm, address: int, shape: tuple[int, int], *, is_shared: bool = False) -> Any:
        """A matrix; of a batch, all of them."""
        if not gemm.is_batched:
            return self._torch.as_tensor(_Matrices(address, shape), device=self._device)
        matrices = _Matrices(address, (1 if is_shared else gemm.batch, *shape))
        tensor = self._torch.as_tensor(matrices, device=self._device)
        return tensor.expand(gemm.batch, -1, -1)


class _Matrices:
    """Device memory as others read it: the CUDA array interface."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (address, False), "version": 3,
        }  # fmt: skip


def _torch(device: int, stream: int) -> TorchMm | None:
    try:
        import torch
    except ImportError:
        return None
    return TorchMm(torch, device, stream) if torch.cuda.is_available() else None

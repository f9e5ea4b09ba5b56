"""One problem made ready on the device: operand sets, and the reference they are checked by."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..facts import accuracy_class as accuracy
from ..facts.accuracy_class import STRICT
from ..facts.device import DeviceLimits
from ..files.errors import EnvironmentProblem
from .cublas import Cublas
from .driver import check
from .memory import Enqueue, Operands, Workspace, num_sets
from .module import Module
from .protocol import Problem
from .verification import LEAST_TILES, Verdict, Verifier


class PreparedProblem:
    """Operands and reference of one problem. Raises EnvironmentProblem if memory does not suffice, or if
    cuBLAS (if present) and the float64 reference, two independent kernels, disagree."""

    def __init__(
        self,
        driver: Any,
        checks: Module,
        problem: Problem,
        limits: DeviceLimits,
        cublas: Cublas | None,
        stream: Any,
    ) -> None:
        self.problem = problem
        gemm, seed = problem.gemm, problem.seed
        count = num_sets(gemm, limits.l2_bytes, problem.policy)
        self.operands = Operands(driver, checks, gemm, count, seed, stream)
        try:
            self.verifier = Verifier(driver, checks, gemm, limits, seed, stream)
        except EnvironmentProblem:
            self.operands.free()
            raise
        self._promise: PromiseCheck | None = None
        try:
            self.verifier.compute_reference(self.operands.sets[0])
            if cublas is not None:
                self._check_reference(cublas)
            if problem.accuracy != STRICT:
                self._promise = PromiseCheck(driver, checks, problem, limits, cublas, stream)
        except EnvironmentProblem:
            self.free()
            raise
        check(driver.cuStreamSynchronize, stream)

    @property
    def num_bytes(self) -> int:
        return (
            self.operands.num_bytes
            + self.verifier.num_bytes
            + (self._promise.num_bytes if self._promise else 0)
        )

    @property
    def reference_share(self) -> float:
        """The share of C that is checked against float64; the rest is checked only against cuBLAS."""
        return self.verifier.share

    def free(self) -> None:
        self.operands.free()
        self.verifier.free()
        if self._promise is not None:
            self._promise.free()

    def broken_promise(self, enqueue: Enqueue, workspace: Workspace) -> str:
        """Why a kernel that is right is none of the class that was asked for, or ""."""
        return self._promise.why_not(enqueue, workspace) if self._promise else ""

    def _check_reference(self, cublas: Cublas) -> None:
        gemm = self.problem.gemm
        self.verifier.keep_cublas(self.operands.sets[0], partial(cublas.sgemm, gemm))
        verdict = self.verifier.check_cublas()
        if verdict.fault:
            raise EnvironmentProblem(
                f"cuBLAS and the float64 reference disagree on {gemm}: {verdict.fault}; "
                "the GPU or its memory is faulty, or this is a bug worth reporting"
            )


class PromiseCheck:
    """One set of operands, filled again for each kind, and a reference of some tiles of C for each. Raises
    EnvironmentProblem where cuBLAS is absent, or memory does not suffice."""

    def __init__(
        self,
        driver: Any,
        checks: Module,
        problem: Problem,
        limits: DeviceLimits,
        cublas: Cublas | None,
        stream: Any,
    ) -> None:
        self._problem, gemm = problem, problem.gemm
        if cublas is None:
            raise EnvironmentProblem(
                f"accuracy {problem.accuracy} is verified against cuBLAS, which was not found; install "
                f"it, or search for accuracy {accuracy.STRICT}"
            )
        self._fill = checks.kernel("fill_operand")
        seed = problem.seed
        self._operands = Operands(driver, checks, gemm, 1, seed, stream)
        self._verifiers: list[Verifier] = []
        self._sgemms: list[tuple[float, float]] = []
        nothing = Workspace(driver, stream)
        try:
            for kind in range(len(accuracy.KINDS)):
                verifier = Verifier(driver, checks, gemm, limits, seed, stream, most_tiles=LEAST_TILES)
                self._verifiers.append(verifier)
                self._operands.fill(self._fill, gemm, kind, seed)
                verifier.compute_reference(self._operands.sets[0])
                self._sgemms.append(self._run(kind, partial(cublas.sgemm, gemm), nothing).errors)
        except EnvironmentProblem:
            self.free()
            raise
        finally:
            nothing.free()

    @property
    def num_bytes(self) -> int:
        return self._operands.num_bytes + sum(verifier.num_bytes for verifier in self._verifiers)

    def why_not(self, enqueue: Enqueue, workspace: Workspace) -> str:
        """What a kernel breaks of the promise, or ""."""
        for kind, name in enumerate(accuracy.KINDS):
            self._operands.fill(self._fill, self._problem.gemm, kind, self._problem.seed)
            verdict = self._run(kind, enqueue, workspace)
            if verdict.num_corrupted or verdict.num_nonfinite:
                return f"on {name} operands: {verdict.fault}"
            over = accuracy.excess(verdict.errors, self._sgemms[kind])
            if not over <= 1:
                return (
                    f"right, but not of accuracy {self._problem.accuracy}: on {name} operands its error is "
                    f"{over:.2f} times SGEMM's"
                )
        return ""

    def free(self) -> None:
        self._operands.free()
        for verifier in self._verifiers:
            verifier.free()

    def _run(self, kind: int, enqueue: Enqueue, workspace: Workspace) -> Verdict:
        """The errors of one launch on what the operands hold now."""
        self._operands.poison(0)
        enqueue(self._operands.sets[0])
        return self._verifiers[kind].check(self._operands.sets[0].c, self._operands, workspace)

"""One problem made ready on the device: operand sets, and the reference they are checked by."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..facts.accuracy_class import STRICT
from ..facts.device import DeviceLimits
from ..files.errors import EnvironmentProblem
from .cublas import Cublas
from .driver import check
from .memory import Enqueue, Operands, Workspace, num_sets
from .module import Module
from .promise_check import PromiseCheck
from .protocol import Problem
from .verification import Verifier


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
        self.operands = Operands(driver, checks.kernel("fill_normal"), gemm, count, seed, stream)
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

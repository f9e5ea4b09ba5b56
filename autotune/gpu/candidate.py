"""One candidate on the device: loaded, launched once on poisoned C and verified, or refused as wrong."""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import partial
from typing import Any

from ..facts.gemm import Gemm
from ..files.errors import AutotuneError
from ..kernel import launch
from .memory import Enqueue, Workspace
from .module import Module
from .problem import PreparedProblem
from .protocol import KernelCode
from .sgemm import Sgemm
from .timer import Timer
from .verification import Verdict

MAX_MODULES = 16  # loaded cubins kept for configs that share one


class WrongResult(AutotuneError):
    """A candidate computed a wrong result, or wrote out of bounds."""

    def __init__(self, verdict: Verdict, verify_s: float, when: str = "") -> None:
        super().__init__(f"{when}{verdict.fault}")
        self.verdict = verdict
        self.verify_s = verify_s


class Loader:
    """Loads cubins, keeps the latest, and verifies what they compute."""

    def __init__(self, driver: Any, device: Any, stream: Any, clock: Timer) -> None:
        self._driver, self._device, self._stream = driver, device, stream
        self._timer = clock
        self._modules: OrderedDict[str, Module] = OrderedDict()

    def load(self, kernel: KernelCode, gemm: Gemm, workspace: Workspace) -> Enqueue:
        """Load a candidate (or find it loaded) and give it its workspace."""
        if kernel.sha256 not in self._modules:
            self._modules[kernel.sha256] = Module(self._driver, self._device, kernel.code)
        self._modules.move_to_end(kernel.sha256)
        grid = launch.plan(kernel.spec, gemm.m, gemm.n, gemm.k, gemm.strides)
        address = workspace.prepare(grid.scratch_bytes, grid.counter_bytes)
        sgemm = Sgemm(self._modules[kernel.sha256], kernel.spec, gemm, address, kernel.entry)
        return partial(sgemm.enqueue, self._stream)

    def trim(self) -> None:
        """Unload the least recently used cubins."""
        while len(self._modules) > MAX_MODULES:
            self._modules.popitem(last=False)[1].unload()

    def verify(
        self, prepared: PreparedProblem, enqueue: Enqueue, workspace: Workspace
    ) -> tuple[float, Verdict]:
        """Run once on poisoned C. Returns the launch's time in us, latency included, and the verdict. Raises
        WrongResult."""
        started = time.perf_counter()
        operands = prepared.operands.sets[0]
        prepared.operands.poison(0)
        probe_us = self._timer.time_once(lambda: enqueue(operands))
        verdict = prepared.verifier.check(operands.c, prepared.operands, workspace)
        if verdict.fault:
            raise WrongResult(verdict, time.perf_counter() - started)
        return probe_us, verdict

    def check_repeated(self, prepared: PreparedProblem, workspace: Workspace) -> None:
        """After many launches in a row: a result that is wrong only then is wrong too. Raises WrongResult."""
        started = time.perf_counter()
        verdict = prepared.verifier.check(prepared.operands.sets[0].c, prepared.operands, workspace)
        if verdict.fault:
            raise WrongResult(verdict, time.perf_counter() - started, "after repeated launches ")

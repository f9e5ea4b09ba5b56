"""cuBLAS alone, for GPUs without a table, if the caller has chosen that instead of an error.

There is no kernel beside it. So cublasSgeam, which does not read A and B, scales C where cuBLAS computes no
product (alpha = 0, or no depth); what cuBLAS cannot do at all is an error. Copied into exported tables.
"""

from __future__ import annotations

import struct
from functools import partial
from weakref import finalize

from ..facts.gemm import MAX_EXTENT, Gemm, Triple
from ..files.errors import DispatchError
from ..kernel.launch import NO_LAUNCH
from .blas_library import BLAS_GRID
from .blas_provider import BlasProvider
from .call_recorder import CallRecorder, recorded_elsewhere
from .counting import CallCounts, Counted
from .cuda_driver import Driver
from .devices import Gpus
from .pick import Pick
from .planner import Key, Plan, Planner
from .product import Product, no_scale

_FLOAT = struct.Struct("=f")


def blas_pick(gemm: Gemm) -> Pick:
    """What serves any product here."""
    told = partial(str, f"no table is for this GPU: cuBLAS serves {gemm}")
    return Pick("", "default", told, 1, provider="cublas")


class BlasEngine(Planner):
    """Has cuBLAS (pedantic FP32) serve every product on any GPU. Threads may share it."""

    def __init__(self, driver: Driver, blas: BlasProvider) -> None:
        super().__init__(driver, Gpus(driver), blas)
        self._tallies = CallCounts()
        self._recorder: CallRecorder | None = None

    def _make_plan(self, problem: Product, device: int, aligned: Triple, key: Key) -> Plan:
        if key[-1] is not None:
            raise DispatchError(
                f"no table is for GPU {device}, which cuBLAS serves: it adds no bias and applies no "
                "activation; add them yourself, or tune on this GPU and add its table with `autotune "
                "export-table --add`"
            )
        gpu, gemm = self.devices.gpu(device), problem.gemm
        if self.blas.library is None:
            raise DispatchError(
                f"no table is for GPU {device}, and no cuBLAS can be loaded to serve it; install "
                "nvidia-cublas, or tune on this GPU and add its table with `autotune export-table --add`"
            )
        if max(problem.lds) > MAX_EXTENT:
            raise DispatchError(f"cuBLAS takes no rows {max(problem.lds)} elements apart; pass packed copies")
        plan = Plan(problem, gpu, NO_LAUNCH)
        if not (gemm.m and gemm.n):
            return plan
        served = plan._replace(grid=BLAS_GRID, blas=self.blas.call(problem))
        if self._recorder is not None:
            self._recorder.begin()
        return served._replace(tally=self._tallies.of(problem, aligned, blas_pick(gemm)))

    def run(
        self, plan: Plan, stream: int, addresses: Triple, alpha: float, beta: float, bias: int = 0
    ) -> None:
        if plan.blas is None or plan.tally is None:
            return
        library, gpu = self.blas.library, plan.gpu
        _check_scales(alpha, beta)
        with self.devices.current(gpu):
            handle = None if library is None else library.handle(gpu.device, stream, self.driver)
            if handle is None:
                raise DispatchError(
                    "cuBLAS gives this thread no handle now; where a graph is captured, make a product in "
                    "the same thread before that"
                )
            if handle.scale(alpha, beta) and plan.problem.gemm.k:
                gpu.workspaces.run(plan.grid, stream, partial(handle.sgemm, plan.blas, stream, addresses))
            else:
                handle.scale_result(plan.blas, stream, addresses[2], beta)
        plan.tally.add()
        if self._recorder is not None:
            self._recorder.help()

    def counts(self) -> list[Counted]:
        return self._tallies.counts()

    def record(self, file: str) -> None:
        if self._recorder is None:
            self._recorder = CallRecorder(file, self._tallies)
            finalize(self, self._recorder.end)
            if self.counts():
                self._recorder.begin()
        elif self._recorder.file != file:
            raise recorded_elsewhere()


def _check_scales(alpha: float, beta: float) -> None:
    try:
        _FLOAT.pack(alpha), _FLOAT.pack(beta)
    except (struct.error, OverflowError, TypeError) as error:
        raise no_scale(alpha, beta, error) from error

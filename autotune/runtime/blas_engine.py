"""cuBLAS alone, for GPUs without a table, if the caller has chosen that instead of an error.

There is no kernel beside it: what cuBLAS cannot do is an error. Copied into exported tables.
"""

from __future__ import annotations

from functools import partial

from ..facts.gemm import MAX_EXTENT, Gemm, Triple
from ..files.errors import DispatchError
from ..kernel.launch import NO_LAUNCH
from .blas_provider import BlasProvider
from .core import core_of
from .cuda_driver import Driver
from .devices import Gpus
from .pick import Pick
from .planner import Key, Plan, Planner
from .product import Product


def blas_pick(gemm: Gemm) -> Pick:
    """What serves any product here."""
    told = partial(str, f"no table is for this GPU: cuBLAS serves {gemm}")
    return Pick("", "default", told, 1, provider="cublas")


class BlasEngine(Planner):
    """Has cuBLAS (pedantic FP32) serve every product on any GPU. Threads may share it."""

    def __init__(self, driver: Driver, blas: BlasProvider) -> None:
        super().__init__(core_of(None), driver, Gpus(driver), blas)

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
        if not (gemm.m and gemm.n):
            return Plan(problem, gpu, NO_LAUNCH)
        return self.blas_plan(problem, gpu, aligned)

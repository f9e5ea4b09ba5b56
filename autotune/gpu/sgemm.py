"""A candidate on the GPU: its kernels and how one product is enqueued, as launch.Grid says."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import launch
from ..gemm import Gemm
from ..kernel import ENTRY, REDUCE_ENTRY
from ..launch import REDUCE_THREADS, LaunchSpec
from .memory import OperandSet
from .module import Module, pack


class Sgemm:
    """One product C = op(A) op(B) with alpha = 1 and beta = 0, ready to launch on any operand set.

    `workspace` is the address of split-K's memory (0 where it needs none); `entry` names the kernel.
    Raises CudaError where the cubin lacks an entry or the device refuses its shared memory.
    """

    def __init__(
        self, module: Module, spec: LaunchSpec, gemm: Gemm, workspace: int, entry: str = ENTRY
    ) -> None:
        grid = launch.plan(spec, gemm.m, gemm.n)
        self._kernel = module.kernel(entry)
        self._kernel.allow_smem(spec.smem_bytes)
        self._grid = grid.size
        self._threads, self._smem_bytes = spec.threads, spec.smem_bytes
        self._a, self._b, self._c = (ctypes.c_void_p() for _ in range(3))
        extents = [ctypes.c_int32(extent) for extent in (gemm.m, gemm.n, gemm.k)]
        alpha, beta = ctypes.c_float(1.0), ctypes.c_float(0.0)
        lda, ldb, ldc = (ctypes.c_int64(lead) for lead in (gemm.lda, gemm.ldb, gemm.ldc))
        sums, splits = ctypes.c_void_p(workspace), ctypes.c_int32(grid.split_k)
        self._values: list[Any] = [
            *(*extents, alpha, self._a, lda, self._b, ldb, beta, self._c, ldc, sums, splits)
        ]
        self._arguments = pack(self._values)
        self._reduce = module.kernel(REDUCE_ENTRY) if grid.reduce_blocks else None
        self._reduce_grid = (grid.reduce_blocks, 1)
        padded = (ctypes.c_int32(grid.padded_m), ctypes.c_int32(grid.padded_n))
        self._reduce_values: list[Any] = [*(*extents[:2], alpha, beta, self._c, ldc, sums, splits, *padded)]
        self._reduce_arguments = pack(self._reduce_values)

    def enqueue(self, stream: Any, operands: OperandSet) -> None:
        """Put one product on the stream."""
        self._a.value, self._b.value, self._c.value = operands.a, operands.b, operands.c
        self._kernel.launch(stream, self._grid, self._threads, self._arguments, self._smem_bytes)
        if self._reduce is not None:
            self._reduce.launch(stream, self._reduce_grid, REDUCE_THREADS, self._reduce_arguments)

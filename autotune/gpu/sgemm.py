"""A candidate on the GPU: its kernels and how a product or a batch is enqueued, as launch.Grid says."""

from __future__ import annotations

import ctypes
from typing import Any

from ..facts.gemm import Gemm
from ..kernel import launch
from ..kernel.launch import PACK_SMEM_BYTES, PACK_THREADS, REDUCE_THREADS, SCHEDULE_WORDS, LaunchSpec, Pack
from ..kernel.template import ENTRY, PACK_ENTRY, REDUCE_ENTRY
from .memory import OperandSet
from .module import Module, pack

ScheduleArgument = ctypes.c_uint32 * SCHEDULE_WORDS  # `Schedule` of the kernels


class BatchArgument(ctypes.Structure):
    """`Batch` of the kernels: elements from one product to the next, and how many products there are."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("stride_a", "stride_b", "stride_c")),
        ("products", ctypes.c_int32),
    )


class EpilogueArgument(ctypes.Structure):
    """`Epilogue` of the kernels; all 0 where a kernel has none. Addresses, then elements."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("bias", "kept")),
        *((name, ctypes.c_int64) for name in ("ld_kept", "stride_bias", "stride_kept")),
    )


class Packing:
    """The copy of one operand to its place in the workspace, ready to launch once `source` is set."""

    def __init__(self, plan: Pack, gemm: Gemm, workspace: int) -> None:
        self.is_a, self.padded, self.blocks = plan.is_a, plan.padded, plan.blocks
        self.address = workspace + plan.offset
        self.source = ctypes.c_void_p()
        extents = [ctypes.c_int32(plan.extent), ctypes.c_int32(gemm.k)]
        lead = ctypes.c_int64(gemm.lda if plan.is_a else gemm.ldb)
        is_k_major, to = ctypes.c_int32(plan.is_k_major), ctypes.c_void_p(self.address)
        counts = [ctypes.c_int32(count) for count in (plan.padded, plan.blocks_per_product)]
        stride = ctypes.c_int64(plan.stride)
        self._values: list[Any] = [*extents, self.source, lead, is_k_major, to, *counts, stride]
        self.arguments = pack(self._values)


class Sgemm:
    """C = op(A) op(B) with alpha = 1 and beta = 0, a product or a batch, ready to launch on any operand set.

    `workspace` is the address of scratch memory and counters (0 where it needs none); `entry` names the
    kernel, `epilogue` is what one that was compiled with an epilogue reads. Raises CudaError where the cubin
    lacks an entry or the device refuses its shared memory."""

    def __init__(
        self,
        module: Module,
        spec: LaunchSpec,
        gemm: Gemm,
        workspace: int,
        entry: str = ENTRY,
        epilogue: EpilogueArgument | None = None,
    ) -> None:
        grid = launch.plan(spec, gemm.m, gemm.n, gemm.k, gemm.strides)
        self._kernel = module.kernel(entry)
        self._kernel.allow_smem(spec.smem_bytes)
        self._grid = grid.size
        self._threads, self._smem_bytes = spec.threads, spec.smem_bytes
        self._overlaps, self._a_type = spec.overlaps, spec.variant.a_type
        self._pack = module.kernel(PACK_ENTRY) if grid.packs else None
        self._packs = [Packing(pack, gemm, workspace) for pack in grid.packs]
        self._a, self._b, self._c = (ctypes.c_void_p() for _ in range(3))
        extents = [ctypes.c_int32(extent) for extent in (gemm.m, gemm.n, gemm.k)]
        alpha, beta = ctypes.c_float(1.0), ctypes.c_float(0.0)
        lda, ldb, ldc = (ctypes.c_int64(lead) for lead in (gemm.lda, gemm.ldb, gemm.ldc))
        for packing in self._packs:
            (lda if packing.is_a else ldb).value = packing.padded
        sums, splits = ctypes.c_void_p(workspace + grid.pack_bytes), ctypes.c_int32(grid.split_k)
        schedule = ScheduleArgument(*launch.schedule(spec, grid))
        batch, epilogue = BatchArgument(*grid.strides, grid.products), epilogue or EpilogueArgument()
        self._values: list[Any] = [
            *(*extents, alpha, self._a, lda, self._b, ldb, beta, self._c, ldc, sums, splits),
            *(schedule, batch, epilogue),
        ]
        self._arguments = pack(self._values)
        self._reduce = module.kernel(REDUCE_ENTRY) if grid.reduce_blocks else None
        self._reduce_grid = (grid.reduce_blocks, 1)
        self._reduce_smem_bytes = grid.reduce_smem_bytes
        planes = (grid.padded_m, grid.padded_n, grid.reduce_group_bits, grid.reduce_blocks_per_product)
        self._reduce_values: list[Any] = [
            *(*extents[:2], alpha, beta, self._c, ldc, sums, splits, *map(ctypes.c_int32, planes)),
            *(ctypes.c_int64(gemm.strides.stride_c), epilogue),
        ]
        self._reduce_arguments = pack(self._reduce_values)

    def enqueue(self, stream: Any, operands: OperandSet) -> None:
        """Put one launch on the stream."""
        self._a.value = operands.of_a(self._a_type)
        self._b.value, self._c.value = operands.b, operands.c
        for packing in self._packs:
            assert self._pack is not None
            source = self._a if packing.is_a else self._b
            packing.source.value, source.value = source.value, packing.address
            self._pack.launch(
                *(stream, (packing.blocks, 1), PACK_THREADS, packing.arguments, PACK_SMEM_BYTES),
                overlaps=self._overlaps,
            )
        self._kernel.launch(
            *(stream, self._grid, self._threads, self._arguments, self._smem_bytes), overlaps=self._overlaps
        )
        if self._reduce is not None:
            self._reduce.launch(
                *(stream, self._reduce_grid, REDUCE_THREADS, self._reduce_arguments, self._reduce_smem_bytes),
                overlaps=self._overlaps,
            )

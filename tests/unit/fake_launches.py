"""What the core launches (core/plan.c), said again in Python: the oracle of test_core.py."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any, NamedTuple

from autotune.facts.gemm import FLOAT_BYTES, SINGLE, Batch, Triple
from autotune.kernel.launch import (
    EPILOGUE_WORDS,
    PACK_SMEM_BYTES,
    PACK_THREADS,
    REDUCE_THREADS,
    SCHEDULE_WORDS,
    Grid,
    Pack,
)
from autotune.runtime.calls.product import Product
from autotune.runtime.launch.cuda_driver import Driver
from autotune.runtime.launch.planner import CorePlan

# Arguments of the kernels, as documented at launch.Grid, and where each lies in the packed values.
# Of the epilogue only the bias is ever other than 0: all products of a batch share it.
_EPILOGUE = f"Q{8 * (EPILOGUE_WORDS - 1)}x"
_SGEMM = struct.Struct(f"=iiifQqQqf4xQqQi{SCHEDULE_WORDS}I4xqqqi4x{_EPILOGUE}")
_ALPHA = struct.Struct("=f")
_ALPHA_OFFSET = 12
_SGEMM_OFFSETS = (0, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 84, 144, 176)
_REDUCE = struct.Struct(f"=iiffQqQiiiii4xq{_EPILOGUE}")
_REDUCE_OFFSETS = (0, 4, 8, 12, 16, 24, 32, 40, 44, 48, 52, 56, 64, 72)
_PACK = struct.Struct("=iiQqi4xQiiq")
_PACK_OFFSETS = (0, 4, 8, 16, 24, 32, 40, 44, 48)


class LaunchableKernel(NamedTuple):
    """Handles of its functions, and what a launch tells the driver."""

    sgemm: int
    reduce: int
    pack: int
    threads: int
    smem_bytes: int
    overlaps: bool


class Launched(NamedTuple):
    """A plan: the core's, and what it has to launch."""

    problem: Product
    kernel: LaunchableKernel
    grid: Grid
    schedule: tuple[int, ...]
    core: CorePlan
    loop: Batch = SINGLE


class _Arguments(threading.local):
    """Kernel arguments of one thread: packed values, and for each kernel the array of their addresses."""

    def __init__(self) -> None:
        self.sgemm, self._sgemm_pointers = self._make(_SGEMM, _SGEMM_OFFSETS)
        self.reduce, self._reduce_pointers = self._make(_REDUCE, _REDUCE_OFFSETS)
        self.pack, self._pack_pointers = self._make(_PACK, _PACK_OFFSETS)
        self.at_sgemm = ctypes.addressof(self._sgemm_pointers)
        self.at_reduce = ctypes.addressof(self._reduce_pointers)
        self.at_pack = ctypes.addressof(self._pack_pointers)

    @staticmethod
    def _make(layout: struct.Struct, offsets: tuple[int, ...]) -> tuple[Any, Any]:
        values = ctypes.create_string_buffer(layout.size)
        base = ctypes.addressof(values)
        return values, (ctypes.c_void_p * len(offsets))(*(base + offset for offset in offsets))


class FakeLaunches:
    """Launches plans on a driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._arguments = driver, _Arguments()

    def launch_all(
        self,
        plan: Launched,
        stream: int,
        addresses: Triple,
        alpha: float,
        beta: float,
        workspace: int,
        bias: int = 0,
    ) -> None:
        """Every launch of a plan that has some, with its workspace at an address: 0 where it needs none. The
        GPU's context must be current."""
        for product in range(plan.loop.products):
            a, b, c = (
                at + FLOAT_BYTES * product * apart for at, apart in zip(addresses, plan.loop[1:], strict=True)
            )
            self._launch_one(plan, stream, (a, b, c), alpha, beta, workspace, bias)

    def _launch_one(
        self,
        plan: Launched,
        stream: int,
        addresses: Triple,
        alpha: float,
        beta: float,
        workspace: int,
        bias: int,
    ) -> None:
        """A product, or a batch that is launched at once."""
        kernel = plan.kernel
        operands, lds = _where_packed(plan, addresses, workspace)
        behind = workspace + plan.grid.pack_bytes
        self._set(plan, operands, lds, alpha, beta, behind, bias)
        if _ALPHA.unpack_from(self._arguments.sgemm, _ALPHA_OFFSET)[0] != 0:  # else A and B are not read
            for pack in plan.grid.packs:
                self._launch_pack(plan, kernel, stream, pack, addresses, workspace + pack.offset)
        self._launch(plan, kernel, stream)
        if plan.grid.reduce_blocks:
            self._launch_reduce(plan, kernel, stream, addresses, alpha, beta, behind, bias)

    def _set(
        self,
        plan: Launched,
        addresses: Triple,
        lds: Triple,
        alpha: float,
        beta: float,
        workspace: int,
        bias: int,
    ) -> None:
        """Arguments of `sgemm`."""
        gemm = plan.problem.gemm
        lda, ldb, ldc = lds
        a, b, c = addresses
        _SGEMM.pack_into(
            self._arguments.sgemm, 0,
            gemm.m, gemm.n, gemm.k, alpha, a, lda, b, ldb, beta, c, ldc, workspace, plan.grid.split_k,
            *plan.schedule, *plan.grid.strides, plan.grid.products, bias,
        )  # fmt: skip

    def _launch(self, plan: Launched, kernel: LaunchableKernel, stream: int) -> None:
        size, at = plan.grid.size, self._arguments.at_sgemm
        self._driver.launch(
            kernel.sgemm, size, kernel.threads, kernel.smem_bytes, stream, at, kernel.overlaps
        )

    def _launch_pack(
        self, plan: Launched, kernel: LaunchableKernel, stream: int, pack: Pack, addresses: Triple, to: int
    ) -> None:
        arguments, k = self._arguments, plan.problem.gemm.k
        operand, ld = (x[0 if pack.is_a else 1] for x in (addresses, plan.problem.lds))
        _PACK.pack_into(
            arguments.pack, 0,
            pack.extent, k, operand, ld, pack.is_k_major, to, pack.padded, pack.blocks_per_product,
            pack.stride,
        )  # fmt: skip
        size, at = (pack.blocks, 1), arguments.at_pack
        self._driver.launch(kernel.pack, size, PACK_THREADS, PACK_SMEM_BYTES, stream, at, kernel.overlaps)

    def _launch_reduce(
        self,
        plan: Launched,
        kernel: LaunchableKernel,
        stream: int,
        addresses: Triple,
        alpha: float,
        beta: float,
        workspace: int,
        bias: int,
    ) -> None:
        arguments, grid, gemm = self._arguments, plan.grid, plan.problem.gemm
        _REDUCE.pack_into(
            arguments.reduce, 0,
            gemm.m, gemm.n, alpha, beta, addresses[2], plan.problem.lds[2], workspace,
            grid.split_k, grid.padded_m, grid.padded_n, grid.reduce_group_bits,
            grid.reduce_blocks_per_product, grid.strides[2], bias,
        )  # fmt: skip
        size, smem_bytes, at = (grid.reduce_blocks, 1), grid.reduce_smem_bytes, arguments.at_reduce
        self._driver.launch(kernel.reduce, size, REDUCE_THREADS, smem_bytes, stream, at, kernel.overlaps)


def _where_packed(plan: Launched, addresses: Triple, workspace: int) -> tuple[Triple, Triple]:
    """Addresses and leading dimensions as `sgemm` gets them: of the copies, where operands are packed."""
    a, b, c = addresses
    lda, ldb, ldc = plan.problem.lds
    for pack in plan.grid.packs:
        if pack.is_a:
            a, lda = workspace + pack.offset, pack.padded
        else:
            b, ldb = workspace + pack.offset, pack.padded
    return (a, b, c), (lda, ldb, ldc)

"""The ladder: the classic steps from a naive SGEMM to a tuned one, lowest rung first.

The first three are kernels of their own (kernels/reference.cu), all others instances of the template.
Some of these are legal but not searched: they leave out on purpose what the next step adds. An instance
shows a step's idea within this template. It is faster than the step's first appearance, since the template
always transposes A on its way to shared memory, and always loads one tile ahead into registers.

Sources of the steps: S. Boehm, "How to Optimize a CUDA Matmul Kernel", 2022 (1D tile to warp tile); the
CUDA C++ Best Practices Guide (padding); NVIDIA's CUTLASS (double buffer); salykova, "Advanced Matrix
Multiplication Optimization on NVIDIA GPUs", 2025 (128 x 256 x 8 by cp.async).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..facts.gemm import FLOAT_BYTES, Gemm
from ..files.errors import UsageError
from .config import Config
from .launch import LaunchSpec, Variant

REFERENCE_FILE = "reference.cu"
REFERENCE_TILE = 32  # TILE in reference.cu: a block's piece of C, one thread per element


@dataclass(frozen=True)
class ReferenceKernel:
    """A kernel of reference.cu by its entry. It serves row-major NN problems of any size."""

    entry: str
    smem_bytes: int = 0

    @property
    def spec(self) -> LaunchSpec:
        """How it is launched: like the template, a block per tile of C."""
        tile, smem_bytes = REFERENCE_TILE, self.smem_bytes
        return LaunchSpec(
            bm=tile, bn=tile, bk=1, threads=tile * tile, smem_bytes=smem_bytes, vec_a=1, vec_b=1, vec_c=1,
            is_exact=False, reduction="none", split_k=1, variant=Variant(),
        )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One rung: a kernel, and in a sentence what it adds to the rung below."""

    name: str
    adds: str
    kernel: ReferenceKernel | Config


def _template(**changes: Any) -> Config:
    """An instance that is plain (single floats through registers, one stage) but for these."""
    plain = Config(
        slice_k=1, bursts=1, stages=1, pad=0, copy_a="register", copy_b="register", vec_a=1, vec_b=1, vec_c=1,
        order="row", frag_buffers=1, min_blocks=1, edges="predicated", raster="n", group=1, reduction="none",
        split_k=1,
    )  # fmt: skip
    return replace(plain, **changes)


_WIDE = {"vec_a": 4, "vec_b": 4, "vec_c": 4}
_SQUARE = {"bm": 128, "bn": 128, "bk": 8, "unroll_k": 8, "tm": 8, "tn": 8}

STEPS: tuple[Step, ...] = (
    Step("naive", "one thread per element, warps down the columns of C", ReferenceKernel("sgemm_naive")),
    Step("coalesced", "warps along the rows of C: whole memory transactions",
         ReferenceKernel("sgemm_coalesced")),
    Step("shared-memory tile", "32x32 tiles of A and B, read 32 times each from shared memory",
         ReferenceKernel("sgemm_shared", smem_bytes=2 * FLOAT_BYTES * REFERENCE_TILE**2)),
    Step("1D thread tile", "8 rows of C per thread: an element of B is read once for 8 FMAs",
         _template(bm=64, bn=64, bk=8, unroll_k=8, wm=8, wn=32, tm=8, tn=1)),
    Step("2D thread tile", "8x8 elements of C per thread: 16 reads for 64 FMAs",
         _template(**_SQUARE, wm=16, wn=128)),
    Step("vectorised", "16 bytes per access to global memory", _template(**_SQUARE, **_WIDE, wm=16, wn=128)),
    Step("warp tile", "64x64 of C per warp, 8x16 per thread: reads of a warp overlap",
         _template(**_WIDE, bm=128, bn=128, bk=16, unroll_k=16, wm=64, wn=64, tm=8, tn=16)),
    Step("padded double buffer",
         "two stages and two fragments: the next are loaded while these are multiplied; padded rows",
         _template(**_SQUARE, **_WIDE, wm=32, wn=64, stages=2, pad=4, frag_buffers=2)),
    Step("cp.async 128x256x8", "copies that bypass registers, 16x8 elements of C per thread",
         _template(**{**_WIDE, "vec_a": 1},  # cp.async cannot transpose a vector of A
                   bm=128, bn=256, bk=8, unroll_k=8, wm=64, wn=64, tm=16, tn=8,
                   stages=2, pad=4, copy_a="async", copy_b="async")),
)  # fmt: skip


def steps(gemm: Gemm) -> tuple[Step, ...]:
    """The rungs for this problem: instances whose tiles fit C exactly are told so. Raises UsageError for a
    layout other than NN and for a batch, which the reference kernels do not know, and for an empty C."""
    if gemm.is_batched:
        raise UsageError(f"the ladder takes single products only; {gemm} is a batch")
    if gemm.layout != "NN":
        raise UsageError(f"the ladder takes NN problems only; {gemm} is {gemm.layout}")
    gemm.need_output()
    return tuple(replace(step, kernel=_fitted(step.kernel, gemm)) for step in STEPS)


def _fitted(kernel: ReferenceKernel | Config, gemm: Gemm) -> ReferenceKernel | Config:
    if isinstance(kernel, Config) and gemm.m % kernel.bm == 0 and gemm.n % kernel.bn == 0:
        return replace(kernel, edges="exact")
    return kernel

"""One instance of the kernel on tensor cores of any GPU since sm_80 (`kernels/mma_sgemm.cu`): its parameters,
rules and launch.

Where a GPU has warpgroups (compute capability 9.0) tensor_config.py's is faster, and is what a search there
tries; this one is legal all the same. Copied into exported tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, Gemm
from . import tensor_config as tensor
from .config import WARP, Parameter
from .launch import WORKSPACE_LIMIT, Variant
from .resources import MAX_REGISTERS, REGISTER_GRANULE
from .rules import Rule
from .tensor_config import BF16X6, TF32X3, ConfigOnTensorCores

FIRST = 8, 0  # compute capability: earlier ones have no asynchronous copies, and neither TF32 nor BF16
GROUP = 16  # of k, that a warp has in registers at a time
# A third of the tensor cores' rate in TF32, which a sixth of that in BF16 equals, over that of FMAs, by data
# sheets. Not of others: their tensor cores do the products of parts more slowly than FMAs do the whole.
OVER_FMA = {(8, 0): 156 / 3 / 19.5, (10, 0): 1100 / 3 / 75}
SPARE_REGISTERS = 16  # of addresses, and loads on their way: the least seen


class ConfigOfWarps(ConfigOnTensorCores):
    """What configs of kernels without warpgroups have: an SM may hold several of their blocks."""

    @staticmethod
    def num_threads(c: Any) -> Any:
        """Of a block; of a config or columns."""

    @staticmethod
    def register_estimate(c: Any) -> Any:
        """Of a thread; of a config or columns."""

    @property
    def threads(self) -> int:
        return int(self.num_threads(self))

    @property
    def expected_registers(self) -> int:
        return int(self.register_estimate(self))

    def blocks_per_sm(self, limits: DeviceLimits, of: Gemm | Variant, registers: int) -> int:
        of_thread = -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE
        of_registers = limits.regs_per_sm // (self.threads * of_thread)
        of_smem = limits.smem_per_sm // (int(self.smem_bytes(self, of)) + limits.smem_reserved)
        return min(of_registers, of_smem, limits.threads_per_sm // self.threads, limits.blocks_per_sm)


@frozen()
class MmaConfig(ConfigOfWarps):
    """One instance of that kernel and how it is launched. `PARAMETERS` says what each of these is."""

    main_file = "mma_sgemm.cu"
    summed = ("bk", "promote_k", "flush_k", "reduction", "split_k", "scheme")
    bm: int = 128
    bn: int = 128
    bk: int = 16
    wm: int = 64
    wn: int = 32
    stages: int = 4
    promote_k: int = 16
    flush_k: int = 0
    vec_a: int = 4
    vec_b: int = 4
    vec_c: int = 2
    pack_a: int = 0
    pack_b: int = 0
    group: int = 8
    raster: str = "n"
    reduction: str = "none"
    split_k: int = 1
    scheme: str = TF32X3

    @staticmethod
    def num_threads(c: Any) -> Any:
        return c.bm // c.wm * (c.bn // c.wn) * WARP

    @staticmethod
    def register_estimate(c: Any) -> Any:
        """The least of a thread: both sets of sums, the parts of B of a group, those of A for 16 rows."""
        words = np.where(np.equal(c.scheme, BF16X6), 6, 8)  # of all parts, of 16 of k
        return c.wm * c.wn // WARP * 2 + c.wn // 8 * words + 2 * words + SPARE_REGISTERS

    @staticmethod
    def smem_bytes(c: Any, of: Gemm | Variant) -> Any:
        """Tiles of A and B, rows padded as mma_config.cuh says; flushed sums."""
        tile_a = np.where((c.pack_a > 0) | of.trans_a, c.bk * (c.bm + 8), c.bm * (c.bk + 4))
        tile_b = np.where((c.pack_b > 0) | np.logical_not(of.trans_b), c.bk * (c.bn + 8), c.bn * (c.bk + 4))
        return FLOAT_BYTES * (c.stages * (tile_a + tile_b) + c.bm * c.bn * (c.flush_k > 0))


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("bm", (64, 128), "rows of C per block (BM)", "elements"),
    Parameter("bn", (64, 128), "columns of C per block (BN)", "elements"),
    Parameter("bk", (16, 32), "depth of k per stage (BK)", "steps"),
    Parameter("wm", (32, 64), "rows of C per warp (WM)", "elements"),
    Parameter("wn", (32, 64), "columns of C per warp (WN)", "elements"),
    Parameter("stages", (2, 3, 4, 5), "tiles of A and B held in shared memory", "tiles"),
    Parameter("promote_k", (16, 32), "k after which sums leave the tensor cores", "steps"),
    tensor.PARAMETER["flush_k"],
    Parameter("vec_a", (1, 4), "elements of A per copy from global memory", "elements"),
    *(tensor.PARAMETER[name] for name in ("vec_b", "vec_c", "pack_a", "pack_b", "raster", "group")),
    *(tensor.PARAMETER[name] for name in ("reduction", "split_k", "scheme")),
)
PARAMETER = MmaConfig.parameters = {p.name: p for p in PARAMETERS}


_WARPS = ("bm", "bn", "wm", "wn")

RULES: tuple[Rule, ...] = (
    Rule("mma-warps", "template", _WARPS, "a block is four warps or more: its threads fill rows of tiles",
         lambda c, d, g: MmaConfig.num_threads(c) >= 4 * WARP),
    Rule("mma-promote", "template", ("bk", "promote_k"), "sums leave the tensor cores within a tile",
         lambda c, d, g: c.bk % c.promote_k == 0),
    Rule("mma-flush", "template", ("bk", "flush_k"), "sums are flushed after whole tiles",
         lambda c, d, g: c.flush_k % c.bk == 0),
    Rule("mma-device", "device", ("bm",),
         "tensor cores that take TF32 and BF16, and asynchronous copies, need sm_80 or later",
         lambda c, d, g: (c.bm > 0) & (d.compute_capability >= FIRST)),
    Rule("mma-registers", "device", (*_WARPS, "scheme"),
         "sums and parts fit the registers that a block leaves a thread",
         lambda c, d, g: MmaConfig.register_estimate(c)
         <= np.minimum(MAX_REGISTERS, d.regs_per_sm // MmaConfig.num_threads(c))),
    Rule("mma-stages", "device", ("bm", "bn", "bk", "stages", "flush_k", "pack_a", "pack_b"),
         "stages and flushed sums fit the shared memory of a block",
         lambda c, d, g: MmaConfig.smem_bytes(c, g) <= d.smem_per_block),
    Rule("extent-a", "shape", ("vec_a", "pack_a"), "rows of A (as stored) are whole vectors, or A is packed",
         lambda c, d, g: (g.lda % c.vec_a == 0) | (c.pack_a == 1)),
    tensor.EXTENT_B,
    tensor.EXTENT_C,
    tensor.type_rule("mma", "bm", "is converted before"),
    tensor.SPLIT_REDUCTION,
    Rule("pack-workspace", "shape", ("bm", "bn", "pack_a", "pack_b"), "packed operands fit 1 GiB",
         lambda c, d, g: MmaConfig.packed_bytes(c, g) <= WORKSPACE_LIMIT),
    tensor.results_rule("mma", "bm"),
    tensor.WORTH_FLUSH,
    tensor.WORTH_HEIGHT,
    tensor.WORTH_WIDTH,
    Rule("worth-vector-a", "worth", ("vec_a", "pack_a"), "the widest vectors that A allows",
         lambda c, d, g: tensor.is_widest(c.vec_a, 4, g.lda, c.pack_a)),
    tensor.WORTH_VECTOR_B,
    tensor.WORTH_VECTOR_C,
    tensor.WORTH_PACK,
    tensor.worth_split(64),
    tensor.WORTH_GROUP,
)  # fmt: skip
MmaConfig.rules = RULES

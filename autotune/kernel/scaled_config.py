"""One instance of either kernel on scaled operands, and how it is launched: parameters, rules, launch.

With warpgroups (`kernels/scaled_sgemm.cu`) they are of compute capability 9.0 alone: its instructions are of
sm_90a, which no other GPU runs. Without (`kernels/halves_sgemm.cu`) they are legal everywhere since 7.5,
whose tensor cores take FP16 alone; where a GPU has warpgroups the others are faster, and are what a search
there tries. A pass before the product scales, splits and packs both operands, whatever their rows are. Copied
into exported tables.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..facts.accuracy_class import FP32_RANGE
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, Gemm
from . import tensor_config as tensor
from .config import WARP, Config, Parameter
from .launch import WORKSPACE_LIMIT, Variant
from .mma_config import ConfigOfWarps, MmaConfig
from .resources import MAX_REGISTERS
from .rules import Rule
from .tensor_config import (
    ARCH,
    BARRIER_BYTES,
    BM,
    NUM_MULTIPLIERS,
    PLANE_ALIGNMENT,
    WARPGROUP,
    ConfigOnTensorCores,
    TensorConfig,
)

FP16X3 = "fp16x3"
PACK_DEPTH = 64  # of blocks of packed operands
# A third of the tensor cores' rate in FP16, 2,048 multiply-adds per SM and cycle, over that of 128 lanes
OVER_FMA = 2048 / 3 / 128

HALVES_FIRST = 7, 5  # compute capability
WN = 32  # columns of C per warp
STAGES = 2
# A third of the tensor cores' rate in FP16, summed in FP32, over that of FMAs, by data sheets: 512
# multiply-adds per SM and cycle beside 64 lanes (7.5), 1,024 beside 64 (8.0), 512 beside 128 (8.6, 8.9,
# 12.0), 2,250 TFLOP/s beside 75 (10.0). GeForce cards have half of it.
HALVES_OVER_FMA = {(7, 5): 512 / 3 / 64, (8, 0): 1024 / 3 / 64, (10, 0): 2250 / 3 / 75}
HALVES_OVER_FMA_OF_OTHERS = 512 / 3 / 128
# Of addresses, sums of tensor cores and what is read ahead: with fewer the compiler spills
SPARE_REGISTERS = 112


class ConfigOnScaled(ConfigOnTensorCores):
    """What is asked of any config, and alike in all of kernels on scaled operands."""

    accuracy: ClassVar[str] = FP32_RANGE
    pack_depth: ClassVar[int] = PACK_DEPTH
    pack_a: ClassVar[int] = 1
    pack_b: ClassVar[int] = 1
    vec_a: ClassVar[int] = 1
    vec_b: ClassVar[int] = 1
    flush_k: ClassVar[int] = 0
    scheme: ClassVar[str] = FP16X3


@frozen()
class ScaledConfig(ConfigOnScaled):
    """One instance of the kernel with warpgroups."""

    main_file = "scaled_sgemm.cu"
    arch = ARCH
    summed = ("promote_k", "reduction", "split_k")
    bm = BM
    bk = PACK_DEPTH
    bn: int = 128
    stages: int = 3
    promote_k: int = 64
    vec_c: int = 2
    group: int = 8
    raster: str = "n"
    reduction: str = "none"
    split_k: int = 1

    threads = WARPGROUP * (1 + NUM_MULTIPLIERS)

    @staticmethod
    def smem_bytes(c: Any, of: Gemm | Variant) -> Any:
        """Tiles, their divisors, barriers, alignment."""
        floats = c.stages * (BM + c.bn) * (PACK_DEPTH + 1)
        return FLOAT_BYTES * floats + BARRIER_BYTES * c.stages + PLANE_ALIGNMENT


@frozen()
class HalvesConfig(ConfigOnScaled, ConfigOfWarps):
    """One instance of the kernel without warpgroups."""

    main_file = "halves_sgemm.cu"
    summed = ("depth", "reduction", "split_k")
    bm: int = 128
    bn: int = 128
    wm: int = 64
    depth: int = 16
    vec_c: int = 2
    group: int = 8
    raster: str = "n"
    reduction: str = "none"
    split_k: int = 1

    @property
    def bk(self) -> int:  # type: ignore[override]
        return self.depth

    @property
    def promote_k(self) -> int:
        """After which sums leave the tensor cores."""
        return self.depth

    @staticmethod
    def num_threads(c: Any) -> Any:
        return c.bm // c.wm * (c.bn // WN) * WARP

    @staticmethod
    def register_estimate(c: Any) -> Any:
        """Of a thread: sums, the words of B of a slice, those of A for 16 rows, what it copies, others."""
        words = c.depth // 8  # of a row and part
        copied = (c.bm + c.bn) * c.depth // HalvesConfig.num_threads(c)
        return c.wm * WN // WARP + WN // 8 * 2 * words + 4 * words + copied + SPARE_REGISTERS

    @staticmethod
    def smem_bytes(c: Any, of: Gemm | Variant) -> Any:
        """Slices of tiles, and their divisors."""
        return FLOAT_BYTES * STAGES * (c.bm + c.bn) * (c.depth + 1)


OnTensorCores = TensorConfig | MmaConfig | ScaledConfig | HalvesConfig
AnyConfig = Config | OnTensorCores
ON_TENSOR_CORES: tuple[type[OnTensorCores], ...] = (ScaledConfig, TensorConfig, MmaConfig, HalvesConfig)
KINDS: tuple[type[AnyConfig], ...] = (Config, *ON_TENSOR_CORES)


def kind_of(names: Collection[str]) -> type[AnyConfig]:
    """The configs with most of these parameters: a user may name some of a kernel's alone."""
    return _kind_of(tuple(names))


@lru_cache(1 << 10)
def _kind_of(names: tuple[str, ...]) -> type[AnyConfig]:
    return max(KINDS, key=lambda kind: sum(name in kind.parameters for name in names))


_OF_SCALED: tuple[Parameter, ...] = (
    Parameter("bn", (64, 128, 192), "columns of C per block (BN)", "elements"),
    Parameter("stages", (2, 3, 4, 5, 6), "tiles of A and B held in shared memory", "tiles"),
    Parameter("promote_k", (16, 32, 64), "k after which sums leave the tensor cores", "steps"),
    *(tensor.PARAMETER[name] for name in ("vec_c", "raster", "group", "reduction", "split_k")),
)
ScaledConfig.parameters = {p.name: p for p in _OF_SCALED}
ScaledConfig.rules = (
    Rule("scaled-device", "device", ("bn",),
         "tensor cores are asked in the way of compute capability 9.0, which no other GPU knows",
         lambda c, d, g: (c.bn > 0) & (d.compute_capability == (9, 0))),
    Rule("scaled-stages", "device", ("bn", "stages"), "stages fit the shared memory of a block",
         lambda c, d, g: ScaledConfig.smem_bytes(c, g) <= d.smem_per_block),
    tensor.SPLIT_REDUCTION,
    Rule("pack-workspace", "shape", ("bn",), "packed operands fit 1 GiB",
         lambda c, d, g: ScaledConfig.packed_bytes(c, g) <= WORKSPACE_LIMIT),
    tensor.EXTENT_C,
    tensor.type_rule("scaled", "bn", "needs no scale"),
    tensor.results_rule("scaled", "bn"),
    tensor.WORTH_WIDTH,
    tensor.worth_split(128),
    tensor.WORTH_VECTOR_C,
    tensor.WORTH_GROUP,
)  # fmt: skip


_OF_HALVES: tuple[Parameter, ...] = (
    Parameter("bm", (64, 128), "rows of C per block (BM)", "elements"),
    Parameter("bn", (64, 128), "columns of C per block (BN)", "elements"),
    Parameter("wm", (32, 64), "rows of C per warp (WM)", "elements"),
    Parameter("depth", (16, 32), "k per stage, after which sums leave the tensor cores", "steps"),
    *(tensor.PARAMETER[name] for name in ("vec_c", "raster", "group", "reduction", "split_k")),
)
HalvesConfig.parameters = {p.name: p for p in _OF_HALVES}
_TILE = ("bm", "bn", "wm")

HalvesConfig.rules = (
    Rule("halves-warps", "template", _TILE, "a block is four warps or more: its threads fill rows of tiles",
         lambda c, d, g: HalvesConfig.num_threads(c) >= 4 * WARP),
    Rule("halves-device", "device", ("bm",), "tensor cores that FP16 is given to so need sm_75 or later",
         lambda c, d, g: (c.bm > 0) & (d.compute_capability >= HALVES_FIRST)),
    Rule("halves-registers", "device", (*_TILE, "depth"),
         "sums, words and what is copied fit the registers that a block leaves a thread",
         lambda c, d, g: HalvesConfig.register_estimate(c)
         <= np.minimum(MAX_REGISTERS, d.regs_per_sm // HalvesConfig.num_threads(c))),
    Rule("halves-stages", "device", ("bm", "bn", "depth"), "two stages fit the shared memory of a block",
         lambda c, d, g: HalvesConfig.smem_bytes(c, g) <= d.smem_per_block),
    tensor.SPLIT_REDUCTION,
    Rule("pack-workspace", "shape", ("bm", "bn"), "packed operands fit 1 GiB",
         lambda c, d, g: HalvesConfig.packed_bytes(c, g) <= WORKSPACE_LIMIT),
    tensor.EXTENT_C,
    tensor.type_rule("halves", "bm", "needs no scale"),
    tensor.results_rule("halves", "bm"),
    tensor.WORTH_HEIGHT,
    tensor.WORTH_WIDTH,
    tensor.worth_split(64),
    tensor.WORTH_VECTOR_C,
    tensor.WORTH_GROUP,
)  # fmt: skip

"""One instance of the kernel on scaled operands without warpgroups (`kernels/halves_sgemm.cu`): parameters,
rules and launch.

Tensor cores of compute capability 7.5 take FP16 alone. Where a GPU has warpgroups (9.0) scaled_config.py's is
faster, and is what a search there tries; this one is legal all the same. Copied into exported tables.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..facts.accuracy_class import FP32_RANGE
from ..facts.device import DeviceLimits
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, Gemm
from . import tensor_config as tensor
from .config import WARP, Parameter
from .launch import WORKSPACE_LIMIT, Variant
from .mma_config import resident
from .resources import MAX_REGISTERS
from .rules import Rule
from .tensor_config import ConfigOnTensorCores

MAIN_FILE = "halves_sgemm.cu"
FIRST = 7, 5  # compute capability
FP16X3 = "fp16x3"
PACK_DEPTH = 64  # of blocks of packed operands
WN = 32  # columns of C per warp
STAGES = 2
# A third of the tensor cores' rate in FP16, summed in FP32, over that of FMAs, by data sheets: 512
# multiply-adds per SM and cycle beside 64 lanes (7.5), 1,024 beside 64 (8.0), 512 beside 128 (8.6, 8.9,
# 12.0), 2,250 TFLOP/s beside 75 (10.0). GeForce cards have half of it.
OVER_FMA = {(7, 5): 512 / 3 / 64, (8, 0): 1024 / 3 / 64, (10, 0): 2250 / 3 / 75}
OVER_FMA_OF_OTHERS = 512 / 3 / 128
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
class HalvesConfig(ConfigOnScaled):
    """One instance of that kernel and how it is launched. `PARAMETERS` says what each of these is."""

    main_file = MAIN_FILE
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

    @property
    def threads(self) -> int:
        return int(threads(self))

    @property
    def expected_registers(self) -> int:
        return int(register_estimate(self))

    def blocks_per_sm(self, limits: DeviceLimits, of: Gemm | Variant, registers: int) -> int:
        return resident(limits, self.threads, int(self.smem_bytes(self, of)), registers)

    @staticmethod
    def smem_bytes(c: Any, of: Gemm | Variant) -> Any:
        """Slices of tiles, and their divisors."""
        return FLOAT_BYTES * STAGES * (c.bm + c.bn) * (c.depth + 1)


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("bm", (64, 128), "rows of C per block (BM)", "elements"),
    Parameter("bn", (64, 128), "columns of C per block (BN)", "elements"),
    Parameter("wm", (32, 64), "rows of C per warp (WM)", "elements"),
    Parameter("depth", (16, 32), "k per stage, after which sums leave the tensor cores", "steps"),
    *(tensor.PARAMETER[name] for name in ("vec_c", "raster", "group", "reduction", "split_k")),
)
PARAMETER = HalvesConfig.parameters = {p.name: p for p in PARAMETERS}


def threads(c: Any) -> Any:
    return c.bm // c.wm * (c.bn // WN) * WARP


def register_estimate(c: Any) -> Any:
    """Of a thread: its sums, the words of B of a slice, those of A for 16 rows, what it copies, others."""
    words = c.depth // 8  # of a row and part
    copied = (c.bm + c.bn) * c.depth // threads(c)
    return c.wm * WN // WARP + WN // 8 * 2 * words + 4 * words + copied + SPARE_REGISTERS


_TILE = ("bm", "bn", "wm")

RULES: tuple[Rule, ...] = (
    Rule("halves-warps", "template", _TILE, "a block is four warps or more: its threads fill rows of tiles",
         lambda c, d, g: threads(c) >= 4 * WARP),
    Rule("halves-device", "device", ("bm",), "tensor cores that FP16 is given to so need sm_75 or later",
         lambda c, d, g: (c.bm > 0) & (d.compute_capability >= FIRST)),
    Rule("halves-registers", "device", (*_TILE, "depth"),
         "sums, words and what is copied fit the registers that a block leaves a thread",
         lambda c, d, g: register_estimate(c) <= np.minimum(MAX_REGISTERS, d.regs_per_sm // threads(c))),
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
HalvesConfig.rules = RULES

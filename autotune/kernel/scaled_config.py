"""One instance of the kernel on scaled operands (`kernels/scaled_sgemm.cu`): parameters, rules, launch.

Compute capability 9.0 alone: its instructions are of sm_90a, which no other GPU runs. A pass before the
product scales, splits and packs both operands, whatever their rows are. Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, Gemm
from . import halves_config as halves
from . import tensor_config as tensor
from .config import Config, Parameter
from .halves_config import ConfigOnScaled, HalvesConfig
from .launch import WORKSPACE_LIMIT, Variant
from .mma_config import MmaConfig
from .rules import Rule
from .tensor_config import (
    ARCH,
    BARRIER_BYTES,
    BM,
    NUM_MULTIPLIERS,
    PLANE_ALIGNMENT,
    WARPGROUP,
    TensorConfig,
)

MAIN_FILE = "scaled_sgemm.cu"
FP16X3 = halves.FP16X3
BK = halves.PACK_DEPTH
# A third of the tensor cores' rate in FP16, 2,048 multiply-adds per SM and cycle, over that of 128 lanes
OVER_FMA = 2048 / 3 / 128


@frozen()
class ScaledConfig(ConfigOnScaled):
    """One instance of that kernel and how it is launched. `PARAMETERS` says what each of these is."""

    main_file = MAIN_FILE
    arch = ARCH
    summed = ("promote_k", "reduction", "split_k")
    bm = BM
    bk = BK
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
        floats = c.stages * (BM + c.bn) * (BK + 1)
        return FLOAT_BYTES * floats + BARRIER_BYTES * c.stages + PLANE_ALIGNMENT


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


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("bn", (64, 128, 192), "columns of C per block (BN)", "elements"),
    Parameter("stages", (2, 3, 4, 5, 6), "tiles of A and B held in shared memory", "tiles"),
    Parameter("promote_k", (16, 32, 64), "k after which sums leave the tensor cores", "steps"),
    *(tensor.PARAMETER[name] for name in ("vec_c", "raster", "group", "reduction", "split_k")),
)
PARAMETER = ScaledConfig.parameters = {p.name: p for p in PARAMETERS}


RULES: tuple[Rule, ...] = (
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
ScaledConfig.rules = RULES

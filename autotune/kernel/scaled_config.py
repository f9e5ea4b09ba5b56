"""One instance of the kernel on scaled operands (`kernels/scaled_sgemm.cu`): parameters, rules, launch.

Compute capability 9.0 alone: its instructions are of sm_90a, which no other GPU runs. A pass before the
product scales, splits and packs both operands, whatever their rows are. Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..facts.device import DeviceLimits
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, Gemm
from . import halves_config as halves
from . import mma_config as mma
from . import tensor_config as tensor
from .config import Config, Parameter
from .halves_config import ConfigOnScaled, HalvesConfig
from .launch import WORKSPACE_LIMIT, LaunchSpec, Variant
from .mma_config import MmaConfig
from .resources import launched
from .rules import Rule
from .tensor_config import BARRIER_BYTES, BM, NUM_MULTIPLIERS, PLANE_ALIGNMENT, WARPGROUP, TensorConfig

MAIN_FILE = "scaled_sgemm.cu"
FP16X3 = halves.FP16X3
BK = halves.PACK_DEPTH
sum_bytes = tensor.sum_bytes
# A third of the tensor cores' rate in FP16, 2,048 multiply-adds per SM and cycle, over that of 128 lanes
OVER_FMA = 2048 / 3 / 128


@frozen()
class ScaledConfig(ConfigOnScaled):
    """One instance of that kernel and how it is launched. `PARAMETERS` says what each of these is."""

    bn: int = 128
    stages: int = 3
    promote_k: int = 64
    vec_c: int = 2
    group: int = 8
    raster: str = "n"
    reduction: str = "none"
    split_k: int = 1

    threads = WARPGROUP * (1 + NUM_MULTIPLIERS)

    def launch_spec(self, variant: Variant, limits: DeviceLimits) -> LaunchSpec:
        return LaunchSpec(
            **launched(self), bm=BM, bk=BK, threads=self.threads, smem_bytes=int(smem_bytes(self)),
            is_exact=False, overlaps=True, variant=variant, pack_depth=BK,
        )  # fmt: skip


OnTensorCores = TensorConfig | MmaConfig | ScaledConfig | HalvesConfig
AnyConfig = Config | OnTensorCores


def has_named(point: Collection[str]) -> bool:
    """Whether these are parameters of this kernel, not of another."""
    return "promote_k" in point and not (tensor.has_named(point) or mma.has_named(point))


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("bn", (64, 128, 192), "columns of C per block (BN)", "elements"),
    Parameter("stages", (2, 3, 4, 5, 6), "tiles of A and B held in shared memory", "tiles"),
    Parameter("promote_k", (16, 32, 64), "k after which sums leave the tensor cores", "steps"),
    *(tensor.PARAMETER[name] for name in ("vec_c", "raster", "group", "reduction", "split_k")),
)
PARAMETER = ScaledConfig.parameters = {p.name: p for p in PARAMETERS}
# Of two configs that agree in these, a product of one layout has the same bits
SUMMED = ("promote_k", "reduction", "split_k")


def packed_bytes(c: Any, g: Gemm) -> Any:
    return tensor.packed_of(g, (BM, c.bn), depth=BK)


def smem_bytes(c: Any) -> Any:
    """Of a block: tiles, their divisors, barriers, alignment. Of a config or columns."""
    floats = c.stages * (BM + c.bn) * (BK + 1)
    return FLOAT_BYTES * floats + BARRIER_BYTES * c.stages + PLANE_ALIGNMENT


RULES: tuple[Rule, ...] = (
    Rule("scaled-device", "device", ("bn",),
         "tensor cores are asked in the way of compute capability 9.0, which no other GPU knows",
         lambda c, d, g: (c.bn > 0) & (d.compute_capability == (9, 0))),
    Rule("scaled-stages", "device", ("bn", "stages"), "stages fit the shared memory of a block",
         lambda c, d, g: smem_bytes(c) <= d.smem_per_block),
    tensor.SPLIT_REDUCTION,
    Rule("pack-workspace", "shape", ("bn",), "packed operands fit 1 GiB",
         lambda c, d, g: packed_bytes(c, g) <= WORKSPACE_LIMIT),
    tensor.EXTENT_C,
    tensor.type_rule("scaled", "bn", "needs no scale"),
    tensor.results_rule("scaled", "bn"),
    tensor.WORTH_WIDTH,
    tensor.worth_split(128),
    tensor.WORTH_VECTOR_C,
    tensor.WORTH_GROUP,
)  # fmt: skip

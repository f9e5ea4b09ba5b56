"""One instance of the kernel on scaled operands (`kernels/scaled_sgemm.cu`): parameters, rules, launch.

Compute capability 9.0 alone: its instructions are of sm_90a, which no other GPU runs. A pass before the
product scales, splits and packs both operands, whatever their rows are. Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from ..facts.device import DeviceLimits
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, FP32, Gemm
from . import halves_config as halves
from . import mma_config as mma
from . import tensor_config as tensor
from .config import Config, Parameter, checked
from .halves_config import HalvesConfig
from .launch import PACK_ALIGNMENT, WORKSPACE_LIMIT, LaunchSpec, Variant, packed_floats
from .mma_config import MmaConfig
from .resources import launched
from .rules import LEGAL, Rule, RuleKind
from .tensor_config import (
    BARRIER_BYTES,
    BM,
    LEAST_DEPTH,
    LEAST_RESULTS,
    NUM_MULTIPLIERS,
    PLANE_ALIGNMENT,
    WARPGROUP,
    ConfigOnTensorCores,
    TensorConfig,
    sum_bytes,
)  # fmt: skip

MAIN_FILE = "scaled_sgemm.cu"
FP16X3 = halves.FP16X3
BK = halves.PACK_DEPTH
# A third of the tensor cores' rate in FP16, 2,048 multiply-adds per SM and cycle, over that of 128 lanes
OVER_FMA = 2048 / 3 / 128


@frozen()
class ScaledConfig(ConfigOnTensorCores):
    """One instance of that kernel and how it is launched. `PARAMETERS` says what each of these is."""

    bn: int = 128
    stages: int = 3
    promote_k: int = 64
    vec_c: int = 2
    group: int = 8
    raster: str = "n"
    reduction: str = "none"
    split_k: int = 1

    # What is asked of any config, and alike in all of these
    pack_a: ClassVar[int] = 1
    pack_b: ClassVar[int] = 1
    vec_a: ClassVar[int] = 1
    vec_b: ClassVar[int] = 1
    flush_k: ClassVar[int] = 0
    scheme: ClassVar[str] = FP16X3
    threads: ClassVar[int] = WARPGROUP * (1 + NUM_MULTIPLIERS)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ScaledConfig:
        """As `Config.from_dict`."""
        return cls(**checked(data, PARAMETER))


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
PARAMETER: dict[str, Parameter] = {p.name: p for p in PARAMETERS}
# Of two configs that agree in these, a product of one layout has the same bits
SUMMED = ("promote_k", "reduction", "split_k")


def packed_bytes(c: Any, g: Gemm) -> Any:
    """Memory of packed operands; as launch.plan lays them out."""
    found: Any = 0
    for tile, extent, is_shared in ((BM, g.m, g.shares_a), (c.bn, g.n, g.shares_b)):
        products = 1 if is_shared else g.batch
        own = FLOAT_BYTES * products * packed_floats(BK, g.k, -(-extent // tile) * tile)
        found = found + -(-own // PACK_ALIGNMENT) * PACK_ALIGNMENT
    return found


def workspaces(c: Any, g: Gemm) -> Any:
    """`Grid.workspace_bytes` of launches; of a config or columns."""
    return packed_bytes(c, g) + sum_bytes(c, g)


def smem_bytes(c: Any) -> Any:
    """Of a block: tiles, their divisors, barriers, alignment. Of a config or columns."""
    floats = c.stages * (BM + c.bn) * (BK + 1)
    return FLOAT_BYTES * floats + BARRIER_BYTES * c.stages + PLANE_ALIGNMENT


def _tiles(g: Gemm) -> int:
    return -(-g.m // BM) * -(-g.n // 128) * g.batch


RULES: tuple[Rule, ...] = (
    Rule("scaled-device", "device", ("bn",),
         "tensor cores are asked in the way of compute capability 9.0, which no other GPU knows",
         lambda c, d, g: (c.bn > 0) & (d.compute_capability == (9, 0))),
    Rule("scaled-stages", "device", ("bn", "stages"), "stages fit the shared memory of a block",
         lambda c, d, g: smem_bytes(c) <= d.smem_per_block),
    Rule("split-reduction", "shape", ("reduction", "split_k"),
         "split-K needs a reduction, and nothing else does",
         lambda c, d, g: (c.reduction != "none") == (c.split_k > 1)),
    Rule("pack-workspace", "shape", ("bn",), "packed operands fit 1 GiB",
         lambda c, d, g: packed_bytes(c, g) <= WORKSPACE_LIMIT),
    Rule("extent-c", "shape", ("vec_c",), "rows of C are whole vectors",
         lambda c, d, g: g.ldc % c.vec_c == 0),
    Rule("scaled-type", "shape", ("bn",), "operands are floats: an A of two-byte elements needs no scale",
         lambda c, d, g: (c.bn > 0) & (g.a_type == FP32)),
    Rule("scaled-results", "shape", ("bn",),
         "C has 64 x 64 elements or more: of fewer no error can be compared with SGEMM's",
         lambda c, d, g: (c.bn > 0) & (g.num_results >= LEAST_RESULTS)),
    Rule("worth-width", "worth", ("bn",), "a block tile is not wider than twice C",
         lambda c, d, g: (c.bn == 64) | (c.bn < 2 * g.n)),
    Rule("worth-split", "worth", ("reduction", "split_k"),
         f"shares of k at least {LEAST_DEPTH} deep, where tiles alone leave SMs idle",
         lambda c, d, g: (c.split_k == 1)
         | ((g.k >= LEAST_DEPTH * c.split_k) & (_tiles(g) * c.split_k <= 4 * d.num_sms))),
    Rule("worth-vector-c", "worth", ("vec_c",), "the widest vectors that C allows",
         lambda c, d, g: c.vec_c == (2 if g.ldc % 2 == 0 else 1)),
    Rule("worth-group", "worth", ("raster", "group"),
         "walk along m in plain order or not at all: groups go along n",
         lambda c, d, g: (c.raster == "n") | (c.group == 1)),
)  # fmt: skip


def broken_rules(
    config: ScaledConfig, limits: DeviceLimits, gemm: Gemm, kinds: Sequence[RuleKind] = LEGAL
) -> tuple[Rule, ...]:
    """The rules of those kinds that this config breaks."""
    return tuple(r for r in RULES if r.kind in kinds and not r.holds(config, limits, gemm))


def launch_spec(config: ScaledConfig, variant: Variant) -> LaunchSpec:
    return LaunchSpec(
        **launched(config), bm=BM, bk=BK, threads=config.threads, smem_bytes=int(smem_bytes(config)),
        is_exact=False, overlaps=True, variant=variant, pack_depth=BK,
    )  # fmt: skip

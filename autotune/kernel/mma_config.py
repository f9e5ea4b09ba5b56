"""One instance of the kernel on tensor cores of any GPU since sm_80 (`kernels/mma_sgemm.cu`): its parameters,
rules and launch.

Where a GPU has warpgroups (compute capability 9.0) tensor_config.py's is faster, and is what a search there
tries; this one is legal all the same. Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, FP32, Gemm
from . import tensor_config as tensor
from .config import WARP, Parameter, checked
from .launch import PACK_ALIGNMENT, WORKSPACE_LIMIT, LaunchSpec, Variant
from .resources import MAX_REGISTERS, REGISTER_GRANULE, launched
from .rules import LEGAL, Rule, RuleKind
from .tensor_config import BF16X6, LEAST_DEPTH, LEAST_RESULTS, PACK_USES, TF32X3, ConfigOnTensorCores

MAIN_FILE = "mma_sgemm.cu"
FIRST = 8, 0  # compute capability: earlier ones have no asynchronous copies, and neither TF32 nor BF16
GROUP = 16  # of k, that a warp has in registers at a time
# A third of the tensor cores' rate in TF32, which a sixth of that in BF16 equals, over that of FMAs, by data
# sheets. Not of others: their tensor cores do the products of parts more slowly than FMAs do the whole.
OVER_FMA = {(8, 0): 156 / 3 / 19.5, (10, 0): 1100 / 3 / 75}
SPARE_REGISTERS = 16  # of addresses, and loads on their way: the least seen


@frozen()
class MmaConfig(ConfigOnTensorCores):
    """One instance of that kernel and how it is launched. `PARAMETERS` says what each of these is."""

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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MmaConfig:
        """As `Config.from_dict`."""
        return cls(**checked(data, PARAMETER))

    @property
    def threads(self) -> int:
        return int(threads(self))


def has_named(point: Collection[str]) -> bool:
    """Whether these are parameters of this kernel, not of another: some of warp tiles beside some of tensor
    cores."""
    is_tiled = not {"bm", "bk", "wm", "wn"}.isdisjoint(point)
    return is_tiled and not {"promote_k", "scheme"}.isdisjoint(point) and not tensor.has_named(point)


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
PARAMETER: dict[str, Parameter] = {p.name: p for p in PARAMETERS}
# Of two configs that agree in these, a product of one layout has the same bits
SUMMED = ("bk", "promote_k", "flush_k", "reduction", "split_k", "scheme")


def threads(c: Any) -> Any:
    return c.bm // c.wm * (c.bn // c.wn) * WARP


def packed_bytes(c: Any, g: Gemm) -> Any:
    """Memory of packed operands, padded to whole tiles; as launch.plan lays them out."""
    found: Any = 0
    for packs, tile, extent, is_shared in (
        (c.pack_a, c.bm, g.m, g.shares_a),
        (c.pack_b, c.bn, g.n, g.shares_b),
    ):
        products = 1 if is_shared else g.batch
        own = packs * FLOAT_BYTES * products * g.k * (-(-extent // tile) * tile)
        found = found + -(-own // PACK_ALIGNMENT) * PACK_ALIGNMENT
    return found


def sum_bytes(c: Any, g: Gemm) -> Any:
    """`Grid.sum_bytes` of launches."""
    planes = (c.reduction == "two_pass") * c.split_k * g.batch
    return 1.0 * FLOAT_BYTES * planes * (-(-g.m // c.bm) * c.bm) * (-(-g.n // c.bn) * c.bn)


def workspaces(c: Any, g: Gemm) -> Any:
    """`Grid.workspace_bytes` of launches; of a config or columns."""
    return packed_bytes(c, g) + sum_bytes(c, g)


def smem_bytes(c: Any, of: Gemm | Variant) -> Any:
    """Of a block: tiles of A and B, rows padded as mma_config.cuh says; flushed sums. Of a config or
    columns."""
    tile_a = np.where((c.pack_a > 0) | of.trans_a, c.bk * (c.bm + 8), c.bm * (c.bk + 4))
    tile_b = np.where((c.pack_b > 0) | np.logical_not(of.trans_b), c.bk * (c.bn + 8), c.bn * (c.bk + 4))
    return FLOAT_BYTES * (c.stages * (tile_a + tile_b) + c.bm * c.bn * (c.flush_k > 0))


def register_estimate(c: Any) -> Any:
    """The least of a thread: both sets of sums, the parts of B of a group, those of A for 16 rows."""
    words = np.where(np.equal(c.scheme, BF16X6), 6, 8)  # of all parts, of 16 of k
    return c.wm * c.wn // WARP * 2 + c.wn // 8 * words + 2 * words + SPARE_REGISTERS


def blocks_per_sm(c: Any, limits: DeviceLimits, of: Gemm | Variant, registers: Any) -> Any:
    """Blocks of one kernel that an SM holds at a time, by the compiler's registers per thread."""
    return resident(limits, threads(c), smem_bytes(c, of), registers)


def resident(limits: DeviceLimits, num_threads: Any, smem: Any, registers: Any) -> Any:
    """The same of blocks of so many threads and bytes of shared memory."""
    of_registers = limits.regs_per_sm // (
        num_threads * (-(-registers // REGISTER_GRANULE) * REGISTER_GRANULE)
    )
    of_smem = limits.smem_per_sm // (smem + limits.smem_reserved)
    found = np.minimum(np.minimum(of_registers, of_smem), limits.threads_per_sm // num_threads)
    return np.minimum(found, limits.blocks_per_sm)


def _tiles(g: Gemm) -> int:
    return -(-g.m // 128) * -(-g.n // 64) * g.batch


_WARPS = ("bm", "bn", "wm", "wn")

RULES: tuple[Rule, ...] = (
    Rule("mma-warps", "template", _WARPS, "a block is four warps or more: its threads fill rows of tiles",
         lambda c, d, g: threads(c) >= 4 * WARP),
    Rule("mma-promote", "template", ("bk", "promote_k"), "sums leave the tensor cores within a tile",
         lambda c, d, g: c.bk % c.promote_k == 0),
    Rule("mma-flush", "template", ("bk", "flush_k"), "sums are flushed after whole tiles",
         lambda c, d, g: c.flush_k % c.bk == 0),
    Rule("mma-device", "device", ("bm",),
         "tensor cores that take TF32 and BF16, and asynchronous copies, need sm_80 or later",
         lambda c, d, g: (c.bm > 0) & (d.compute_capability >= FIRST)),
    Rule("mma-registers", "device", (*_WARPS, "scheme"),
         "sums and parts fit the registers that a block leaves a thread",
         lambda c, d, g: register_estimate(c) <= np.minimum(MAX_REGISTERS, d.regs_per_sm // threads(c))),
    Rule("mma-stages", "device", ("bm", "bn", "bk", "stages", "flush_k", "pack_a", "pack_b"),
         "stages and flushed sums fit the shared memory of a block",
         lambda c, d, g: smem_bytes(c, g) <= d.smem_per_block),
    Rule("extent-a", "shape", ("vec_a", "pack_a"), "rows of A (as stored) are whole vectors, or A is packed",
         lambda c, d, g: (g.lda % c.vec_a == 0) | (c.pack_a == 1)),
    Rule("extent-b", "shape", ("vec_b", "pack_b"), "rows of B (as stored) are whole vectors, or B is packed",
         lambda c, d, g: (g.ldb % c.vec_b == 0) | (c.pack_b == 1)),
    Rule("extent-c", "shape", ("vec_c",), "rows of C are whole vectors",
         lambda c, d, g: g.ldc % c.vec_c == 0),
    Rule("mma-type", "shape", ("bm",), "operands are floats: an A of two-byte elements is converted before",
         lambda c, d, g: (c.bm > 0) & (g.a_type == FP32)),
    Rule("split-reduction", "shape", ("reduction", "split_k"),
         "split-K needs a reduction, and nothing else does",
         lambda c, d, g: (c.reduction != "none") == (c.split_k > 1)),
    Rule("pack-workspace", "shape", ("bm", "bn", "pack_a", "pack_b"), "packed operands fit 1 GiB",
         lambda c, d, g: packed_bytes(c, g) <= WORKSPACE_LIMIT),
    Rule("mma-results", "shape", ("bm",),
         "C has 64 x 64 elements or more: of fewer no error can be compared with SGEMM's",
         lambda c, d, g: (c.bm > 0) & (g.num_results >= LEAST_RESULTS)),
    Rule("worth-flush", "worth", ("flush_k",), "flush the sums of a k that is at least twice as deep",
         lambda c, d, g: (c.flush_k == 0) | (g.k >= 2 * c.flush_k)),
    Rule("worth-height", "worth", ("bm",), "a block tile is not taller than twice C",
         lambda c, d, g: (c.bm == 64) | (c.bm < 2 * g.m)),
    Rule("worth-width", "worth", ("bn",), "a block tile is not wider than twice C",
         lambda c, d, g: (c.bn == 64) | (c.bn < 2 * g.n)),
    Rule("worth-vector-a", "worth", ("vec_a", "pack_a"), "the widest vectors that A allows",
         lambda c, d, g: _is_widest(c.vec_a, 4, g.lda, c.pack_a)),
    Rule("worth-vector-b", "worth", ("vec_b", "pack_b"), "the widest vectors that B allows",
         lambda c, d, g: _is_widest(c.vec_b, 4, g.ldb, c.pack_b)),
    Rule("worth-vector-c", "worth", ("vec_c",), "the widest vectors that C allows",
         lambda c, d, g: _is_widest(c.vec_c, 2, g.ldc, 0)),
    Rule("worth-pack", "worth", ("pack_a", "pack_b"),
         "an operand is packed whose rows are no vectors, and of which every element is used 512 times",
         lambda c, d, g: ((c.pack_a == 0) | ((g.lda % 4 != 0) & (g.n >= PACK_USES)))
         & ((c.pack_b == 0) | ((g.ldb % 4 != 0) & (g.m >= PACK_USES)))),
    Rule("worth-split", "worth", ("reduction", "split_k"),
         f"shares of k at least {LEAST_DEPTH} deep, where tiles alone leave SMs idle",
         lambda c, d, g: (c.split_k == 1)
         | ((g.k >= LEAST_DEPTH * c.split_k) & (_tiles(g) * c.split_k <= 4 * d.num_sms))),
    Rule("worth-group", "worth", ("raster", "group"),
         "walk along m in plain order or not at all: groups go along n",
         lambda c, d, g: (c.raster == "n") | (c.group == 1)),
)  # fmt: skip


def _is_widest(vec: Any, most: int, lead: int, packs: Any) -> Any:
    return vec == np.where((packs == 1) | (lead % most == 0), most, 1)


def broken_rules(
    config: MmaConfig, limits: DeviceLimits, gemm: Gemm, kinds: Sequence[RuleKind] = LEGAL
) -> tuple[Rule, ...]:
    """The rules of those kinds that this config breaks."""
    return tuple(r for r in RULES if r.kind in kinds and not r.holds(config, limits, gemm))


def launch_spec(config: MmaConfig, variant: Variant, limits: DeviceLimits) -> LaunchSpec:
    return LaunchSpec(
        **launched(config), bm=config.bm, bk=config.bk, threads=config.threads,
        smem_bytes=int(smem_bytes(config, variant)), is_exact=False, overlaps=limits.has_dependent_launch,
        variant=variant,
    )  # fmt: skip

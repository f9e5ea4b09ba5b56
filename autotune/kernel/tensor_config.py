"""One instance of the kernel on tensor cores (`kernels/tensor_sgemm.cu`): its parameters, rules and launch.

Compute capability 9.0 alone: its instructions are of sm_90a, which no other GPU runs. Copied into exported
tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..facts.device import DeviceLimits
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, Gemm
from .config import Parameter, checked
from .launch import LaunchSpec, Variant
from .rules import LEGAL, Rule, RuleKind

MAIN_FILE = "tensor_sgemm.cu"
ARCH = "sm_90a"
BM, BK = 128, 32
STEPS = BK // 8  # of k, of an instruction of the tensor cores
WARPGROUP, NUM_MULTIPLIERS = 128, 2
PLANE_ALIGNMENT = 1024  # bytes
BARRIER_BYTES = 16  # of a stage
REGISTERS = 64 * 1024  # of an SM, which a block has alone
# A third of the tensor cores' rate in TF32, 1,024 multiply-adds per SM and cycle, over that of 128 lanes
OVER_FMA = 1024 / 3 / 128
LEAST_RESULTS = 64 * 64  # of C: fewer show no error that can be compared, and keep no tensor core busy


@frozen()
class TensorConfig:
    """One instance of that kernel and how it is launched. `PARAMETERS` says what each of these is."""

    bn: int = 128
    stages: int = 3
    promote_k: int = 32
    flush_k: int = 512
    loaders: int = 2
    ahead: int = 2
    vec_a: int = 4
    vec_b: int = 4
    vec_c: int = 2
    group: int = 8
    raster: str = "n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorConfig:
        """As `Config.from_dict`."""
        return cls(**checked(data, PARAMETER))

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def key(self) -> str:
        return ",".join(f"{name}={value}" for name, value in vars(self).items())

    @property
    def kernel(self) -> TensorConfig:
        """The config without the parameters of the launch: equal for configs that share a cubin."""
        return replace(self, raster="n", group=1)

    @property
    def in_any_splits(self) -> TensorConfig:
        return self

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.loaders + NUM_MULTIPLIERS)

    def __str__(self) -> str:
        return self.key


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("bn", (64, 128), "columns of C per block (BN)", "elements"),
    Parameter("stages", (2, 3, 4, 5, 6), "tiles of A and planes of B held in shared memory", "tiles"),
    Parameter("promote_k", (8, 16, 32, 64), "k after which sums leave the tensor cores", "steps"),
    Parameter(
        "flush_k",
        (0, 256, 512, 1024),
        "k after which sums move on to sums in shared memory, 0 never",
        "steps",
    ),
    Parameter("loaders", (1, 2), "warpgroups that load", "warpgroups"),
    Parameter("ahead", (1, 2, 3, 4), "tiles of B that a loading thread has on their way", "tiles"),
    Parameter("vec_a", (1, 4), "elements of A per copy from global memory", "elements"),
    Parameter("vec_b", (1, 4), "elements of B per copy from global memory", "elements"),
    Parameter("vec_c", (1, 2), "elements of C per access to global memory", "elements"),
    Parameter("raster", ("m", "n"), "direction in which blocks walk over C"),
    Parameter("group", (1, 2, 4, 8, 16), "tiles walked across before the next step along", "tiles"),
)
PARAMETER: dict[str, Parameter] = {p.name: p for p in PARAMETERS}


def smem_bytes(c: Any, trans_a: Any) -> Any:
    """Of a block: planes of B, tiles of A, flushed sums, barriers, and what aligning the first may take. Of a
    config or columns of configs."""
    tile_a = BK * (BM + 8) if trans_a else BM * (BK + 4)
    flushed = BM * c.bn * (c.flush_k > 0)
    floats = c.stages * (2 * c.bn * BK + tile_a) + flushed
    return FLOAT_BYTES * floats + BARRIER_BYTES * c.stages + PLANE_ALIGNMENT


def _loading(c: Any) -> Any:
    return WARPGROUP * c.loaders


def _is_widest(vec: Any, most: int, lead: int) -> Any:
    return vec == (1 if lead % most else most)


RULES: tuple[Rule, ...] = (
    Rule("tensor-promote", "template", ("promote_k",),
         "sums leave the tensor cores after 8 or 16 of k, or whole tiles",
         lambda c, d, g: (c.promote_k == 8) | (c.promote_k == 16) | (c.promote_k % BK == 0)),
    Rule("tensor-flush", "template", ("promote_k", "flush_k"),
         "sums are flushed where they have just left the tensor cores",
         lambda c, d, g: (c.flush_k % BK == 0) & (c.flush_k % c.promote_k == 0)),
    Rule("tensor-device", "device", ("bn",),
         "tensor cores are asked in the way of compute capability 9.0, which no other GPU knows",
         lambda c, d, g: (c.bn > 0) & (d.compute_capability == (9, 0))),
    Rule("tensor-stages", "device", ("bn", "stages", "flush_k"),
         "stages and flushed sums fit the shared memory of a block",
         lambda c, d, g: smem_bytes(c, g.trans_a) <= d.smem_per_block),
    Rule("tensor-tasks", "template", ("bn", "loaders"), "a tile is loaded by whole tasks of 4 x 4 elements",
         lambda c, d, g: 2 * c.bn % _loading(c) == 0),
    Rule("tensor-ahead", "template", ("bn", "loaders", "ahead"),
         "loading threads hold the tiles on their way in 64 registers",
         lambda c, d, g: BK * c.ahead * c.bn // _loading(c) <= 64),
    Rule("extent-a", "shape", ("vec_a",), "rows of A (as stored) are whole vectors",
         lambda c, d, g: g.lda % c.vec_a == 0),
    Rule("extent-b", "shape", ("vec_b",), "rows of B (as stored) are whole vectors",
         lambda c, d, g: g.ldb % c.vec_b == 0),
    Rule("extent-c", "shape", ("vec_c",), "rows of C are whole vectors",
         lambda c, d, g: g.ldc % c.vec_c == 0),
    Rule("tensor-results", "shape", ("bn",),
         "C has 64 x 64 elements or more: of fewer no error can be compared with SGEMM's",
         lambda c, d, g: (c.bn > 0) & (g.num_results >= LEAST_RESULTS)),
    Rule("worth-promote", "worth", ("promote_k",),
         "sums leave after 16 of k or more: each time rounds, and after every 8 errors grow",
         lambda c, d, g: c.promote_k > 8),
    Rule("worth-flush", "worth", ("flush_k",), "flush the sums of a k that is at least twice as deep",
         lambda c, d, g: (c.flush_k == 0) | (g.k >= 2 * c.flush_k)),
    Rule("worth-width", "worth", ("bn",), "a block tile is not wider than twice C",
         lambda c, d, g: (c.bn == 64) | (c.bn < 2 * g.n)),
    Rule("worth-vector-a", "worth", ("vec_a",), "the widest vectors that A allows",
         lambda c, d, g: _is_widest(c.vec_a, 4, g.lda)),
    Rule("worth-vector-b", "worth", ("vec_b",), "the widest vectors that B allows",
         lambda c, d, g: _is_widest(c.vec_b, 4, g.ldb)),
    Rule("worth-vector-c", "worth", ("vec_c",), "the widest vectors that C allows",
         lambda c, d, g: _is_widest(c.vec_c, 2, g.ldc)),
    Rule("worth-group", "worth", ("raster", "group"),
         "walk along m in plain order or not at all: groups go along n",
         lambda c, d, g: (c.raster == "n") | (c.group == 1)),
)  # fmt: skip


def broken_rules(
    config: TensorConfig, limits: DeviceLimits, gemm: Gemm, kinds: Sequence[RuleKind] = LEGAL
) -> tuple[Rule, ...]:
    """The rules of those kinds that this config breaks."""
    return tuple(r for r in RULES if r.kind in kinds and not r.holds(config, limits, gemm))


def launch_spec(config: TensorConfig, variant: Variant) -> LaunchSpec:
    return LaunchSpec(
        bm=BM,
        bn=config.bn,
        bk=BK,
        threads=config.threads,
        smem_bytes=smem_bytes(config, variant.trans_a),
        vec_a=config.vec_a,
        vec_b=config.vec_b,
        vec_c=config.vec_c,
        is_exact=False,
        reduction="none",
        split_k=1,
        overlaps=True,
        variant=variant,
        group=config.group,
        is_along_m=config.raster == "m",
    )

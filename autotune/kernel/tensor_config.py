"""One instance of the kernel on tensor cores (`kernels/tensor_sgemm.cu`): its parameters, rules and launch.

Compute capability 9.0 alone: its instructions are of sm_90a, which no other GPU runs.
"""

from __future__ import annotations

from ..facts.device import DeviceLimits
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, Gemm
from .launch import LaunchSpec, Variant
from .template import variant_macros

MAIN_FILE = "tensor_sgemm.cu"
ARCH = "sm_90a"
BM, BK = 128, 32
STEPS = BK // 8  # of k, of an instruction of the tensor cores
WARPGROUP, NUM_MULTIPLIERS = 128, 2
PLANE_ALIGNMENT = 1024  # bytes
BARRIER_BYTES = 16  # of a stage
REGISTERS = 64 * 1024  # of an SM, which a block has alone


@frozen()
class TensorConfig:
    """Columns of C per block; stages in shared memory; the k after which sums leave the tensor cores, and
    that after which they go on to shared memory (0: never); warpgroups that load, and how many tiles of B
    each of their threads has on its way; floats per access to A, B, C; how blocks walk over C."""

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

    @property
    def key(self) -> str:
        return ",".join(f"{name}={value}" for name, value in vars(self).items())

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.loaders + NUM_MULTIPLIERS)


def smem_bytes(config: TensorConfig, trans_a: bool) -> int:
    """Of a block: planes of B, tiles of A, flushed sums, barriers, and what aligning the first may take."""
    tile_a = BK * (BM + 8) if trans_a else BM * (BK + 4)
    flushed = BM * config.bn if config.flush_k else 0
    floats = config.stages * (2 * config.bn * BK + tile_a) + flushed
    return FLOAT_BYTES * floats + BARRIER_BYTES * config.stages + PLANE_ALIGNMENT


def broken_rules(config: TensorConfig, limits: DeviceLimits, gemm: Gemm) -> tuple[str, ...]:
    """What forbids this config on this GPU for this shape, a sentence each."""
    c = config
    contiguous_a = gemm.m if gemm.trans_a else gemm.k
    contiguous_b = gemm.k if gemm.trans_b else gemm.n
    rules = {
        "tensor cores are asked in the way of compute capability 9.0": limits.compute_capability == (9, 0),
        "the tensor cores' tiles are 64 or 128 wide": c.bn in (64, 128),
        "sums leave the tensor cores after 8 or 16 of k, or whole tiles": c.promote_k in (8, 16)
        or (c.promote_k > 0 and c.promote_k % BK == 0),
        "sums are flushed where they have just left the tensor cores": c.flush_k % max(BK, c.promote_k) == 0,
        "stages fit the shared memory of a block": smem_bytes(c, gemm.trans_a) <= limits.smem_per_block,
        "a tile is loaded by whole tasks": 2 * c.bn % (WARPGROUP * c.loaders) == 0,
        "loading threads hold the tiles on their way": 32 * c.ahead * c.bn // (WARPGROUP * c.loaders) <= 64,
        "rows of A are whole vectors": not (contiguous_a % c.vec_a or gemm.lda % c.vec_a),
        "rows of B are whole vectors": not (contiguous_b % c.vec_b or gemm.ldb % c.vec_b),
        "rows of C are whole vectors": not (gemm.n % c.vec_c or gemm.ldc % c.vec_c),
    }
    return tuple(sentence for sentence, holds in rules.items() if not holds)


def macros(config: TensorConfig, variant: Variant) -> dict[str, int]:
    """That turn the text into one instance."""
    names = ("bn", "stages", "promote_k", "flush_k", "loaders", "ahead", "vec_a", "vec_b", "vec_c")
    return {name.upper(): getattr(config, name) for name in names} | variant_macros(variant)


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

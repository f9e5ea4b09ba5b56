"""Small, ragged problems for the kernel on tensor cores without warpgroups, and instances of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from emulator import LaunchProblem, Stored
from problems import FORWARD, SHUFFLED
from tensor_problems import epilogue_operands

from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Batch
from autotune.kernel import launch
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.mma_config import MmaConfig
from autotune.kernel.tensor_config import SCHEMES

NARROW = MmaConfig(bm=64, bn=64, wm=32, stages=3, group=1, flush_k=32)
LIMITS = KNOWN["rtx-3090"]


def problem(
    config: MmaConfig, variant: Variant, extents: tuple[int, int, int], *, order: int = FORWARD,
    gap: int = 0, scales: tuple[float, float] = (1.0, 0.0), products: int = 1,
) -> LaunchProblem:  # fmt: skip
    """Random operands, rows `gap` vectors further apart than they must be."""
    (m, n, k), random = extents, np.random.default_rng(sum(extents))

    def stored(rows: int, columns: int, vec: int) -> Stored:
        matrices = random.standard_normal((products, rows, columns)).astype(np.float32)
        ld = columns + gap * vec
        return Stored(matrices, ld, rows * ld)

    a = stored(*((k, m) if variant.trans_a else (m, k)), 1 if config.pack_a else config.vec_a)
    b = stored(*((n, k) if variant.trans_b else (k, n)), 1 if config.pack_b else config.vec_b)
    c = stored(m, n, config.vec_c)
    spec = config.launch_spec(variant, LIMITS)
    grid = launch.plan(spec, m, n, k, Batch(products, a.stride, b.stride, c.stride))
    return LaunchProblem(
        str(extents), m, n, k, a, b, c, spec.threads, spec.smem_bytes, grid.size, grid.split_k,
        (grid.padded_m, grid.padded_n), grid.sum_bytes, 0, grid.reduce_blocks,
        grid.reduce_blocks_per_product, launch.REDUCE_THREADS, grid.reduce_group_bits, grid.reduce_smem_bytes,
        alpha=scales[0], beta=scales[1], thread_order=order, seed=7, packs=grid.packs,
        schedule=launch.schedule(spec, grid), epilogue=variant.epilogue,
        **epilogue_operands(variant.epilogue, c, random),
    )  # fmt: skip


def instances() -> Iterator[tuple[MmaConfig, Variant]]:
    """Thirty-two: of each layout and scheme one that is plain, one whose rows are no vectors, one that packs
    and splits, and one for batches with an epilogue."""
    ragged = replace(NARROW, vec_a=1, vec_b=1, vec_c=1, bk=32, promote_k=32, stages=2)
    packed = replace(NARROW, pack_a=1, pack_b=1, vec_c=1, reduction="two_pass", split_k=3)
    for layout in LAYOUTS:
        variant = Variant(layout[0] == "T", layout[1] == "T")
        batched = replace(variant, is_batched=True, epilogue=Epilogue("columns", "gelu", keeps=True))
        for scheme in SCHEMES:
            yield MmaConfig(scheme=scheme), variant
            yield replace(ragged, scheme=scheme), variant
            yield replace(packed, scheme=scheme), variant
            yield replace(NARROW, scheme=scheme), batched


def problems(config: MmaConfig, variant: Variant) -> list[LaunchProblem]:
    """Two: all stages go round; extents that are no tiles, with scales."""
    (gap, products) = (1, 2) if variant.is_batched else (0, 1)
    ends = 1 if config.vec_c == 1 else 4  # elements that the last vectors are
    ragged = 128 + 2 * ends + ends // 2 * 2, 64 + 3 * ends, 80 + 5 * ends
    return [
        problem(config, variant, (128, 128, 112), gap=gap, products=products),
        problem(config, variant, ragged, order=SHUFFLED, scales=(1.5, -0.5), gap=gap, products=products),
    ]

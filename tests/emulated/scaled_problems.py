"""Small, ragged problems for the kernel on scaled operands, and instances that differ in all it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from emulator import LaunchProblem, Stored
from problems import FORWARD, SHUFFLED
from tensor_problems import epilogue_operands

from autotune.facts.gemm import LAYOUTS, Batch
from autotune.kernel import launch
from autotune.kernel import scaled_config as scaled
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.scaled_config import ScaledConfig

NARROW = ScaledConfig(bn=64, stages=2, group=1)
Spoil = Callable[[np.ndarray, np.ndarray], None]


def problem(
    config: ScaledConfig, variant: Variant, extents: tuple[int, int, int], *, order: int = FORWARD,
    gap: int = 0, scales: tuple[float, float] = (1.0, 0.0), products: int = 1, spoil: Spoil | None = None,
) -> LaunchProblem:  # fmt: skip
    """Random operands, rows `gap` elements further apart than they must be. `spoil` changes op(A) and op(B),
    (products, m, k) and (products, k, n)."""
    (m, n, k), random = extents, np.random.default_rng(sum(extents))

    def stored(rows: int, columns: int, gap: int) -> Stored:
        matrices = random.standard_normal((products, rows, columns)).astype(np.float32)
        ld = columns + gap
        return Stored(matrices, ld, rows * ld)

    a = stored(*((k, m) if variant.trans_a else (m, k)), gap)
    b = stored(*((n, k) if variant.trans_b else (k, n)), gap)
    c = stored(m, n, gap * config.vec_c)
    if spoil is not None:
        x, y = a.matrices, b.matrices
        spoil(x.mT if variant.trans_a else x, y.mT if variant.trans_b else y)
    spec = scaled.launch_spec(config, variant)
    grid = launch.plan(spec, m, n, k, Batch(products, a.stride, b.stride, c.stride))
    return LaunchProblem(
        str(extents), m, n, k, a, b, c, spec.threads, spec.smem_bytes, grid.size, grid.split_k,
        (grid.padded_m, grid.padded_n), grid.sum_bytes, 0, grid.reduce_blocks,
        grid.reduce_blocks_per_product, launch.REDUCE_THREADS, grid.reduce_group_bits, grid.reduce_smem_bytes,
        alpha=scales[0], beta=scales[1], thread_order=order, seed=7, packs=grid.packs,
        schedule=launch.schedule(spec, grid), epilogue=variant.epilogue,
        **epilogue_operands(variant.epilogue, c, random),
    )  # fmt: skip


def instances() -> Iterator[tuple[ScaledConfig, Variant]]:
    """Twelve: of each layout one that is plain, one whose rows are no vectors and that splits, and one for
    batches with an epilogue."""
    split = replace(NARROW, vec_c=1, reduction="two_pass", split_k=3, promote_k=32)
    for layout in LAYOUTS:
        variant = Variant(layout[0] == "T", layout[1] == "T")
        yield ScaledConfig(), variant
        yield split, variant
        yield NARROW, replace(variant, is_batched=True, epilogue=Epilogue("columns", "gelu", keeps=True))


def problems(config: ScaledConfig, variant: Variant) -> list[LaunchProblem]:
    """Two: all stages go round; extents that are no tiles, with scales."""
    (gap, products) = (1, 2) if variant.is_batched else (0, 1)
    ends = config.vec_c
    return [
        problem(config, variant, (128, 128, 256), gap=gap, products=products),
        problem(
            config, variant, (131, 66 + ends, 200), order=SHUFFLED, scales=(1.5, -0.5), gap=gap,
            products=products,
        ),
    ]  # fmt: skip

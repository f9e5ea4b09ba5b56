"""Small, ragged problems for the kernels on scaled operands, and instances that differ in all these do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from emulator import LaunchProblem, Stored
from problems import FORWARD, SHUFFLED
from tensor_problems import epilogue_operands

from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Batch
from autotune.kernel import launch
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.scaled_config import HalvesConfig, ScaledConfig

NARROW = ScaledConfig(bn=64, stages=2, group=1)
OF_HALVES = HalvesConfig(bm=64, bn=64, wm=32, group=1)
LIMITS = KNOWN["quadro-rtx-5000"]
OnScaledOperands = ScaledConfig | HalvesConfig
Spoil = Callable[[np.ndarray, np.ndarray], None]


def problem(
    config: OnScaledOperands, variant: Variant, extents: tuple[int, int, int], *, order: int = FORWARD,
    gap: int = 0, scales: tuple[float, float] = (1.0, 0.0), products: int = 1, spoil: Spoil | None = None,
    shares: str = "",
) -> LaunchProblem:  # fmt: skip
    """Random operands, rows `gap` elements further apart than they must be. `spoil` changes op(A) and op(B),
    (products, m, k) and (products, k, n). `shares`: the operand, "a" or "b", that all products share."""
    (m, n, k), random = extents, np.random.default_rng(sum(extents))

    def stored(rows: int, columns: int, gap: int) -> Stored:
        matrices = random.standard_normal((products, rows, columns)).astype(np.float32)
        ld = columns + gap
        return Stored(matrices, ld, rows * ld)

    a = stored(*((k, m) if variant.trans_a else (m, k)), gap)
    b = stored(*((n, k) if variant.trans_b else (k, n)), gap)
    c = stored(m, n, gap * config.vec_c)
    a, b = (
        replace(one, matrices=one.matrices[:1], stride=0) if name == shares else one
        for name, one in (("a", a), ("b", b))
    )
    if spoil is not None:
        x, y = a.matrices, b.matrices
        spoil(x.mT if variant.trans_a else x, y.mT if variant.trans_b else y)
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


def instances() -> Iterator[tuple[ScaledConfig, Variant]]:
    """Twelve: of each layout one that is plain, one whose rows are no vectors and that splits, and one for
    batches with an epilogue."""
    split = replace(NARROW, vec_c=1, reduction="two_pass", split_k=3, promote_k=32)
    for layout in LAYOUTS:
        variant = Variant(layout[0] == "T", layout[1] == "T")
        yield ScaledConfig(), variant
        yield split, variant
        yield NARROW, replace(variant, is_batched=True, epilogue=Epilogue("columns", "gelu", keeps=True))


def instances_of_halves() -> Iterator[tuple[HalvesConfig, Variant]]:
    """The same of the kernel without warpgroups."""
    split = replace(OF_HALVES, depth=32, vec_c=1, reduction="two_pass", split_k=3)
    for layout in LAYOUTS:
        variant = Variant(layout[0] == "T", layout[1] == "T")
        yield HalvesConfig(), variant
        yield split, variant
        yield OF_HALVES, replace(variant, is_batched=True, epilogue=Epilogue("columns", "gelu", keeps=True))


def problems(config: OnScaledOperands, variant: Variant) -> list[LaunchProblem]:
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


def check_no_part_is_missing(case: LaunchProblem, c: np.ndarray, variant: Variant) -> None:
    """Without a small product an element errs by 2^-13 of |A| |B| or more; with all by 2^-20 at most."""
    a, b = (one.matrices.astype(np.float64) for one in (case.a, case.b))
    a, b = a.mT if variant.trans_a else a, b.mT if variant.trans_b else b
    with np.errstate(invalid="ignore"):
        exact, size = a @ b, np.abs(a) @ np.abs(b)
    finite = np.isfinite(size)
    bound = 2.0**-20 * size + 2.0**-149
    assert (np.abs(c[finite] - exact[finite]) <= bound[finite]).all()


def wide(a: np.ndarray, b: np.ndarray) -> None:
    random = np.random.default_rng(5)
    for x in (a, b):
        x *= np.exp2(random.integers(-20, 21, x.shape)).astype(np.float32)


def far_apart_rows(a: np.ndarray, b: np.ndarray) -> None:
    a *= np.exp2(np.linspace(-45, 45, a.shape[1]).round())[:, None].astype(np.float32)
    b *= np.exp2(np.linspace(45, -45, b.shape[2]).round())[None, :].astype(np.float32)


def one_beyond(a: np.ndarray, b: np.ndarray) -> None:
    """A number of A that FP16 cannot hold beside others, where B is zero but for what it meets."""
    a[:, 3, 5] = 1.2345678 * 2.0**-50
    b[:, :, 7] = 0
    b[:, 5, 7] = 1.7654321


def subnormal(a: np.ndarray, b: np.ndarray) -> None:
    a *= np.float32(2.0**-130)
    b *= np.float32(2.0**100)
    a[:, 9] = 0.0
    a[:, 10] = -0.0


def in_one_operand(a: np.ndarray, b: np.ndarray) -> None:
    b[:, 70, 65] = 2.0**-70


def nothing_but_an_infinity(a: np.ndarray, b: np.ndarray) -> None:
    """In a row: beside other numbers it would be too far from them."""
    a[:, 200] = 0
    a[:, 200, 9] = np.inf


SPOILS: dict[str, Spoil] = {
    "wide exponents": wide,
    "rows far apart": far_apart_rows,
    "one number beyond": one_beyond,
    "subnormal": subnormal,
    "in one block of one operand": in_one_operand,
}


def spoil_with_special_values(a: np.ndarray, b: np.ndarray) -> None:
    a[:, 3, 10], a[:, 5, 7], b[:, 20, 8] = np.inf, np.nan, -np.inf
    a[:, 11], b[:, 10, 40] = -0.0, 0.0
    a[:, 12, 3:] = 0.0
    a[:, 14, 20], a[:, 15, 100] = 1e37, -1e37

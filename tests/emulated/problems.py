"""The problems that one instance is run on: small, ragged where it may be, each with a trap of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from covering_instances import Instance
from emulator import NOTHING, LaunchProblem, Stored

from autotune.facts.device import known_limits
from autotune.facts.gemm import Batch, Gemm
from autotune.kernel import launch, resources
from autotune.kernel.config import PARAMETER, Config, lanes_k
from autotune.kernel.launch import Variant

FORWARD, REVERSE, SHUFFLED = 0, 1, 2
LIMITS = replace(known_limits("h200"), num_sms=2)  # so that small matrices have waves
SPLITS = PARAMETER["split_k"].values[1:]
_MAX_RUNS = 64 * max(SPLITS)  # of threads, over all blocks of a split problem
_AREA = 64 * 64 * 12  # elements of C that a problem of many tiles may have


@dataclass(frozen=True)
class Case:
    """A problem before its extents are fitted to what the instance may serve.

    `gap` widens each leading dimension, and each stride from product to product, by as many vectors; `order`
    is that of threads and of blocks. `shares`: the operand, "a" or "b", that all products share, and with it
    they share the bias. Interleaved products have their first rows side by side, then their second ones.
    """

    name: str
    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    gap: int = 0
    order: int = FORWARD
    is_special: bool = False  # NaN and Inf among the elements, of one product alone
    products: int = 1
    shares: str = ""
    is_interleaved: bool = False


def cases(config: Config) -> list[Case]:
    """Every trap for this config; the same list whatever the layout."""
    bm, bn, bk = config.bm, config.bn, config.bk * lanes_k(config)
    ring = bk * config.stages
    tiles_m, tiles_n = _many_tiles(config)
    return [
        *_flushed(config),
        Case("tiles that fit", bm, 2 * bn, 2 * bk),
        Case("stages go round twice", bm, bn, 2 * ring + bk + 3, -1.5, 0.5, gap=1, order=REVERSE),
        Case("ragged", bm + bm // 2 + 1, bn + bn // 2 + 1, 2 * bk + 5, 0.5, -1.0, gap=3, order=SHUFFLED),
        Case("one row", 1, bn + 1, bk - 1, order=REVERSE),
        Case("one column", bm + 1, 1, bk + 1, 1.0, 1.0, gap=1),
        Case("k = 1", bm - 1, bn - 1, 1, 2.0, 0.25, order=SHUFFLED),
        Case("single element", 1, 1, 1, gap=2),
        Case("k = 0", bm + 1, bn + 1, 0, 2.0, 0.5, gap=1),
        Case("k = 0, beta = 0", bm - 1, bn + 1, 0, order=REVERSE),
        Case("alpha = 0", bm + 1, bn - 1, bk + 1, 0.0, -2.0, order=REVERSE),
        Case("alpha = beta = 0", bm, bn + 1, bk + 1, 0.0, 0.0, gap=2),
        Case("NaN and Inf", bm + 2, bn + 2, bk + 2, 1.5, -0.5, gap=1, order=SHUFFLED, is_special=True),
        Case("NaN and Inf, beta = 0", bm + 1, bn + 3, 2 * bk, 1.0, 0.0, is_special=True),
        Case("many tiles", (tiles_m - 1) * bm + 1, tiles_n * bn - 1, bk + 1, gap=1, order=SHUFFLED),
        Case("many tiles, fewer across", tiles_n * bm, tiles_m * bn, 1, 1.0, 2.0, order=REVERSE),
    ]


def batches(config: Config) -> list[Case]:
    """The traps for a kernel of batches: those of single products, and of what lies between products."""
    bm, bn, bk = config.bm, config.bn, config.bk * lanes_k(config)
    ring = bk * config.stages
    tiles_m, tiles_n = _many_tiles(config)
    apart = {"gap": 1, "order": SHUFFLED, "products": 2}
    return [
        *(replace(case, products=2) for case in _flushed(config)),
        Case("tiles that fit", bm, 2 * bn, 2 * bk, products=2),
        Case("stages go round twice", bm, bn, 2 * ring + bk + 3, -1.5, 0.5, **apart, shares="b"),
        Case("ragged", bm + bm // 2 + 1, bn + bn // 2 + 1, 2 * bk + 5, 0.5, -1.0, **apart | {"gap": 3}),
        Case("A is shared", bm // 2 + 1, bn + 1, bk + 3, 1.5, gap=2, order=REVERSE, products=3, shares="a"),
        Case("interleaved", bm + 1, bn - 1, bk + 1, 1.0, 0.5, **apart | {"products": 3}, is_interleaved=True),
        Case("one product", bm - 1, bn + 1, bk + 1, 1.0, 1.0, gap=1),
        Case("one row, k = 1", 1, bn + 1, 1, order=REVERSE, products=3),
        Case("single elements", 1, 1, 1, gap=2, products=7),
        Case("k = 0", bm + 1, bn + 1, 0, 2.0, 0.5, **apart),
        Case("alpha = 0", bm + 1, bn - 1, bk + 1, 0.0, -2.0, order=REVERSE, products=2),
        Case("NaN and Inf", bm + 2, bn + 2, bk + 2, 1.5, -0.5, **apart, is_special=True),
        Case("NaN and Inf, beta = 0", bm + 1, bn // 2 + 3, 2 * bk, is_special=True, products=3),
        Case("many tiles", (tiles_m - 1) * bm + 1, tiles_n * bn - 1, bk + 1, **apart),
        Case("many products", bm, bn - 1, bk - 1, 1.0, -1.0, **apart | {"products": 5}),
    ]


def _flushed(config: Config) -> list[Case]:
    depth = 2 * config.flush_k + config.bk + 3
    case = Case("sums flushed twice", config.bm, config.bn - 1, depth, gap=1, order=SHUFFLED)
    return [case] if config.flush_k else []


def _many_tiles(config: Config) -> tuple[int, int]:
    """More tiles across than a group is wide, as far as they are cheap: one group is full, one is not."""
    in_budget = max(6, _AREA // (config.bm * config.bn))
    across = max(3, min(config.group + 1 + (config.group > 2), in_budget // 2))
    along = min(3, max(2, in_budget // across))
    return (along, across) if config.raster == "m" else (across, along)


# Its blocks sum 256 of k each, of few elements
CHUNKS = Instance(
    Config(
        bm=4, bn=8, bk=64, wm=4, wn=8, tm=1, tn=1, flush_k=256, reduction="chunks", stages=2, bursts=1,
        copy_a="register", copy_b="register", unroll_k=4, vec_a=1, vec_b=1, vec_c=1,
    ),
    Variant(False, False),
)  # fmt: skip


def of_chunks(num: int) -> Case:
    """A case of so many chunks of that instance, the first of which is short."""
    return Case(f"{num} chunks", 3, 5, 256 * num - 100)


def problems(instance: Instance, number: int = 0) -> list[LaunchProblem]:
    """All cases for an instance. `number` (of the instance in a list) varies the splits of k."""
    made = []
    for i, case in enumerate((batches if instance.variant.is_batched else cases)(instance.config)):
        tiles = -(-case.m // instance.config.bm) * -(-case.n // instance.config.bn)
        runs = tiles * case.products * resources.threads(instance.config)
        in_budget = [split for split in SPLITS if runs * split <= _MAX_RUNS] or SPLITS[:2]
        split = in_budget[-1 - (7 * number + i) % len(in_budget)]  # steps by which all are met
        seed = 100 * number + i
        made.append(problem(instance, case, split_k=split, seed=seed, num_sms=(0, 2, 3)[seed % 3]))
    return made


def units(instance: Instance) -> tuple[int, int, int]:
    """What m, n and k must be multiples of for this instance to serve a problem."""
    c, v = instance.config, instance.variant
    m, n, k = [1], [c.vec_c], [1]
    if not c.pack_a:
        (m if v.trans_a else k).append(c.vec_a)
    if not c.pack_b:
        (k if v.trans_b else n).append(c.vec_b)
    if c.edges == "exact":
        m.append(c.bm)
        n.append(c.bn)
    return math.lcm(*m), math.lcm(*n), math.lcm(*k)


def _fit(extent: int, unit: int) -> int:
    """The next extent from here on that is a multiple; zero is left for k alone."""
    return -(-extent // unit) * unit


def problem(
    instance: Instance,
    case: Case,
    *,
    split_k: int,
    seed: int,
    lds: tuple[int, int, int] | None = None,
    stride: int | None = None,
    num_sms: int = LIMITS.num_sms,
) -> LaunchProblem:
    """The case as a launch of the instance, with what kernel/resources.py and kernel/launch.py make of it.

    Bases of A, B, C are aligned to their vectors and no further; those of operands that are packed, and
    their leading dimensions, to nothing but floats. `stride` is that of every operand and of the epilogue.
    Blocks share out chunks for so many SMs (`num_sms`); each has one where there are none.
    """
    c, v = instance.config, instance.variant
    m, n, k = map(_fit, (max(case.m, 1), max(case.n, 1), case.k), units(instance))
    gemm = Gemm(m, n, k, v.trans_a, v.trans_b)
    limits = replace(LIMITS, num_sms=num_sms) if c.reduction == "chunks" else LIMITS
    spec = resources.launch_spec(c, gemm, limits, is_wide=v.is_wide, epilogue=v.epilogue)
    splits = {"none": 1, "chunks": 1, "cluster": c.split_k}.get(c.reduction, split_k)
    spec = replace(spec, split_k=splits, variant=v)
    elements = _operands(case, gemm, np.random.default_rng(seed))
    vectors = (1 if c.pack_a else c.vec_a, 1 if c.pack_b else c.vec_b, c.vec_c)
    operands = tuple(
        _stored(case, *of, stride=stride) for of in zip(elements, vectors, lds or (0, 0, 0), strict=True)
    )
    batch = Batch(case.products, *(operand.stride for operand in operands))
    grid = launch.plan(spec, m, n, k, batch)
    lead_weights, addresses = [x.ld for x in operands], [4 * x.offset for x in operands]
    assert launch.rejection(spec, m, n, k, tuple(lead_weights), tuple(addresses), batch) is None
    bias, kept = _epilogue(case, v, operands[2], c.vec_c, np.random.default_rng(seed), stride)
    waits = grid.counter_bytes > 0 and grid.reduce_blocks > 0  # for blocks before
    block_order = 0 if waits else case.order
    return LaunchProblem(
        case.name, m, n, k, *operands, spec.threads, spec.smem_bytes, grid.size, grid.split_k,
        (grid.padded_m, grid.padded_n), grid.sum_bytes, grid.counter_bytes, grid.reduce_blocks,
        grid.reduce_blocks_per_product, launch.REDUCE_THREADS, grid.reduce_group_bits, grid.reduce_smem_bytes,
        case.alpha, case.beta, case.order, block_order, seed, grid.packs, launch.schedule(spec, grid),
        v.epilogue, bias, kept,
    )  # fmt: skip


def _stored(case: Case, matrices: np.ndarray, vec: int, ld: int = 0, stride: int | None = None) -> Stored:
    """The operand where the case has it, made of vectors; with this leading dimension and stride if given."""
    count, rows, columns = matrices.shape
    side = max(_fit(columns, vec), vec) + case.gap * vec
    is_interleaved = case.is_interleaved and count > 1
    ld = ld or (case.products * side if is_interleaved else side)
    if stride is None:
        stride = side if is_interleaved else rows * ld + case.gap * vec
    return Stored(matrices, ld, 0 if count < case.products else stride, vec % 4)


def _epilogue(
    case: Case, variant: Variant, c: Stored, vec: int, random: np.random.Generator, stride: int | None
) -> tuple[Stored, Stored]:
    """The bias that is added, and where the second output is kept: with a leading dimension of its own."""
    products, m, n = c.matrices.shape
    bias = kept = NOTHING
    if variant.epilogue.bias != "none":
        extent = m if variant.epilogue.bias == "rows" else n
        count = 1 if case.shares else products
        values = random.standard_normal((count, 1, extent), dtype=np.float32)
        if case.is_special:
            values[-1, 0, 0] = -np.inf
        bias = _stored(replace(case, is_interleaved=False), values, 1, stride=stride)
    if variant.epilogue.keeps:
        empty = np.full_like(c.matrices, np.nan)
        kept = _stored(replace(case, gap=case.gap + 1), empty, vec, stride=stride)
    return bias, kept


def _operands(
    case: Case, gemm: Gemm, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, B as stored and C before, (products, rows, columns): where beta is 0, C is NaN throughout."""
    count_a, count_b = (1 if case.shares == name else case.products for name in "ab")
    a = random.standard_normal((count_a, gemm.m, gemm.k), dtype=np.float32)
    b = random.standard_normal((count_b, gemm.k, gemm.n), dtype=np.float32)
    c = random.standard_normal((case.products, gemm.m, gemm.n), dtype=np.float32)
    if case.is_special:
        a[-1, 0, 0], a[-1, -1, -1] = np.inf, np.nan
        b[-1, -1, 0], b[-1, 0, -1] = -np.inf, 0.0  # Inf * 0 is NaN, and so is Inf - Inf
        c[-1, gemm.m // 2, gemm.n // 2], c[-1, gemm.m // 2, 0] = np.nan, np.inf
    if case.beta == 0:
        c[:] = np.nan
    a, b = a.swapaxes(1, 2) if gemm.trans_a else a, b.swapaxes(1, 2) if gemm.trans_b else b
    return np.ascontiguousarray(a), np.ascontiguousarray(b), c

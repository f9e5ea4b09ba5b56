"""Small, ragged problems for the kernel on tensor cores, and instances that differ in all it does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from emulator import LaunchProblem, Stored
from problems import FORWARD, SHUFFLED

from autotune.facts.device import KNOWN
from autotune.facts.gemm import FP32, LAYOUTS, Batch
from autotune.kernel import launch
from autotune.kernel import tensor_config as tensor
from autotune.kernel.launch import Epilogue, Variant
from autotune.kernel.tensor_config import TensorConfig

NARROW = TensorConfig(bn=64, stages=2, loaders=1, ahead=1, group=1, flush_k=64)
_UNALIGNED = {"vec_a": 1, "vec_b": 1, "vec_c": 1}


def problem(
    config: TensorConfig, variant: Variant, extents: tuple[int, int, int], *, order: int = FORWARD,
    gap: int = 0, scales: tuple[float, float] = (1.0, 0.0), products: int = 1,
) -> LaunchProblem:  # fmt: skip
    """Random operands, rows `gap` vectors further apart than they must be. An A of two-byte elements lies in
    rows of whole words, what is left of them NaN."""
    (m, n, k), random = extents, np.random.default_rng(sum(extents))

    def stored(rows: int, columns: int, vec: int) -> Stored:
        matrices = random.standard_normal((products, rows, columns)).astype(np.float32)
        ld = columns + gap * vec
        return Stored(matrices, ld, rows * ld)

    a = stored(*((k, m) if variant.trans_a else (m, k)), 1 if config.pack_a else config.vec_a)
    if variant.a_type != FP32:
        a = narrowed(a, variant.a_type, gap * config.vec_a)
    b = stored(*((n, k) if variant.trans_b else (k, n)), 1 if config.pack_b else config.vec_b)
    c = stored(m, n, config.vec_c)
    spec = config.launch_spec(variant, KNOWN["h100"])
    grid = launch.plan(spec, m, n, k, Batch(products, a.stride, b.stride, c.stride))
    return LaunchProblem(
        str(extents), m, n, k, a, b, c, spec.threads, spec.smem_bytes, grid.size, grid.split_k,
        (grid.padded_m, grid.padded_n), grid.sum_bytes, 0, grid.reduce_blocks,
        grid.reduce_blocks_per_product, launch.REDUCE_THREADS, grid.reduce_group_bits, grid.reduce_smem_bytes,
        alpha=scales[0], beta=scales[1], thread_order=order, seed=7, packs=grid.packs,
        schedule=launch.schedule(spec, grid), epilogue=variant.epilogue,
        **epilogue_operands(variant.epilogue, c, random),
    )  # fmt: skip


def narrowed(a: Stored, a_type: str, gap: int) -> Stored:
    """A rounded to elements of two bytes, and the words that hold them."""
    if a_type == "bf16":
        bits = (a.matrices.view(np.uint32) >> 16).astype(np.uint16)
        values = (bits.astype(np.uint32) << 16).view(np.float32)
    else:
        halves = a.matrices.astype(np.float16)
        bits, values = halves.view(np.uint16), halves.astype(np.float32)
    padded = np.pad(bits, ((0, 0), (0, 0), (0, bits.shape[2] % 2)), constant_values=0x7FFF)
    words = np.ascontiguousarray(padded).view(np.float32)
    ld = words.shape[2] + gap
    return replace(a, matrices=values, words=words, ld=ld, stride=words.shape[1] * ld)


def epilogue_operands(epilogue: Epilogue, c: Stored, random: np.random.Generator) -> dict[str, Stored]:
    count, rows, columns = c.matrices.shape
    found = {}
    if epilogue.bias != "none":
        size = rows if epilogue.bias == "rows" else columns
        found["bias"] = Stored(random.standard_normal((count, 1, size)).astype(np.float32), size, size)
    if epilogue.keeps:
        found["kept"] = replace(c, matrices=np.zeros_like(c.matrices))
    return found


def instances() -> Iterator[tuple[TensorConfig, Variant]]:
    """Thirty-two: of each layout and scheme one that is plain, one whose rows are no vectors, one that packs
    and splits, and one for batches with an epilogue."""
    ragged = replace(NARROW, **_UNALIGNED, promote_k=64)
    packed = replace(NARROW, pack_a=1, pack_b=1, vec_c=1, reduction="two_pass", split_k=3, promote_k=16)
    for layout in LAYOUTS:
        variant = Variant(layout[0] == "T", layout[1] == "T")
        batched = replace(variant, is_batched=True, epilogue=Epilogue("columns", "gelu", keeps=True))
        for scheme in tensor.SCHEMES:
            yield TensorConfig(flush_k=0, scheme=scheme), variant
            yield replace(ragged, scheme=scheme), variant
            yield replace(packed, scheme=scheme), variant
            yield replace(NARROW, scheme=scheme), batched


def problems(config: TensorConfig, variant: Variant) -> list[LaunchProblem]:
    """Two: all stages go round; extents that are no tiles, with scales."""
    (gap, products) = (1, 2) if variant.is_batched else (0, 1)
    ends = 1 if config.vec_c == 1 else 4  # elements that the last vectors are
    ragged = 128 + 2 * ends + ends // 2 * 2, 64 + 3 * ends, 160 + 5 * ends
    return [
        problem(config, variant, (128, 128, 224), gap=gap, products=products),
        problem(config, variant, ragged, order=SHUFFLED, scales=(1.5, -0.5), gap=gap, products=products),
    ]

"""Shapes drawn at random, for which kernels are chosen and tables judged.

Either from all shapes, or from those that a program calls, by their counts. Of all shapes m and n
are log-uniform over 1 ... 16384 and k over 16 ... 65536; shapes whose limit on the GPU is less than 1 us or
more than 10 ms are drawn again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

from .fitted import MOST_DRAWN
from .gemm import LAYOUTS, Gemm

DEPTHS = (16, 65536)
LIMITS_US = (1.0, 10_000.0)
MOST_BYTES = 1 << 30  # of the operands of a batch
ROUND = 16
BATCHES = (2, 1024)  # products
ROWS, HEADS = (16, 4096), (16, 256)  # sides of attention's products: queries or keys, and the size of a head
SHIPPED_SEEDS = 9  # of those below, 0, 1, 2 and 8 drew columns of the matrices that ship (studies/matrices)
LEADING = 1.15  # times the best of a search: a kernel up to this is tried on other shapes
KINDS = ("one side up to 8", "one side up to 64", "deep k", "the rest")
_FEW, _SOME, _DEEP = 8, 64, 16


def signature_of_shape(gemm: Gemm) -> str:
    """The kind of shape, one of KINDS: by the shorter side of C, then by its depth relative to the longer."""
    short = min(gemm.m, gemm.n)
    if short <= _FEW:
        return KINDS[0]
    if short <= _SOME:
        return KINDS[1]
    return KINDS[2] if gemm.k >= _DEEP * max(gemm.m, gemm.n) else KINDS[3]


def log_uniform(rng: random.Random, least: int, most: int) -> int:
    """A whole number whose logarithm is as likely to be anywhere between these."""
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))


def products(rng: random.Random) -> dict[str, Any]:
    """The number of a strided batch, log-uniform: a field of a Gemm."""
    return {"batch": log_uniform(rng, *BATCHES)}


def attention(rng: random.Random) -> dict[str, Any]:
    """The same, with the extents of attention's products: of queries and keys, or of weights and values."""
    queries, keys, head = (log_uniform(rng, *ends) for ends in (ROWS, ROWS, HEADS))
    n, k = rng.choice(((keys, head), (head, keys)))
    return {**products(rng), "m": queries, "n": n, "k": k}


def drawn(
    seed: int,
    fma_tflops: float,
    bandwidth_gbs: float,
    *,
    layouts: tuple[str, ...] = ("NN",),
    is_odd: bool = False,
    is_mixed: bool = False,
    most: int = MOST_DRAWN,
    more: Callable[[random.Random], dict[str, Any]] = lambda rng: {},
) -> Iterator[Gemm]:
    """Shapes without end for a GPU of such a roofline, the same for equal arguments. `is_odd` makes every
    extent odd; `is_mixed` rounds those of every second shape up to whole 16s, from 16 on. `most`:
    rows or columns. `more` draws further fields of a Gemm, or others."""
    rng, num = random.Random(seed), 0
    while True:
        m, n, k = (log_uniform(rng, *ends) for ends in ((1, most), (1, most), DEPTHS))
        layout = rng.choice(layouts)
        fields = {"m": m, "n": n, "k": k} | more(rng)
        m, n, k = (fields.pop(name) for name in ("m", "n", "k"))
        if is_odd:
            m, n, k = m | 1, n | 1, k | 1
        if is_mixed and num % 2:
            m, n, k = (extent if extent < ROUND else -(-extent // ROUND) * ROUND for extent in (m, n, k))
        gemm = Gemm(m, n, k, layout[0] == "T", layout[1] == "T", **fields)
        if LIMITS_US[0] <= gemm.limit_us(fma_tflops, bandwidth_gbs) <= LIMITS_US[1]:
            num += 1
            yield gemm


def drawn_suite(num: int, seed: int, fma_tflops: float, bandwidth_gbs: float) -> tuple[Gemm, ...]:
    """This many shapes of all layouts for a GPU of such a roofline: every second one NN, the others NT, TN
    and TT in rotation; of each layout every second one in whole 16s. A larger number begins with the same
    shapes."""
    sources = {
        layout: drawn(seed * len(LAYOUTS) + i, fma_tflops, bandwidth_gbs, layouts=(layout,), is_mixed=True)
        for i, layout in enumerate(LAYOUTS)
    }
    turn_order = [layout for other in LAYOUTS[1:] for layout in (LAYOUTS[0], other)]
    found: dict[Gemm, None] = {}
    for layout in cycle(turn_order):
        if len(found) >= num:
            break
        found.setdefault(next(sources[layout]))
    return tuple(found)


def drawn_batches(num: int, seed: int, fma_tflops: float, bandwidth_gbs: float) -> tuple[Gemm, ...]:
    """This many strided batches, of all layouts in rotation: of each layout every third one attention's, and
    none of more than MOST_BYTES. A larger number begins with the same ones."""
    kinds = [(more, layout) for more in (products, products, attention) for layout in LAYOUTS]
    sources = [
        drawn(seed * len(kinds) + i, fma_tflops, bandwidth_gbs, layouts=(layout,), is_mixed=True, more=more)
        for i, (more, layout) in enumerate(kinds)
    ]
    found: dict[Gemm, None] = {}
    for source in cycle(sources):
        if len(found) >= num:
            break
        found.setdefault(next(gemm for gemm in source if gemm.num_bytes <= MOST_BYTES))
    return tuple(found)


def drawn_calls(num: int, seed: int, calls: Mapping[Gemm, int]) -> tuple[Gemm, ...]:
    """This many of these shapes, or all: each next one with the probability of its calls among those of the
    shapes left (an exponential clock for each: P. Efraimidis, P. Spirakis, Inf. Process. Lett. 97 (2006)
    181). The first of more are those of fewer."""
    rng = random.Random(seed)
    return tuple(sorted(calls, key=lambda gemm: rng.expovariate(calls[gemm]))[:num])

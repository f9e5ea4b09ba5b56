"""The order in which a kernel sums the products of an element of C: a fact of its config, and a reference.

Let fma(x, y, s) be x * y + s rounded once, and + an addition rounded to FP32. One element of C, of depth k:

    chain       s = 0; then s = fma(A[i][p], B[p][j], s) for p = 0, 1, ... k - 1.
    chunks:L    k is divided into chunks of L, counted from its end: the last L are the last chunk, and the
                first one holds what is left, 1 to L of them. Each chunk is a chain of its own. Their sums are
                added one after another, the first chunk's first: ((c0 + c1) + c2) + ... Where k is at most L,
                this is a chain.

Both depend on k alone: not on m, n, the batch, the tile, the layout, the alignment or the GPU. All else is no
such order: slices and lanes share out the k of a step, splits share out steps of bk unless they are chunks,
the groups of two_pass share out splits by the size of C, last_wave splits some tiles and others not.

Where every product of a sum so far underflows to -0, the sign of that zero is in no order's promise: the
first tile is filled up with zeros, whose product is +0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import and_
from typing import Any

import numpy as np

from ..facts.frozen import frozen
from ..files.errors import UsageError
from .config import PARAMETER, Config, threads_along_k

_Floats = np.ndarray[Any, Any]
_AT_ONCE = 1 << 14  # elements of a step of the reference
CHUNKS = tuple(int(length) for length in PARAMETER["flush_k"].values if length)  # L that kernels have


@frozen()
class SummationOrder:
    """`chunk`: the length L of chunks; 0: one chain."""

    chunk: int = 0

    @classmethod
    def parse(cls, text: str) -> SummationOrder:
        """Read `chain` or `chunks:512`. Raises UsageError."""
        found = re.fullmatch("chunks:([1-9][0-9]{0,8})", text) if isinstance(text, str) else None
        if found is None and text != "chain":
            raise UsageError(f"order {text!r}: write chain, or chunks:{CHUNKS[1]}")
        return cls(int(found[1]) if found else 0)

    @classmethod
    def of_kernels(cls, text: str) -> SummationOrder:
        """The same of one that kernels have. Raises UsageError."""
        order = cls.parse(text)
        if order.chunk not in (0, *CHUNKS):
            known = ", ".join(f"chunks:{chunk}" for chunk in CHUNKS)
            raise UsageError(f"no kernel sums in the order {text}; kernels have chain, {known}")
        return order

    def __str__(self) -> str:
        return f"chunks:{self.chunk}" if self.chunk else "chain"

    def is_chain(self, k: int | None) -> bool:
        """Whether a sum of this depth, or of any, is one chain."""
        return self.chunk == 0 or (k is not None and k <= self.chunk)

    def lengths(self, k: int) -> tuple[int, ...]:
        """Of the chunks of a sum of depth k, the first one first; none if k is 0."""
        return tuple(_chunks(k, self.chunk))


CHAIN = SummationOrder()


# What a config must be for a block, and then all of C, to be summed in one order, where k is this or any
# (None): names of parameters that share rules, and the condition on them, of a Config or columns of configs.
CONDITIONS: tuple[tuple[tuple[str, ...], Callable[[Any, SummationOrder, int | None], Any]], ...] = (
    (
        ("wm", "wn", "tm", "tn", "slice_k", "flush_k"),
        lambda c, order, k: (
            (threads_along_k(c) == 1) & ((c.flush_k == order.chunk) | (c.flush_k == 0) & order.is_chain(k))
        ),
    ),
    (
        ("reduction",),
        lambda c, order, k: (c.reduction == "none") | (c.reduction == "chunks") & (order.chunk > 0),
    ),
)


def has_order(c: Any, order: SummationOrder, k: int | None = None) -> Any:
    """Whether all that a kernel computes, where k is this or any, is summed in this order; of a Config or
    columns of configs."""
    return reduce(and_, (holds(c, order, k) for _, holds in CONDITIONS))


def order_of(config: Config) -> SummationOrder | None:
    """The order of all that a kernel computes; None if it depends on more than k."""
    order = SummationOrder(config.flush_k)
    return order if has_order(config, order) else None


def most_k(config: Any, order: str | None) -> int | None:
    """The depth up to which a kernel of a table of this order sums in it; None: any, or there is no order.
    Raises UsageError."""
    chunk = SummationOrder.parse(order).chunk if order else config.flush_k
    return None if config.flush_k == chunk else chunk


def reference(a: Any, b: Any, order: str = "chain") -> _Floats:
    """A * B as a kernel of this order computes it, bit by bit, by NumPy alone: (..., m, k), (..., k, n) ->
    (..., m, n), in FP32. It is slow: k steps over C. Raises UsageError."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    if min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-2]:
        raise UsageError(f"A of shape {a.shape} and B of shape {b.shape}: pass (..., m, k) and (..., k, n)")
    parts = chunk_sums(a, b, SummationOrder.parse(order).lengths(a.shape[-1]))
    return reduce(np.add, parts)


def chunk_sums(a: _Floats, b: _Floats, lengths: Sequence[int]) -> Iterator[_Floats]:
    """The sum of each chunk, of these lengths; of none, zeros. Of a small C, equal ones are computed side by
    side: a step takes as long as the calls of NumPy."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    zeros = np.zeros((*batch, a.shape[-2], b.shape[-1]), np.float32)
    at_once, first = max(1, _AT_ONCE // max(zeros.size, 1)), 0
    for length, equal in groupby(lengths or [0]):
        left = len(list(equal))
        while left:
            count = min(left, at_once)
            sums = np.stack([zeros] * count)  # (chunk, ..., m, n)
            starts = first + length * np.arange(count)
            for p in range(length):
                rows, columns = (np.moveaxis(x, axis, 0)[starts + p] for x, axis in ((a, -1), (b, -2)))
                sums = fma(rows[..., :, None], columns[..., None, :], sums)
            yield from sums
            first, left = first + length * count, left - count


def fma(x: _Floats, y: _Floats, s: _Floats) -> _Floats:
    """x * y + s of float32 arrays, rounded once. In float64 the product is exact and the sum is not: it is
    rounded to odd (its last bit is set where it errs), and then rounding it to 24 bits rounds once (S. Boldo
    and G. Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE Trans. Computers 57, 2008)."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        product = x.astype(np.float64) * y
        total = np.asarray(product + s)
        rest = total - product
        error = (product - (total - rest)) + (s - rest)  # exactly (D. Knuth's two-sum)
        is_even = total.view(np.int64) % 2 == 0
        odd = np.nextafter(total, np.copysign(np.inf, error))
        return np.asarray(np.where(is_even & (np.abs(error) > 0), odd, total), np.float32)


def _chunks(k: int, chunk: int) -> list[int]:
    if not 0 < chunk < k:
        return [k] if k else []
    return [(k - 1) % chunk + 1, *[chunk] * ((k - 1) // chunk)]

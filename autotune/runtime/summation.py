"""How deep a kernel's sums are, which decides its error, and how deep they may be where nothing was measured.

A sum of K products is made in chains of b, and of these K / b are added up (blocked summation, flush_k); the
sums of s threads or blocks (lanes, slices and splits of k, so that K = k / s) are added in turn. For random
data of zero mean each addition is off by as much as the square root of the terms that are in it, so that the
relative error grows like the square root of a depth

    d = b + K / b + s

(after N. Higham and T. Mary, SIAM J. Sci. Comput. 41, 2019). On an H200, over 35 products of every kind and
kernels of depths from 66 to 8194, the relative (Frobenius) error was 1.8e-8 sqrt(d) within 3 %, less where
only tiles of the last wave are split (studies/results, h200-dev-suite and h200-layouts).

cuBLAS splits k, too, as it sees fit. By its error in the same products, its sums are at least this deep: 105
where a side of C is at most 64, 212 where it is at most 256, else 512, and k / 3.8 where C is large; for k up
to 1024 it may be k / 4. A kernel may be so much deeper that its error is MAX_ERROR times as large.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import math

from ..gemm import Gemm
from ..kernel.config import lanes_k
from .table import Kernel

MAX_ERROR = 1.5  # times cuBLAS's, as a search holds its candidates to unless told otherwise
_SHORT, _SHORT_DEPTH = 64, 128  # of the shorter side of C
_NARROW, _NARROW_DEPTH = 256, 212
_WIDE_DEPTH = 512
_LARGE, _MOST_SPLITS = 1 << 20, 3.8  # elements of C from which on cuBLAS splits k so often at most


class Summing:
    """How one kernel sums."""

    def __init__(self, kernel: Kernel) -> None:
        self._flush_k = kernel.config.flush_k
        # last_wave: tiles of whole waves are not split
        splits = 1 if kernel.spec.reduction == "last_wave" else kernel.spec.split_k
        self._num_sums: int = splits * kernel.config.slice_k * lanes_k(kernel.config)

    def depth(self, k: int) -> float:
        """Of the sums over k products."""
        chain = k / self._num_sums
        block = min(self._flush_k or chain, chain)
        return block + (chain / block if block else 0) + self._num_sums


def allowed_depth(gemm: Gemm) -> float:
    """How deep sums may be where nothing was measured."""
    side = min(gemm.m, gemm.n)
    if side <= _SHORT:
        depth: float = _SHORT_DEPTH
    elif side <= _NARROW:
        depth = _NARROW_DEPTH
    else:
        is_large = gemm.m * gemm.n > _LARGE
        depth = max(_WIDE_DEPTH, gemm.k / _MOST_SPLITS if is_large else 0)
    return MAX_ERROR**2 * depth


def excess_error(depth: float, allowed: float) -> float:
    """How many times the error that is allowed a kernel has; 1 where it has no more."""
    return math.sqrt(max(1.0, depth / allowed))

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

Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..gemm import Gemm
from ..kernel.config import Config, lanes_k
from ..models.launches import Floats

_CHAIN_SHARE = 0.9  # of the depth that is allowed: the rest is for adding up the splits
MAX_ERROR = 1.5  # times cuBLAS's, as a search holds its candidates to unless told otherwise
_SHORT, _SHORT_DEPTH = 64, 128  # of the shorter side of C
_NARROW, _NARROW_DEPTH = 256, 212
_WIDE_DEPTH = 512
_LARGE, _MOST_SPLITS = 1 << 20, 3.8  # elements of C from which on cuBLAS splits k so often at most


class Sums(NamedTuple):
    """How kernels sum; arrays."""

    flush_k: Floats  # infinite for one chain
    # Lanes and slices that share out k: of kernels that split it, where the others have 0, and the other way
    # round. last_wave counts as one of the others: its tiles of whole waves are not split.
    parts_of_split: Floats
    parts: Floats
    chains: Floats  # `parts_of_split` where splits alone shorten the chains of sums, else infinite

    @classmethod
    def of(cls, configs: Sequence[Config]) -> Sums:
        flush_k = np.array([config.flush_k or np.inf for config in configs])
        parts = np.array([config.slice_k * lanes_k(config) for config in configs], float)
        is_split = np.array([config.reduction not in ("none", "last_wave") for config in configs], bool)
        chains = np.where(is_split & np.isinf(flush_k), parts, np.inf)
        return cls(flush_k, parts * is_split, parts * ~is_split, chains)

    def take(self, index: Any) -> Sums:
        """Those at these places, or in another arrangement: what an index of NumPy says."""
        return Sums(*(column[index] for column in self))

    def depth(self, split_k: Any, k: int) -> Floats:
        """Of the sums over k products, in so many splits."""
        num_sums = self.parts_of_split * split_k + self.parts
        chain = k / num_sums
        deepest: Floats = np.minimum(self.flush_k, chain) + np.maximum(1.0, chain / self.flush_k) + num_sums
        return deepest

    def accurate_splits(self, k: int, allowed: float) -> Floats:
        """From how many splits on sums are hardly deeper than is allowed; 0 where splits do not decide it."""
        splits: Floats = k / (self.chains * (allowed * _CHAIN_SHARE))
        return splits


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


def excess_depth(depth: Floats, allowed: float) -> Floats:
    """How many times as deep as is allowed kernels sum; 1 where they do not exceed it."""
    excess: Floats = np.maximum(1.0, depth / allowed)
    return excess

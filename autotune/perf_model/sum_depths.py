"""The depth of a kernel's sums, which decides its error, and the allowed depth where nothing was measured.

Of a sum of K products each thread adds up L, in n chains of b and these one after another (blocked summation,
flush_k; else n is 1). The sums of t slices of a block are added one after another, and so are those of s
blocks (splits of k). The error of each addition is a random share of the sum so far. That sum grows as the
square root of its terms for data of zero mean, and as their number for positive data. So the square of the
relative error grows like a depth:

    b + (n - 1) + (t - 1) + (s - 1)                 for data of zero mean,
    (b b + (n - 1) L) / K + (t - 1) + (s - 1)       for positive data

(after N. Higham and T. Mary, SIAM J. Sci. Comput. 41, 2019). On an H200 the relative (Frobenius) errors are
ERRORS times the square roots of these depths, ours and cuBLAS's (decision 0043). Sums of lanes are
added in a tree, and each of its levels adds to the depth (LEVEL). Where g groups of threads share out the s
splits of two_pass (launch.reduce_groups), (s / g - 1) + (g - 1) counts instead of s - 1, for positive data
(s / g - 1) / g + (g - 1).

Tensor cores add the products of p steps of k at a time (promote_k), and only their sums are added like
those of FMAs: b / p for zero mean, b b / (p K) for positive data. Parts of floats, and what tensor cores
lose, count as a depth of their own, which depends on p alone (0092).

cuBLAS splits k by its own rules, and adds up each split in one chain. Of 2,400 drawn shapes, it splits most
no more often than `most_splits` says. By that guess a kernel may have DEFAULT_ERRORS times its error. Where
errors are measured, by a search or by settling, they decide instead; routing reads off cuBLAS how it splits k
(runtime/choose/blas_provider.py). A kernel of a class that promises an error no larger than SGEMM's serves
with a depth of at most PROMISED times the least that SGEMM may have.

The core chooses by the same (core/choice.c); here it serves exports, and tests as the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..facts.gemm import Gemm
from ..kernel.launch import reduce_groups
from ..kernel.scaled_config import AnyConfig
from . import model_figures as figures
from .model_figures import Depths, Floats, Summed, summed


class Sums(NamedTuple):
    """How kernels sum; arrays."""

    flush_k: Floats  # infinite for one chain
    flushes: Floats  # for each step of k
    threads: Floats  # lanes and slices that share out k in a block
    more_slices: Floats  # than one
    levels: Floats  # of the tree that adds up the sums of lanes
    # 1 for kernels that split k, else 0. last_wave counts as one of the others, however small C is: its tiles
    # of whole waves are not split.
    is_split: Floats
    is_two_pass: Floats  # the same
    chains: Floats  # `threads` where splits alone shorten the chains of sums, else infinite
    added: Floats  # products at a time
    parts_zero_mean: Floats  # depths of products of parts; 0 for FMAs
    parts_positive: Floats

    @classmethod
    def of(cls, configs: Sequence[AnyConfig]) -> Sums:
        flush_k = np.array([config.flush_k or np.inf for config in configs])
        sums = np.array([summed(config) for config in configs], float).reshape(-1, len(Summed._fields))
        slices, threads, added, *parts = sums.T
        levels = np.log2(threads / slices)
        whole = ("none", "last_wave", "chunks")  # chunks are flushed sums
        is_split = np.array([config.reduction not in whole for config in configs], float)
        is_two_pass = np.array([config.reduction == "two_pass" for config in configs], float)
        chains = np.where((is_split > 0) & np.isinf(flush_k) & (added == 1), threads, np.inf)
        ways = (flush_k, 1 / flush_k, threads, slices - 1, levels, is_split, is_two_pass, chains)
        return cls(*ways, added, *parts)

    def take(self, index: Any) -> Sums:
        """Those selected, or rearranged, by an index of NumPy."""
        return Sums(*(column[index] for column in self))

    def depths(self, split_k: Any, gemm: Gemm) -> Depths:
        """Of the sums of a product with elements and without a batch, with this number of splits."""
        k = max(gemm.k, 1)
        more_splits = self.is_split * (split_k - 1)
        length = k / (self.threads * (more_splits + 1))
        chain = np.minimum(self.flush_k, length)
        more_chains = np.maximum(length * self.flushes - 1, 0)
        more_groups = self.is_two_pass * (reduce_groups(gemm.m * gemm.n, split_k) - 1)
        in_group = (more_splits + 1) / (more_groups + 1) - 1
        of_zero_mean = self.more_slices + in_group + more_groups + figures.LEVEL[0] * self.levels
        of_positive = (
            self.more_slices + in_group / (more_groups + 1) + more_groups + figures.LEVEL[1] * self.levels
        )
        return Depths(
            chain / self.added + more_chains + of_zero_mean + self.parts_zero_mean,
            (chain * chain / self.added + more_chains * length) / k + of_positive + self.parts_positive,
        )

    def accurate_splits(self, k: int, allowed: Depths) -> Floats:
        """The number of splits from which on the sums over k products, at least one, are hardly deeper than
        allowed; 0 where splits do not decide it."""
        longest = min(
            figures.CHAIN_SHARE * allowed.zero_mean, math.sqrt(figures.CHAIN_SHARE * allowed.positive * k)
        )
        splits: Floats = k / (self.chains * longest)
        return splits


def most_splits(gemm: Gemm, num_sms: int, large: float = figures.LARGE) -> float:
    """The largest number of parts into which cuBLAS usually splits k, on a GPU with this number of SMs. C has
    elements, and is large if these are `large` per SM."""
    elements, side = gemm.m * gemm.n / num_sms, min(gemm.m, gemm.n)
    if _is_dots(gemm):
        splits = gemm.k / min(gemm.k / figures.DOT_THREADS + figures.DOT_ADDED, figures.DOT_DEPTH)
    elif side <= figures.NARROW:
        splits = min(gemm.k / figures.NARROW_DEPTH, figures.NARROW_PARTS)
        if gemm.m <= figures.FEW_ROWS and not gemm.trans_a and gemm.k >= figures.NARROW_DEPTH:
            splits = max(splits, figures.PARTS_OF_FEW_ROWS)
    elif gemm.k < (figures.LEAST_K if elements < large else figures.LEAST_K_OF_LARGE):
        splits = 1.0
    else:
        splits = min(
            figures.SPLITS * math.sqrt(gemm.k) / math.cbrt(elements), gemm.k / figures.SHORTEST_CHAIN
        )
    return max(1.0, splits)


def _is_dots(gemm: Gemm) -> bool:
    """Whether cuBLAS computes dot products: of a vector or of few rows, where the terms of a sum lie side by
    side in both operands; a vector's do in any layout."""
    are_few_rows = gemm.m <= figures.DOT_ROWS and gemm.m * gemm.k <= figures.DOT_ELEMENTS
    lie_along_k = (gemm.m == 1 or not gemm.trans_a) and (gemm.n == 1 or gemm.trans_b)
    return lie_along_k and (gemm.m == 1 or gemm.n == 1 or are_few_rows)


def allowed_depths(gemm: Gemm, num_sms: int, large: float = figures.LARGE) -> Depths:
    """How deep sums may be where nothing was measured, with so many SMs; `large` as of `most_splits`."""
    # shorter sums are accurate anyhow
    k, splits = max(gemm.k, figures.SHORTEST_CHAIN), most_splits(gemm, num_sms, large)
    # More splits than these would make sums deeper again
    of_zero_mean, of_positive = min(splits, math.sqrt(k)), min(splits, math.cbrt(2 * k))
    is_narrow = min(gemm.m, gemm.n) <= figures.NARROW
    zero_mean = k / splits if is_narrow else k / of_zero_mean + of_zero_mean - 1
    positive = k / of_positive**2 + (figures.NARROW_ADDING if is_narrow else 1) * (of_positive - 1)
    if k >= figures.LEAST_K and _is_dots(gemm):
        positive = figures.DOT_POSITIVE
    return Depths(zero_mean, positive).within(*figures.DEFAULT_ERRORS)

"""Accuracy classes: what is promised of a product in FP32, not how it is computed.

    strict      FMAs in FP32 alone: the error is that of adding up k products, in the kernel's order
    fp32        an error no larger than SGEMM's (cuBLAS, pedantic FP32) by Frobenius and by element against
                |A| |B|, on operands of every kind in `KINDS`; an Inf in an operand may give NaN
    fp32-range  the same, and Inf and NaN as SGEMM has them; fast while numbers of a row of A, and of a column
                of B, lie within 2^29 of each other in every 64 of k: FMAs multiply other parts

A wider class holds the narrower ones: strict kernels serve a call for fp32. Nothing is ever served by a class
wider than what was asked for. Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..files.errors import AutotuneError, UsageError
from ..files.words import one_of, option

CLASSES = STRICT, FP32, FP32_RANGE = "strict", "fp32", "fp32-range"  # each holds those before it

# Kinds of operands on which a class is verified, in the order of `fill_operand` in kernels/checks.cu. Their
# own facts are stated there; `normal` is that of every problem.
KINDS = ("normal", "uniform", "wide", "scaled", "cancelling")


def read(text: str, *, error: type[AutotuneError] = UsageError) -> str:
    """The class of this name. Raises `error`."""
    return str(one_of(option("accuracy"), text, CLASSES, error=error))


def serves(kernel: str, requested: str) -> bool:
    """Whether a kernel of one class may serve a call for another."""
    return CLASSES.index(kernel) <= CLASSES.index(requested)


def held_by(widest: str) -> Sequence[str]:
    """The classes that one of them holds, itself the last."""
    return CLASSES[: CLASSES.index(widest) + 1]


def excess(ours: tuple[float, float], sgemms: tuple[float, float]) -> float:
    """The largest of our errors (Frobenius, by element) over SGEMM's on the same operands: at most 1 is as
    the class promises. Where SGEMM is exact, so must we be."""
    return max(a / b if b else float("inf") if a else 0.0 for a, b in zip(ours, sgemms, strict=True))


# How far a product in FP32 may be off from float64's, for data of zero mean: every candidate of a search is
# held to it, and what a table serves. A float dot product of length k, summed in any order and scaled once,
# is off by at most (k + 2) u |a|.|b| with u = 2^-24 (Higham, "Accuracy and Stability of Numerical
# Algorithms", 2002, section 3.1): certain, but for large k so loose that a lost term would go undetected.
# Rounding errors are as good as random, so that the error grows like sqrt(k) u |a|.|b| (Higham and Mary, "A
# new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019), and for data of
# zero mean, such as ours, partial sums cancel too and it does not exceed a constant times u |a|.|b| at any
# k (the same, "Sharper probabilistic backward error analysis for basic linear algebra kernels with random
# data", 42, 2020). Summing 3e5 to 1e6 pairs of normal numbers one by one, we saw at most 6.4 u |a|.|b| for
# every k up to 8192. As |a|.|b| itself grows like 0.64 k, the bound is 0.004 at k = 4096 and 0.09 at k =
# 100000, while one lost term is 0.64 on average; the error of any correct order of summation stays below a
# third of it.
UNIT_ROUNDOFF = 2.0**-24
ZERO_MEAN_FACTOR = 24.0

_Floats = np.ndarray[Any, Any]


def gamma(k: int) -> float:
    """The bound of |C - C64| relative to |a|.|b|: min(k + 2, ZERO_MEAN_FACTOR) u."""
    return min(k + 2.0, ZERO_MEAN_FACTOR) * UNIT_ROUNDOFF


def worst_ratio(k: int, result: _Floats, exact: _Floats, size: _Floats) -> float:
    """The largest |C - C64| over its bound; above 1 it is wrong. `exact` is C64 and `size` |a|.|b|, with
    scales, as float64, of the elements of `result`."""
    return float(np.max(np.abs(result - exact) / (gamma(k) * size + np.finfo(np.float32).tiny)))

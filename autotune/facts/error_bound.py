"""How far a product in FP32 may be off from float64's, for data of zero mean.

Let u = 2^-24. A float dot product of length k, summed in any order and scaled once, is off
by at most (k + 2) u |a|.|b| (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1):
certain, but for large k so loose that a lost term would go undetected. Rounding errors are as good as random,
so that the error grows like sqrt(k) u |a|.|b| (Higham and Mary, "A new approach to probabilistic rounding
error analysis", SIAM J. Sci. Comput. 41, 2019), and for data of zero mean, such as ours, partial sums
cancel too and it does not exceed a constant times u |a|.|b| at any k (the same, "Sharper probabilistic
backward error analysis for basic linear algebra kernels with random data", 42, 2020). Summing 3e5 to 1e6
pairs of normal numbers one by one, we saw at most 6.4 u |a|.|b| for every k up to 8192. Hence

    |C - C64| <= min(k + 2, ZERO_MEAN_FACTOR) u |a|.|b|,

where |a|.|b| itself grows like 0.64 k: at k = 4096 the bound is 0.004, at k = 100000 0.09, while one lost
term is 0.64 on average. The error of any correct order of summation stays below a third of it.

Every candidate of a search is held to it, and what a table serves. Copied into exported tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np

UNIT_ROUNDOFF = 2.0**-24
ZERO_MEAN_FACTOR = 24.0

_Floats = np.ndarray[Any, Any]


def gamma(k: int) -> float:
    """The bound of |C - C64| relative to |a|.|b|."""
    return min(k + 2.0, ZERO_MEAN_FACTOR) * UNIT_ROUNDOFF


def worst_ratio(k: int, result: _Floats, exact: _Floats, size: _Floats) -> float:
    """The largest |C - C64| over its bound; above 1 it is wrong. `exact` is C64 and `size` |a|.|b|, with
    scales, as float64, of the elements of `result`."""
    return float(np.max(np.abs(result - exact) / (gamma(k) * size + np.finfo(np.float32).tiny)))

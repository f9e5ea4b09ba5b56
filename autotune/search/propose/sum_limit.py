"""Predicts from results which points are inaccurate.

Rounding errors grow with the longest sum that a thread adds up one by one. The limit is relative to cuBLAS,
which splits long products where C is small. So if anything is inaccurate, it is almost only because of the
length of its sums: of 1,489 recorded kernels of a 16x11008x4096, the 949 inaccurate ones and 20
others add up 341 products and more, the 481 others fewer. Such a length is learnt, and nothing beyond it
proposed.

Kernels on tensor cores that agree in `summed` sum alike, bit by bit: of 3,029 of a 512x512x4096, 2,467 broke
their promise, in 91 of 92 such ways. A way that failed is not proposed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ...kernel.feasible_set import FeasibleSet
from .candidates import Candidates

# This many must fail with sums of a length or more before it counts as too long, and as many for each that
# did not fail: `last_wave` splits only part of its tiles, and such successes are slow.
LEAST_FAILED = 4


class SameSums:
    """For kernels on tensor cores; `summed`: the parameters that decide how they sum."""

    is_sure = True  # what is predicted to fail need not be tried

    def __init__(self, space: FeasibleSet, candidates: Candidates, summed: Sequence[str]) -> None:
        self._candidates = candidates
        self._places = [space.names.index(name) for name in summed]
        self._has_failed = np.zeros([len(space.values[at]) for at in self._places], dtype=bool)

    def learn(self, results: Mapping[int, float | None]) -> None:
        """Results: time in us by point, None for a failure."""
        ways = self._ways(np.fromiter(results, np.int64, len(results)))
        has_failed = np.array([time is None for time in results.values()], dtype=bool)
        shape = self._has_failed.shape
        failed, right = (
            np.bincount(ways[kept], minlength=self._has_failed.size).reshape(shape)
            for kept in (has_failed, ~has_failed)
        )
        self._has_failed = (failed > 1) & (right == 0)  # one alone may have failed for another reason

    def will_fail(self, numbers: np.ndarray) -> np.ndarray:
        """Whether points are predicted to fail; (q,) -> (q,)."""
        found: np.ndarray = self._has_failed.ravel()[self._ways(numbers)]
        return found

    def _ways(self, numbers: np.ndarray) -> np.ndarray:
        codes = self._candidates.codes(numbers)[:, self._places]
        return np.asarray(np.ravel_multi_index(list(codes.T), self._has_failed.shape))


class SumLimit:
    """Knows from the results so far how long a sum may be. Without traits of the points: any length."""

    is_sure = False

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._limit = math.inf

    def learn(self, results: Mapping[int, float | None]) -> None:
        sums = self._candidates.longest_sums(np.fromiter(results, np.int64, len(results)))
        self._limit = least_failing(sums, np.array([time is None for time in results.values()], dtype=bool))

    def will_fail(self, numbers: np.ndarray) -> np.ndarray:
        if math.isinf(self._limit):
            return np.zeros(len(numbers), dtype=bool)
        return self._candidates.longest_sums(numbers) >= self._limit


Inaccurate: TypeAlias = "SameSums | SumLimit"  # knows from the results so far which points are inaccurate


def inaccurate(space: FeasibleSet, candidates: Candidates) -> Inaccurate:
    its = space.on_tensor_cores
    return SameSums(space, candidates, its.summed) if its else SumLimit(candidates)


def least_failing(sums: np.ndarray, has_failed: np.ndarray) -> float:
    """The length from which on sums fail: of those that separate failures best, the longest. Infinite if too
    few fail, if too many of that length do not, or if no shorter sum was accurate; shapes (n,)."""
    if not len(sums):
        return math.inf
    order = np.argsort(-sums, kind="stable")
    sums, has_failed = sums[order], has_failed[order]
    num_failed, num_ok = np.cumsum(has_failed), np.cumsum(~has_failed)
    ends = np.append(np.flatnonzero(np.diff(sums)), len(sums) - 1)  # the last of each length
    failed, ok = num_failed[ends], num_ok[ends]
    best = int(np.argmax(failed - ok))
    is_clear = failed[best] >= LEAST_FAILED * max(1, ok[best])
    return float(sums[ends[best]]) if is_clear and ok[best] < ok[-1] else math.inf

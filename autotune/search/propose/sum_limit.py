"""Predicts from results which points are inaccurate.

Rounding errors grow with the longest sum that a thread adds up one by one. The limit is relative to cuBLAS,
which splits long products where C is small. So if anything is inaccurate, it is almost only because of the
length of its sums: of 1,489 recorded kernels of a 16x11008x4096, the 949 inaccurate ones and 20
others add up 341 products and more, the 481 others fewer. Such a length is learnt, and nothing beyond it
proposed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .candidates import Candidates

# This many must fail with sums of a length or more before it counts as too long, and as many for each that
# did not fail: `last_wave` splits only part of its tiles, and such successes are slow.
LEAST_FAILED = 4


class SumLimit:
    """Knows from the results so far how long a sum may be. Without traits of the points: any length."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._sums: dict[int, float] = {}  # of points with a result
        self._limit = math.inf

    def learn(self, results: Mapping[int, float | None]) -> None:
        """Results: time in us by point, None for a failure."""
        new = np.array([number for number in results if number not in self._sums], dtype=np.int64)
        if len(new):
            self._sums.update(zip(new.tolist(), self._candidates.longest_sums(new).tolist(), strict=True))
            sums = np.array([self._sums[number] for number in results])
            self._limit = least_failing(sums, np.array([time is None for time in results.values()]))

    def will_fail(self, numbers: np.ndarray) -> np.ndarray:
        """Whether points are predicted to fail; (q,) -> (q,)."""
        if math.isinf(self._limit):
            return np.zeros(len(numbers), dtype=bool)
        return self._candidates.longest_sums(numbers) >= self._limit


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

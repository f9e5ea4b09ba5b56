"""What to try next, given all results so far: Bayesian optimisation over a feasible set.

Two views of the times alternate: their logarithms, under a narrow prior of lengths, as a few dozen results
say little of a dozen lengths; and logarithms cut off at their median, under a wide one, so that the
differences among bad ones do not distort the model near the good ones. On a recorded space (see
benchmarks/search_replay.py) the pair finds the optimum where either alone sometimes gets stuck.

A region of points (regions.py: of our kernel, a tile) is a hill of its own, and steps of one parameter do not
leave it. So candidates are also moved between regions, and parents come from many regions: otherwise each
search of a shape spent most of its trials on the hill that it found first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ...search_policy import SearchPolicy
from .candidates import Candidates
from .origins import CLIMBED, DRAWN, MIXTURE, NEIGHBOUR, merged
from .sum_limit import Inaccurate
from .surrogate import NARROW, WIDE, Lengths, Surrogate, fit_lengths

_SHORTLIST = 128  # of the most promising candidates, among which a batch is spread


@dataclass
class _View:
    """One transformation of the times, with its own lengths."""

    is_cut: bool
    lengths: Lengths
    num_at_fit: int = 0  # results when its lengths were fitted

    def targets(self, log_times: np.ndarray) -> np.ndarray:
        """Standardised; (n,) -> (n,)."""
        if self.is_cut:
            log_times = np.minimum(log_times, np.median(log_times))
        deviation = float(log_times.std())
        standard: np.ndarray = (log_times - log_times.mean()) / (deviation if deviation > 0 else 1.0)
        return standard


class Model:
    """Proposes points; keeps the fitted lengths from one call to the next."""

    def __init__(
        self, candidates: Candidates, sum_limit: Inaccurate, rng: np.random.Generator, policy: SearchPolicy
    ) -> None:
        self._candidates, self._policy = candidates, policy
        self._sum_limit = sum_limit
        self._rng = rng
        self._views = [
            _View(is_cut, Lengths.prior(candidates.num_features, width))
            for is_cut, width in ((False, NARROW), (True, WIDE))
        ]
        self._num_views_taken = 0

    def propose(
        self,
        results: Mapping[int, float | None],
        pending: Collection[int],
        seen: Collection[int],
        wanted: int = 1,
    ) -> list[tuple[int, str]]:
        """The next points, none of those seen, best first, and their origins. `results`: time in us by point,
        None for a failure; at least one has a time. `wanted`: points needed before there are new results."""
        points, log_times = self._results(results)
        surrogate = self._surrogate(points, log_times, pending)
        size = max(wanted, 1, min(self._policy.most_planned, math.isqrt(len(points))))
        found, origins = merged(self._pool(self._parents(points[np.argsort(log_times, kind="stable")])))
        pool = self._allowed(_not_proposed(found, seen))
        if not len(pool):
            return []
        predictions = surrogate.predictions(self._candidates.features(pool), _SHORTLIST)
        best = pool[predictions.places[surrogate.best_batch(predictions, self._policy.num_climbed)]]
        near = self._allowed(_not_proposed(self._candidates.neighbours(best), seen))
        local_steps = np.setdiff1d(near, pool)
        further = surrogate.predictions(self._candidates.features(local_steps), _SHORTLIST)
        pool = np.concatenate([pool[predictions.places], local_steps[further.places]])
        predictions += further
        top = np.argsort(-predictions.gain, kind="stable")[:_SHORTLIST]
        chosen = pool[top[surrogate.best_batch(predictions.at(top), size)]]
        at = np.minimum(np.searchsorted(found, chosen), len(found) - 1)
        named = np.where(found[at] == chosen, origins[at], CLIMBED)
        return list(zip(chosen.tolist(), named.tolist(), strict=True))

    def pick(
        self, results: Mapping[int, float | None], pending: Collection[int], pool: np.ndarray, size: int
    ) -> list[int]:
        """As `propose`, but only among these unseen points: at most this many, best first."""
        pool = self._allowed(pool)
        if not len(pool):
            return []
        surrogate = self._surrogate(*self._results(results), pending)
        predictions = surrogate.predictions(self._candidates.features(pool), _SHORTLIST)
        chosen: list[int] = pool[predictions.places[surrogate.best_batch(predictions, size)]].tolist()
        return chosen

    def _allowed(self, numbers: np.ndarray) -> np.ndarray:
        points = self._candidates.points_of(numbers)
        allowed: np.ndarray = points[~self._sum_limit.will_fail(points)]
        return allowed

    def _results(self, results: Mapping[int, float | None]) -> tuple[np.ndarray, np.ndarray]:
        """Points and logarithms of their times; a failure counts as the slowest that ran. Predicted ones are
        left out: they say nothing of other points, and many would dominate the fit."""
        points = np.fromiter(results, dtype=np.int64, count=len(results))
        times = np.array([np.nan if t is None else t for t in results.values()], dtype=float)
        slowest = np.nanmax(times)
        kept = ~(np.isnan(times) & self._sum_limit.will_fail(points))
        points, times = points[kept], times[kept]
        times[np.isnan(times)] = slowest
        return points, np.log(times)

    def _surrogate(self, points: np.ndarray, log_times: np.ndarray, pending: Collection[int]) -> Surrogate:
        """Of one view, then of the other; its lengths are fitted again if there are enough new results."""
        view = self._views[self._num_views_taken % len(self._views)]
        self._num_views_taken += 1
        kept = self._subset(log_times)
        x = self._candidates.features(points[kept])
        z = view.targets(log_times[kept])
        if len(points) >= self._policy.growth * view.num_at_fit:
            view.lengths = fit_lengths(x, z, view.lengths)
            view.num_at_fit = len(points)
        waiting = self._candidates.features(np.array(sorted(pending), dtype=np.int64))
        return Surrogate.condition(x, z, waiting, view.lengths)

    def _subset(self, log_times: np.ndarray) -> np.ndarray:
        """Which results to fit: all, or the best ones for a tenth and a random part of the others, each time
        another. Of mostly good results a model would not know where it has been (decision 0068)."""
        most = self._policy.num_fitted
        if len(log_times) <= most:
            return np.arange(len(log_times))
        best, others = np.split(np.argsort(log_times, kind="stable"), [max(1, most // 10)])
        return np.concatenate([best, self._rng.choice(others, most - len(best), replace=False)])

    def _parents(self, ranked: np.ndarray) -> np.ndarray:
        """The best points, and the best point of each of the best regions; points ranked by time."""
        best = ranked[: self._policy.num_fitted]
        region_bests = best[self._candidates.firsts(best)[: self._policy.num_founders]]
        return np.union1d(ranked[: self._policy.num_parents], region_bests)

    def _pool(self, parents: np.ndarray) -> dict[str, np.ndarray]:
        """Candidates by origin, starting with the smallest changes."""
        return {
            NEIGHBOUR: self._candidates.neighbours(parents),
            **self._candidates.moves(self._rng, parents, self._policy.num_carried),
            MIXTURE: self._candidates.mixtures(self._rng, parents, self._policy.num_mixed),
            DRAWN: self._candidates.random(self._rng, self._policy.num_drawn),
        }


def _not_proposed(numbers: np.ndarray, seen: Collection[int]) -> np.ndarray:
    return np.array([n for n in numbers.tolist() if n not in seen], dtype=np.int64)

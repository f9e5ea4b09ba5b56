"""What to try next, given all results so far: Bayesian optimisation over a feasible set.

Two views of the times take turns: their logarithms, under a narrow prior of lengths, as a few dozen results
say little of a dozen lengths; and logarithms cut off at their median, under a wide one, so that how bad the
bad ones are does not bend the model where the good ones lie. On a recorded space (see
benchmarks/search_replay.py) the pair finds the optimum where either alone is at times stuck.

A block of points (blocks.py: of our kernel, a tile) is a hill of its own, and steps of one parameter do not
leave it. So candidates are moved between blocks, too, and parents and the results that are fitted come from
many blocks: searches of one shape had each spent most of their trials on the hill that they met first. And
every second proposal goes to the block whose turn it is (bandit.py), as long as blocks that were met may turn
out to be better than their few trials tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from .bandit import next_block
from .candidates import Candidates
from .origins import CLIMBED, DRAWN, MIXTURE, NEIGHBOUR, TURN, merged
from .sum_limit import SumLimit
from .surrogate import NARROW, WIDE, Lengths, Surrogate, fit_lengths

MAX_FITTED = 360  # results that the process is conditioned on
BEST_FITTED = 240  # of these, the best ones; more, and an ask takes too long
BLOCKS_FITTED = 80  # among these, first of all, the best one of each of so many blocks
NUM_RANDOM = 1500  # candidates drawn over the whole set
NUM_MIXED = 400  # candidates mixed from good points and others
NUM_PARENTS = 6  # best points whose neighbours are candidates
NUM_FOUNDERS = 8  # best points of a block each, whose neighbours are candidates, too
NUM_CARRIED = 16  # other blocks that each of all these is carried to
NUM_CLIMBED = 3  # most promising candidates whose neighbours are looked at in turn
RESULTS_PER_PLAN = 100  # one point more is planned at a time for each so many results
OPEN_PER_PLAN = 4  # and for each so many under way: then one result more decides little
MAX_PLAN = 8
TURNS_AFTER = 100  # results; before, what leads anywhere is looked for
TURN_EVERY = 2  # proposals, one goes to the block whose turn it is
BEST_OF_BLOCK = 4  # points of that block whose relatives in it are candidates, beside the best of all
NUM_DRAWN = 100  # of its points drawn at random
REFIT_AFTER = 5  # new results, or a tenth of all, before lengths are fitted again
_SHORTLIST = 128  # of the most promising candidates, among which a batch is spread
_CUT_QUANTILE = 0.5


@dataclass
class _View:
    """One transformation of the times, with its own lengths."""

    is_cut: bool
    lengths: Lengths
    num_fitted: int = -1_000_000

    def targets(self, log_times: np.ndarray) -> np.ndarray:
        """Standardised; (n,) -> (n,)."""
        if self.is_cut:
            log_times = np.minimum(log_times, np.quantile(log_times, _CUT_QUANTILE))
        deviation = float(log_times.std())
        standard: np.ndarray = (log_times - log_times.mean()) / (deviation if deviation > 0 else 1.0)
        return standard


class Model:
    """Proposes points; keeps what it learnt of the lengths from one call to the next."""

    def __init__(self, candidates: Candidates, accuracy: SumLimit, rng: np.random.Generator) -> None:
        self._candidates = candidates
        self._accuracy = accuracy
        self._rng = rng
        self._views = [
            _View(is_cut, Lengths.prior(candidates.num_features, width))
            for is_cut, width in ((False, NARROW), (True, WIDE))
        ]
        self._num_views_taken = 0
        self._num_proposed = 0

    def propose(
        self,
        results: Mapping[int, float | None],
        pending: Collection[int],
        seen: Collection[int],
        wanted: int = 1,
    ) -> list[tuple[int, str]]:
        """The next points, none of those seen, and their origins: of the whole set, best first, then of
        blocks whose turn it is. Empty if no candidate was found.

        `results`: time in us by point, None for a failure; at least one has a time. `wanted`: points that
        are needed before there are new results; the plan holds at least as many, if there are.
        """
        points, log_times = self._told(results)
        surrogate = self._surrogate(points, log_times, pending)
        order = np.argsort(log_times, kind="stable")
        ranked = points[order]
        size = 1 + max(len(points) // RESULTS_PER_PLAN, len(pending) // OPEN_PER_PLAN)
        size = max(wanted, min(MAX_PLAN, size))
        num_turns = self._num_turns(len(points), size)
        turns = self._in_turn(surrogate, ranked, log_times[order], pending, seen, num_turns)
        anywhere = self._anywhere(surrogate, ranked, {*seen, *turns}, size - len(turns))
        return [*anywhere, *((number, TURN) for number in turns)]

    def _num_turns(self, num_results: int, size: int) -> int:
        """How many of so many proposals go to blocks whose turn it is."""
        if num_results < TURNS_AFTER:
            return 0
        first = self._num_proposed
        self._num_proposed += size
        return self._num_proposed // TURN_EVERY - first // TURN_EVERY

    def _in_turn(
        self,
        surrogate: Surrogate,
        ranked: np.ndarray,
        log_times: np.ndarray,
        pending: Collection[int],
        seen: Collection[int],
        size: int,
    ) -> list[int]:
        """At most so many points, the most promising of the blocks whose turn it is. Ranked: all points with
        a result, best first, and the logarithms of their times."""
        if size == 0:
            return []
        blocks = self._candidates.blocks_of(ranked)
        under_way = self._candidates.blocks_of(np.array(sorted(pending), dtype=np.int64)).tolist()
        wanted: Counter[int] = Counter()
        for _ in range(size):
            block = next_block(blocks, log_times, under_way)
            under_way.append(block)
            wanted[block] += 1
        found: list[int] = []
        for block, num in wanted.items():
            parents = np.union1d(ranked[:NUM_PARENTS], ranked[blocks == block][:BEST_OF_BLOCK])
            near = self._candidates.within(self._rng, block, parents, NUM_DRAWN)
            pool = self._hopeful(_unseen(near, seen))
            if len(pool):
                found += self._best(surrogate, pool, num)
        return found

    def _anywhere(
        self, surrogate: Surrogate, ranked: np.ndarray, seen: Collection[int], size: int
    ) -> list[tuple[int, str]]:
        """At most so many points of the whole set, best first, and the origin of each."""
        if size <= 0:
            return []
        found, origins = merged(self._pool(self._parents(ranked)))
        pool = self._hopeful(_unseen(found, seen))
        if not len(pool):
            return []
        outlook = surrogate.outlook(self._candidates.features(pool), _SHORTLIST)
        best = pool[outlook.places[surrogate.best_batch(outlook, NUM_CLIMBED)]]
        near = self._hopeful(_unseen(self._candidates.neighbours(best), seen))
        climbed = np.setdiff1d(near, pool)
        further = surrogate.outlook(self._candidates.features(climbed), _SHORTLIST)
        origin_of = dict(zip(found.tolist(), origins.tolist(), strict=True))
        pool = np.concatenate([pool[outlook.places], climbed[further.places]])
        outlook += further
        top = np.argsort(-outlook.gain, kind="stable")[:_SHORTLIST]
        chosen = pool[top[surrogate.best_batch(outlook.at(top), size)]].tolist()
        return [(number, origin_of.get(number, CLIMBED)) for number in chosen]

    def _best(self, surrogate: Surrogate, pool: np.ndarray, size: int) -> list[int]:
        """The most promising points of a pool, at most so many, best first."""
        outlook = surrogate.outlook(self._candidates.features(pool), _SHORTLIST)
        chosen: list[int] = pool[outlook.places[surrogate.best_batch(outlook, size)]].tolist()
        return chosen

    def pick(
        self,
        results: Mapping[int, float | None],
        pending: Collection[int],
        pool: np.ndarray,
        size: int,
    ) -> list[int]:
        """As `propose`, of these points only, of which none was seen: at most so many, best first."""
        pool = self._hopeful(pool)
        if not len(pool):
            return []
        return self._best(self._surrogate(*self._told(results), pending), pool, size)

    def _hopeful(self, numbers: np.ndarray) -> np.ndarray:
        hopeful: np.ndarray = numbers[~self._accuracy.is_hopeless(numbers)]
        return hopeful

    def _told(self, results: Mapping[int, float | None]) -> tuple[np.ndarray, np.ndarray]:
        """Points and logarithms of their times; a failure counts as the slowest that ran. Those that were
        bound to fail say nothing of the others, and would be most of what is fitted where they are many."""
        points = np.fromiter(results, dtype=np.int64, count=len(results))
        times = np.array([np.nan if t is None else t for t in results.values()], dtype=float)
        slowest = np.nanmax(times)
        kept = ~(np.isnan(times) & self._accuracy.is_hopeless(points))
        points, times = points[kept], times[kept]
        times[np.isnan(times)] = slowest
        return points, np.log(times)

    def _surrogate(self, points: np.ndarray, log_times: np.ndarray, pending: Collection[int]) -> Surrogate:
        """Of the view whose turn it is, its lengths fitted anew where there is enough to learn from."""
        view = self._views[self._num_views_taken % len(self._views)]
        self._num_views_taken += 1
        kept = self._subset(points, log_times)
        x = self._candidates.features(points[kept])
        z = view.targets(log_times[kept])
        if len(points) - view.num_fitted >= max(REFIT_AFTER, len(points) // 10):
            view.lengths = fit_lengths(x, z, view.lengths)
            view.num_fitted = len(points)
        waiting = self._candidates.features(np.array(sorted(pending), dtype=np.int64))
        return Surrogate.condition(x, z, waiting, view.lengths)

    def _subset(self, points: np.ndarray, log_times: np.ndarray) -> np.ndarray:
        """Which results to fit: all, or the best of the best blocks, the best, and a random part of the
        others."""
        if len(log_times) <= MAX_FITTED:
            return np.arange(len(log_times))
        order = np.argsort(log_times, kind="stable")
        first = self._candidates.firsts(points[order])[:BLOCKS_FITTED]
        order = np.concatenate([order[first], np.delete(order, first)])
        others = self._rng.choice(order[BEST_FITTED:], MAX_FITTED - BEST_FITTED, replace=False)
        return np.concatenate([order[:BEST_FITTED], others])

    def _parents(self, ranked: np.ndarray) -> np.ndarray:
        """The best points, and the best point of each of the best blocks; points ranked by time."""
        founders = ranked[self._candidates.firsts(ranked[:BEST_FITTED])[:NUM_FOUNDERS]]
        return np.union1d(ranked[:NUM_PARENTS], founders)

    def _pool(self, parents: np.ndarray) -> dict[str, np.ndarray]:
        """Candidates by origin, those first that change least."""
        drawn = self._candidates.random(self._rng, NUM_RANDOM)
        return {
            NEIGHBOUR: self._candidates.neighbours(parents),
            **self._candidates.moves(self._rng, parents, NUM_CARRIED),
            MIXTURE: self._candidates.mixtures(self._rng, parents, NUM_MIXED),
            DRAWN: drawn,
        }


def _unseen(numbers: np.ndarray, seen: Collection[int]) -> np.ndarray:
    return np.array([n for n in numbers.tolist() if n not in seen], dtype=np.int64)

"""Chooses the region of a set for the next point; regions of our kernel are tiles.

A tile's first trial says little about its speed: with the splits, order and residency that suit another one
it may take a third longer than with its own (decision 0023). A tile is judged by its best, so this is a
bandit in which the greatest reward decides, not the mean (V. Cicirello, S. Smith, "The Max
K-Armed Bandit", AAAI 2005). As in other bandits the arm with the best hope is simulated (P. Auer, N.
Cesa-Bianchi, P. Fischer, "Finite-time Analysis of the Multiarmed Bandit Problem", Machine Learning 47, 2002):
a tile's hope is its best time less the gain that tiles still make after this many trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np


def next_region(
    regions: np.ndarray, log_times: np.ndarray, margin: float, under_way: Iterable[int] = ()
) -> int:
    """The region whose hope is the shortest time.

    `hope`: the assumed further gain of a region, a share of its best time, over the root of one more than its
    trials.

    `regions`: of each result, at least one; log_times: logarithms of the times; both (n,). `under_way`:
    regions of the points that have no result yet, which count as trials.
    """
    met, index, counts = np.unique(regions, return_inverse=True, return_counts=True)
    best = np.full(len(met), np.inf)
    np.minimum.at(best, index, log_times)
    open_counts = Counter(under_way)
    trials = counts + np.array([open_counts[region] for region in met.tolist()])
    return int(met[np.argmin(best + np.log1p(-margin / np.sqrt(trials + 1)))])

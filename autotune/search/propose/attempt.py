"""One attempt of a model at a set: from the points that it was given to where a gain is unlikely.

A process follows the first good hill that it meets. Of searches of drawn shapes on GPUs, the few that ended
far behind another search had all been on the wrong hill, without a gain, for most of their trials (decision
0070). So a search that is stuck starts again, with a model that knows only what came from elsewhere. Source:
restarts of trust regions after many proposals in a row without success, D. Eriksson, M. Pearce, J. Gardner,
R. Turner, M. Poloczek, Scalable Global Optimization via Local Bayesian Optimization (NeurIPS 2019).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...stats import Patience
from .bayesian import Model


class Attempt:
    """A model, and the results that it knows: first those that it is given, then those that it meets."""

    def __init__(self, model: Model, given: Mapping[int, float | None]) -> None:
        self.model = model
        self.results = dict(given)  # by point: time in us; None: failed
        self._num_given = len(given)

    def learn(self, results: Mapping[int, float | None]) -> bool:
        """Returns whether one of them is the best of all that it knows."""
        best = self._best()
        self.results.update(results)
        return self._best() < best

    def correct(self, number: int, time_us: float) -> None:
        """From now on use this time of a point, if it is known."""
        if number in self.results:
            self.results[number] = time_us

    @property
    def has_times(self) -> bool:
        return any(time is not None for time in self.results.values())

    @property
    def is_stuck(self) -> bool:
        """Whether a gain is unlikely, by what it met."""
        return Patience().is_over([*self.results.values()][self._num_given :])

    def _best(self) -> float:
        return min((t for t in self.results.values() if t is not None), default=np.inf)

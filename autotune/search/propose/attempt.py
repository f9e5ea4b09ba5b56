"""One attempt of a model at a set: from the points that it was given to where a gain is unlikely.

A process follows the first good hill that it meets. Of searches of drawn shapes on GPUs, nearly all that
ended far behind another search had been on the wrong hill, without a gain, for most of their trials (decision
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
    """A model, and the results that it knows: those that it is given, learns and recalls; times in us by
    point, None for a failure."""

    def __init__(self, model: Model, given: Mapping[int, float | None]) -> None:
        self.model = model
        self.results = dict(given)
        self._to_beat = self._best()
        self._num_learnt = self._num_since_gain = 0

    def learn(self, results: Mapping[int, float | None]) -> bool:
        """Results of new trials. Returns whether one of them is the best of all that it knows."""
        self._num_learnt += len(results)
        return self._take_in(results)

    def recall(self, results: Mapping[int, float | None]) -> None:
        """Results of points that an earlier attempt tried: no trials of this one."""
        self._take_in(results)

    def _take_in(self, results: Mapping[int, float | None]) -> bool:
        best = self._best()
        self.results.update(results)
        for time_us in results.values():
            self._num_since_gain += 1
            if time_us is not None and time_us < self._to_beat * (1 - Patience.gain):
                self._to_beat, self._num_since_gain = time_us, 0
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
        """Whether a gain is unlikely, by all that it met. What it recalls counts, so that it does not stay
        where another was; but it makes some new trials, or there would be no end of attempts."""
        patience = Patience()
        is_unlikely = patience.chance(self._num_since_gain) < patience.risk
        return is_unlikely and self._num_learnt >= patience.min_trials

    def _best(self) -> float:
        return min((t for t in self.results.values() if t is not None), default=np.inf)

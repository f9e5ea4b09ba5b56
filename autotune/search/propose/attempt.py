"""One attempt of a model at a set: from the points that it was given to where a gain is unlikely.

A Gaussian process follows the first good hill that it meets. Of searches of drawn shapes on GPUs, nearly all
that ended far behind another search had been on the wrong hill, without a gain, for most of their trials
(decision 0070). So a search that is stuck starts again, with a model that knows only what came from
elsewhere. Source: restarts of trust regions after many proposals in a row without success, D. Eriksson, M.
Pearce, J. Gardner, R. Turner, M. Poloczek, Scalable Global Optimization via Local Bayesian Optimization
(NeurIPS 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...facts.stats import Patience
from .bayesian import Model

Results = Mapping[int, float | None]  # times in us by point; None: failed


class Attempt:
    """A model, and the results that it knows: those that it is given, learns and recalls."""

    def __init__(self, model: Model, given: Results) -> None:
        self.model = model
        self.results = dict(given)
        best = best_us(given)
        self._met: list[float | None] = [best] if best < math.inf else []  # then times as they come
        self._num_results = 0

    def learn(self, results: Results) -> bool:
        """Results of new trials. Returns whether one of them is the best of all that it knows."""
        is_best = best_us(results) < best_us(self.results)
        self._num_results += len(results)
        self.recall(results)
        return is_best

    def recall(self, results: Results) -> None:
        """Results of points that an earlier attempt tried: no trials of this one."""
        self.results.update(results)
        self._met += results.values()

    def correct(self, number: int, time_us: float) -> None:
        """From now on use this time of a point, if it is known."""
        if number in self.results:
            self.results[number] = time_us

    @property
    def is_stuck(self) -> bool:
        """Whether a gain is unlikely, by all that it met. What it recalls counts, so that it does not stay
        where another was; but it makes some new trials, or there would be no end of attempts."""
        patience = Patience()
        return self._num_results >= patience.min_trials and patience.is_gain_unlikely(self._met)


def best_us(results: Results) -> float:
    """The shortest time; infinite if there is none."""
    return min((time for time in results.values() if time is not None), default=math.inf)

"""Optuna's own multivariate TPE over the codes of a set, as a yardstick: it knows not what is feasible."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from autotune.kernel.feasible_set import FeasibleSet
from autotune.search.propose.optuna_proposer import OptunaProposer
from autotune.search.propose.proposer import Proposal

_MAX_MISSES = 100  # asks that TPE may waste on points that are infeasible or known


class TpeProposer(OptunaProposer):
    """Each ask of TPE that misses the set, or repeats a point, is told as pruned; once it finds no new point
    of the set at all, the rest is drawn at random."""

    def __init__(self, space: FeasibleSet, *, seed: int = 0) -> None:
        super().__init__(space, optuna.samplers.TPESampler(seed=seed), "tpe", seed=seed, policy=None)
        self._is_lost = False

    def _drawn(self) -> Proposal:
        for _ in range(0 if self._is_lost else _MAX_MISSES):
            trial = self._study.ask(self._distributions)
            pairs = zip(self.space.names, self.space.values, strict=True)
            number = self.space.find({name: values[trial.params[name]] for name, values in pairs})
            if number is not None and number not in self._seen:
                self._trials[number] = trial.number
                return Proposal(number, "tpe")
            self._study.tell(trial, state=TrialState.PRUNED)
        self._is_lost = True
        return Proposal(self._random(), "tpe")

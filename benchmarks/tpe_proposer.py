"""Optuna's own multivariate TPE over the codes of a set, as a yardstick: it knows not what is feasible."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.kernel.feasible_set import FeasibleSet
from autotune.search.propose.optuna_sampler import distributions, number_of, params
from autotune.search.propose.proposer import Proposal, Proposer

_MAX_MISSES = 100  # asks that TPE may waste on points that are infeasible or known
_MOST_LISTED = 1 << 15  # points whose distance from a wish is looked at


class TpeProposer(Proposer):
    """Each ask of TPE that misses the set, or repeats a point, is told as pruned; once it finds no new point
    of the set at all, the rest is drawn at random. With `snaps`, the unseen feasible point next to what TPE
    asks for is taken, and TPE learns of that.
    """

    def __init__(self, space: FeasibleSet, *, seed: int = 0, snaps: bool = False) -> None:
        super().__init__(space, seed=seed, has_model=False)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            tpe = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        self._study = optuna.create_study(sampler=tpe)
        self._distributions = distributions(space)
        self._snaps, self._is_lost = snaps, False
        self._trials: dict[int, int] = {}  # point that TPE asked for -> trial number

    def load(self, results: Iterable[tuple[int, float | None]]) -> None:
        known = list(results)
        self._study.add_trials([self._told(*result) for result in known])
        super().load(known)

    def ask(self, wanted: int = 1) -> Proposal:
        if self._offers or self._is_lost:
            return super().ask(wanted)
        number = self._snapped() if self._snaps else self._hit()
        if number is None:
            self._is_lost = not self._snaps
            return super().ask(wanted)
        return Proposal(number, "tpe")

    def tell(self, number: int, time_us: float | None) -> None:
        trial_number = self._trials.pop(number, None)
        if trial_number is None:  # asked for by somebody else: TPE learns of it all the same
            self._study.add_trial(self._told(number, time_us))
        elif time_us is None:
            self._study.tell(trial_number, state=TrialState.FAIL)
        else:
            self._study.tell(trial_number, time_us)
        super().tell(number, time_us)

    def forget(self, number: int) -> None:
        trial_number = self._trials.pop(number, None)
        if trial_number is not None:
            self._study.tell(trial_number, state=TrialState.FAIL)
        super().forget(number)

    def _told(self, number: int, time_us: float | None) -> FrozenTrial:
        state = TrialState.FAIL if time_us is None else TrialState.COMPLETE
        codes = params(self.space, number)
        return create_trial(state=state, params=codes, distributions=self._distributions, value=time_us)

    def _hit(self) -> int | None:
        """A new point of the set, if TPE finds one."""
        for _ in range(_MAX_MISSES):
            trial = self._study.ask(self._distributions)
            number = number_of(self.space, trial.params)
            if number is not None and self.take_up(number):
                self._trials[number] = trial.number
                return number
            self._study.tell(trial, state=TrialState.PRUNED)
        return None

    def _snapped(self) -> int | None:
        """The unseen point nearest to what TPE asks for."""
        wish = self._study.ask(self._distributions)
        self._study.tell(wish, state=TrialState.FAIL)  # TPE leaves failures out
        codes = np.array([wish.params[name] for name in self.space.names], dtype=np.int64)
        number = self._unseen_near(codes)
        if number is not None:
            self._study.enqueue_trial(params(self.space, number))
            self._trials[number] = self._study.ask(self._distributions).number
            self.take_up(number)
        return number

    def _unseen_near(self, codes: np.ndarray) -> int | None:
        """The unseen point nearest to a wish, by ranks of values, added up; codes: (parameters,). Of a
        large set only a random part is looked at. None if nothing is left."""
        size = len(self.space)
        is_small = size <= _MOST_LISTED
        numbers = np.arange(size) if is_small else self._candidates.random(self._rng, _MOST_LISTED)
        numbers = np.setdiff1d(numbers, np.fromiter(self._seen, dtype=np.int64))
        if not len(numbers):
            return None
        ranges = np.array([max(1, len(values) - 1) for values in self.space.values])
        distances = (np.abs(self._candidates.codes(numbers) - codes) / ranges).sum(axis=1)
        return int(numbers[distances.argmin()])

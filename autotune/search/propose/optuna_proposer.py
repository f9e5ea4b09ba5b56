"""Any sampler of Optuna over a feasible set: what it wishes becomes the nearest point that nobody tried.

It works on a study of its own in memory, of codes: ranks of values, in order, where Optuna knows choices as
names. It learns what it wished as the point that was tried."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ...kernel.feasible_set import FeasibleSet
from ...search_policy import SearchPolicy
from .candidates import NUM_SAMPLED
from .proposer import Proposal, Proposer

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


class OptunaProposer(Proposer):
    """A copy of the sampler proposes what nobody offered; its proposals are of origin `name`."""

    def __init__(
        self, space: FeasibleSet, sampler: BaseSampler, name: str, *, seed: int, policy: SearchPolicy | None
    ) -> None:
        super().__init__(space, seed=seed, policy=policy, has_model=False)
        import optuna  # here: a search with our own sampler does not wait for it

        self._name, self._memory = name, optuna.storages.InMemoryStorage()
        with _quiet():
            self._study = optuna.create_study(sampler=copy.deepcopy(sampler), storage=self._memory)
        sizes = zip(space.names, map(len, space.values), strict=True)
        self._distributions: dict[str, BaseDistribution] = {
            name: optuna.distributions.IntDistribution(0, size - 1) for name, size in sizes
        }
        self._trials: dict[int, int] = {}  # by point under way: the trial of the guest's study

    def load(self, results: Iterable[tuple[int, float | None]]) -> None:
        known = [(number, time_us) for number, time_us in results if number not in self._seen]
        self._study.add_trials([self._frozen(*one) for one in dict(known).items()])
        super().load(known)

    def tell(self, number: int, time_us: float | None) -> None:
        trial = self._trials.pop(number, None)
        if trial is None:  # somebody else's: the guest learns of it all the same
            self._study.add_trial(self._frozen(number, time_us))
        else:
            self._finish(trial, time_us)
        super().tell(number, time_us)

    def forget(self, number: int) -> None:
        if (trial := self._trials.pop(number, None)) is not None:
            self._finish(trial, None)
        super().forget(number)

    def _drawn(self) -> Proposal:
        with _quiet():
            wish = self._study.ask(self._distributions)
        number = self._nearest_not_proposed(np.array([wish.params[name] for name in self.space.names]))
        for name, code in self._codes(number).items():
            self._memory.set_trial_param(wish._trial_id, name, code, self._distributions[name])
        self._trials[number] = wish.number
        return Proposal(number, self._name)

    def _finish(self, trial: int, time_us: float | None) -> None:
        from optuna.trial import TrialState

        with _quiet():
            self._study.tell(trial, time_us, TrialState.FAIL if time_us is None else TrialState.COMPLETE)

    def _frozen(self, number: int, time_us: float | None) -> FrozenTrial:
        from optuna.trial import TrialState, create_trial

        state = TrialState.FAIL if time_us is None else TrialState.COMPLETE
        params = self._codes(number)
        return create_trial(state=state, params=params, distributions=self._distributions, value=time_us)

    def _codes(self, number: int) -> dict[str, int]:
        return dict(zip(self.space.names, map(int, self.space.codes(number)), strict=True))

    def _nearest_not_proposed(self, codes: np.ndarray) -> int:
        """The unseen point nearest to these codes (parameters,), by shares of the ranges, added up. Of a
        large set only what is around the wish and a random part are looked at. Raises SpaceExhausted."""
        if len(self.space) <= 8 * NUM_SAMPLED:
            numbers = np.arange(len(self.space))
        else:
            pairs = zip(self.space.names, self.space.values, codes.tolist(), strict=True)
            at = np.array([self._candidates.nearest({name: values[code] for name, values, code in pairs})])
            drawn = self._candidates.random(self._rng, NUM_SAMPLED)
            numbers = np.concatenate([at, self._candidates.neighbours(at), drawn])
        numbers = np.setdiff1d(self._candidates.points_of(numbers), np.fromiter(self._seen, dtype=np.int64))
        if not len(numbers):
            return self._random()
        ranges = np.array([max(1, len(values) - 1) for values in self.space.values])
        distances = (np.abs(self._candidates.codes(numbers) - codes) / ranges).sum(axis=1)
        return int(numbers[distances.argmin()])


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna tells of a new study, and of what in it is new or slow; a search does not."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)

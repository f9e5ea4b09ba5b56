"""Our proposer as an Optuna sampler: for your own study over a feasible set.

    study = optuna.create_study(sampler=FeasibleSampler(space))
    study.optimize(lambda trial: time_of(suggested(space, trial)), n_trials=100)

A trial's parameters are the *codes* of a point's values (`distributions`); `suggested` is the point. A study
with this sampler tries only feasible points, and none twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from ...kernel.config import Value
from ...kernel.feasible_set import FeasibleSet
from .proposer import Proposer
from .traits import Traits


def distributions(space: FeasibleSet) -> dict[str, BaseDistribution]:
    """Codes of each parameter as Optuna's distributions."""
    pairs = zip(space.names, space.values, strict=True)
    return {name: IntDistribution(0, len(values) - 1) for name, values in pairs}


def suggested(space: FeasibleSet, trial: optuna.Trial) -> dict[str, Value]:
    """The point of a trial in a study with a `FeasibleSampler`."""
    pairs = zip(space.names, space.values, strict=True)
    return {name: values[trial.suggest_int(name, 0, len(values) - 1)] for name, values in pairs}


def params(space: FeasibleSet, number: int) -> dict[str, int]:
    """The codes of a point by parameter."""
    return dict(zip(space.names, map(int, space.codes(number)), strict=True))


def number_of(space: FeasibleSet, codes: Mapping[str, Any]) -> int | None:
    """The point with these codes; None if it is not (or no longer) in the set."""
    found = [codes.get(name, -1) for name in space.names]
    if not all(0 <= code < len(values) for code, values in zip(found, space.values, strict=True)):
        return None
    return space.find({n: v[c] for n, v, c in zip(space.names, space.values, found, strict=True)})


class FeasibleSampler(optuna.samplers.BaseSampler):
    """One sampler serves one study. It learns of trials from the study itself, so trials put there with
    `add_trials` count as results. COMPLETE trials have a time; FAIL and PRUNED ones count as seen, and as
    slow to the model. Raises SpaceExhausted when nothing is left.
    """

    def __init__(self, space: FeasibleSet, *, seed: int = 0, traits: Traits | None = None) -> None:
        self._space = space
        self._proposer = Proposer(space, seed=seed, traits=traits)
        self._open: dict[int, int] = {}  # trial number -> point
        self._num_read = 0

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return distributions(self._space)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        # Here, not in sample_relative: Optuna asks for no values of parameters that have only one.
        self._read(study, trial.number)
        self._open[trial.number] = self._proposer.ask().number

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        return params(self._space, self._open[trial.number])

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{param_name} is no parameter of this feasible set")

    def _read(self, study: optuna.Study, asking: int) -> None:
        """Take in trials added or told since the last ask, except the asking trial."""
        trials = study.get_trials(deepcopy=False)
        for trial in trials[self._num_read :]:
            if trial.number != asking and trial.number not in self._open:
                number = number_of(self._space, trial.params)
                if number is not None and self._proposer.take_up(number):
                    self._open[trial.number] = number
        self._num_read = len(trials)
        for trial_number in [n for n in self._open if trials[n].state.is_finished()]:
            trial = trials[trial_number]
            is_timed = trial.state is TrialState.COMPLETE
            self._proposer.tell(self._open.pop(trial_number), trial.value if is_timed else None)

"""Our proposer as an Optuna sampler: for your own study over a feasible set, or for one of a database.

    study = optuna.create_study(sampler=FeasibleSampler(space))
    study.optimize(lambda trial: time_of(suggested(space, trial)), n_trials=100)

A study with this sampler tries only feasible points, and none twice; with a storage that lets trials claim
points (`autotune.OptunaStorage`), in however many processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from ...facts.measurement import is_time
from ...files.errors import UsageError
from ...kernel.config import Value
from ...kernel.feasible_set import FeasibleSet
from .origins import ENQUEUED
from .samplers import DEFAULT_SAMPLER, Sampler, make_proposer
from .traits import Traits


def distributions(space: FeasibleSet) -> dict[str, BaseDistribution]:
    """The values of each parameter as Optuna's distributions."""
    pairs = zip(space.names, space.values, strict=True)
    return {name: CategoricalDistribution(values) for name, values in pairs}


def suggested(space: FeasibleSet, trial: optuna.Trial) -> dict[str, Value]:
    """The point of a trial in a study with a `FeasibleSampler`."""
    if trial.params.keys() >= set(space.names):  # somebody lined it up
        return {name: trial.params[name] for name in space.names}
    pairs = zip(space.names, space.values, strict=True)
    return {name: trial.suggest_categorical(name, values) for name, values in pairs}  # type: ignore[misc]


class FeasibleSampler(optuna.samplers.BaseSampler):
    """One sampler serves one study, and learns of trials from it, whoever made them. COMPLETE trials have a
    time; FAIL and PRUNED ones count as seen, and as slow. `sampler` is what proposes (samplers.py). Raises
    SpaceExhausted when nothing is left, UsageError in a study that minimises no single time."""

    def __init__(
        self,
        space: FeasibleSet,
        *,
        seed: int = 0,
        traits: Traits | None = None,
        sampler: Sampler = DEFAULT_SAMPLER,
    ) -> None:
        self._space = space
        self._proposer = make_proposer(space, sampler, seed, traits)
        self._ask_lock = threading.Lock()  # a study may have several jobs
        self._open: dict[int, int] = {}  # trial number -> point under way
        self._points: dict[int, Mapping[str, Value]] = {}  # by trial number: of trials proposed here
        self._away: set[int] = set()  # points that another process claimed, of a trial not read yet
        self._done: set[int] = set()  # numbers of trials whose results are known

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return distributions(self._space)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        # Here, not in sample_relative: Optuna asks for no values of parameters that have only one.
        with self._ask_lock:
            self._propose(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        if state is TrialState.COMPLETE and values and not is_time(values[0]):  # it is stored all the same
            raise UsageError(f"{values[0]} is no time: tell a finite one above 0, or that the trial failed")

    def _propose(self, study: optuna.Study, trial: FrozenTrial) -> None:
        if study.directions != [StudyDirection.MINIMIZE]:
            raise UsageError("this sampler minimises one time; create its study with direction='minimize'")
        self._read(study, trial.number)
        fixed = trial.system_attrs.get("fixed_params", {})
        if trial.params or fixed.keys() >= set(self._space.names):
            return
        # As Optuna's own samplers take the storage, which has no public name. Ours lets trials claim points.
        claim: Callable[..., bool] | None = getattr(study._storage, "claim", None)
        if fixed:  # somebody lined up a part of a point, which may have been tried
            wish = self._proposer.ask().number
            self._proposer.forget(wish)
            pairs = zip(self._space.names, self._space.values, strict=True)
            first = {name: fixed[name] for name, values in pairs if fixed.get(name) in values}
            number = self._proposer.nearest(self._space.point(wish), first)
            point = self._points[trial.number] = self._space.point(number) | first
            if claim is not None:
                claim(trial._trial_id, point, distributions(self._space), ENQUEUED)
            return
        while True:
            proposal = self._proposer.ask()
            point = self._space.point(proposal.number)
            its = (trial._trial_id, point, distributions(self._space), proposal.origin)
            if claim is None or claim(*its):
                break
            self._away.add(proposal.number)
        self._open[trial.number], self._points[trial.number] = proposal.number, point

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        return dict(self._points.get(trial.number, {}))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{param_name} is no parameter of this feasible set")

    def _read(self, study: optuna.Study, requesting: int) -> None:
        """Take in what happened to trials since the last ask. The parameters of one that another process
        asked for may not be there yet: it is looked at again."""
        trials = {trial.number: trial for trial in study.get_trials(deepcopy=False)}
        for number, trial in trials.items():
            if number not in self._done and number != requesting:
                self._follow(trial)
        for number in self._open.keys() - trials.keys():  # its process died, or somebody deleted it
            self._proposer.forget(self._open.pop(number))
        for point in self._away:
            self._proposer.forget(point)
        self._away.clear()

    def _follow(self, trial: FrozenTrial) -> None:
        if trial.number not in self._open:
            point = self._space.find(trial.params)
            if point is not None and (point in self._away or self._proposer.take_up(point)):
                self._away.discard(point)
                self._open[trial.number] = point
        if trial.state.is_finished():
            self._done.add(trial.number)
            self._points.pop(trial.number, None)
            if trial.number in self._open:
                is_timed = trial.state is TrialState.COMPLETE and is_time(trial.value)
                self._proposer.tell(self._open.pop(trial.number), trial.value if is_timed else None)

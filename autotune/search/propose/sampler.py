"""Optuna samplers over a feasible set: ours, and random as a yardstick.

An Optuna trial's parameters are the *codes* of a point's values. A study that `FeasibleSampler`
serves asks only feasible points, and none twice: seeds first, then random points, then those that a
model (surrogate.py) of all results so far expects most of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from ...kernel.feasible_set import FeasibleSet
from .bayesian import Model
from .candidates import Candidates
from .sum_limit import SumLimit
from .traits import Traits

NUM_STARTUP = 15  # points before the model is asked
_MAX_DRAWS = 64  # batches of random points before a set counts as nearly used up
_DRAW_BATCH = 16
_MOST_LISTED = 1 << 15  # points whose distance from a wish is looked at


class SpaceExhausted(Exception):
    """Every point of the set has been asked for. Not an error: the search is over."""


@dataclass(frozen=True)
class Proposal:
    """A point by its number in the set, and what proposed it: seed, transfer, random, model, ..."""

    number: int
    origin: str


def distributions(space: FeasibleSet) -> dict[str, BaseDistribution]:
    """Codes of each parameter, as Optuna takes them."""
    pairs = zip(space.names, space.values, strict=True)
    return {name: IntDistribution(0, len(values) - 1) for name, values in pairs}


def params(space: FeasibleSet, number: int) -> dict[str, int]:
    """The codes of a point by parameter."""
    return dict(zip(space.names, map(int, space.codes(number)), strict=True))


class FeasibleSampler(optuna.samplers.BaseSampler):
    """Proposes unseen points of one feasible set. The same seed and the same results, told in the same
    order, give the same points.

    One sampler serves one study. It learns of trials from the study itself, so trials put there with
    `add_trials` count as results. COMPLETE trials have a time; FAIL and PRUNED ones count as seen, and
    as slow where the model looks for neighbours. Raises SpaceExhausted when nothing is left.
    """

    def __init__(
        self,
        space: FeasibleSet,
        *,
        seed: int = 0,
        traits: Traits | None = None,
        num_startup: int = NUM_STARTUP,
        has_model: bool = True,
    ) -> None:
        self._space = space
        self._rng = np.random.default_rng(seed)
        self.candidates = Candidates(space, traits)
        self._accuracy = SumLimit(self.candidates)
        self._model = Model(self.candidates, self._accuracy, self._rng) if has_model else None
        self._num_startup = num_startup
        self.num_wanted = 1  # points about to be asked for with no result between
        self._preferred: deque[Proposal] = deque()
        self._offers: deque[Proposal] = deque()
        self._planned: deque[int] = deque()
        self._proposals: dict[int, Proposal] = {}  # by trial number
        self._seen: set[int] = set()
        self._open: dict[int, int] = {}  # trial number -> point
        self._num_read = 0
        self._results: dict[int, float | None] = {}  # point -> time; None: failed

    def offer(self, proposal: Proposal) -> bool:
        """Have this point asked for before any other, if it is new and not bound to fail by then. Returns
        whether it is new."""
        if proposal.number in self._seen or any(o.number == proposal.number for o in self._offers):
            return False
        self._offers.append(proposal)
        return True

    def prefer(self, proposal: Proposal) -> bool:
        """Have this point asked for next of all, if it is new. Returns whether it is."""
        if proposal.number in self._seen:
            return False
        self._preferred.appendleft(proposal)
        return True

    def pick(self, study: optuna.Study, codes: np.ndarray, size: int) -> list[int]:
        """The most promising unseen points among these, at most so many; codes (q, parameters), some of them
        perhaps infeasible. Empty before the model is asked at all."""
        self.read(study)
        if self._model is None or len(self._seen) < self._num_startup or not self._has_times():
            return []
        found = np.unique(self.candidates.find(codes))
        pool = np.array([number for number in found.tolist() if number not in self._seen], dtype=np.int64)
        return self._model.pick(self._results, list(self._open.values()), pool, size)

    def leaders(self, study: optuna.Study, within: float, most: int) -> list[int]:
        """The best point of each block (of our kernel, of each tile) whose time is within this share of the
        best, fastest first, at most so many."""
        self.read(study)
        limit = (1 + within) * self._best()
        close = {n: time for n, time in self._results.items() if time is not None and time <= limit}
        ranked = np.array(sorted(close, key=close.__getitem__), dtype=np.int64)
        leaders: list[int] = ranked[self.candidates.firsts(ranked)[:most]].tolist()
        return leaders

    def proposal(self, trial_number: int) -> Proposal:
        """What was proposed in this trial of the study."""
        return self._proposals[trial_number]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on offer."""
        return not self._preferred and not self._offers

    def claim(self, number: int, trial_number: int) -> bool:
        """Count a point that another sampler asked for in this trial as seen. False if it was before."""
        if number in self._seen:
            return False
        self._seen.add(number)
        self._open[trial_number] = number
        return True

    def unseen_near(self, codes: np.ndarray) -> int | None:
        """The unseen point nearest to a wish, by ranks of values, added up; codes: (parameters,). Of a
        large set only a random part is looked at. None if nothing is left."""
        size = len(self._space)
        is_small = size <= _MOST_LISTED
        numbers = np.arange(size) if is_small else self.candidates.random(self._rng, _MOST_LISTED)
        numbers = np.setdiff1d(numbers, np.fromiter(self._seen, dtype=np.int64))
        if not len(numbers):
            return None
        ranges = np.array([max(1, len(values) - 1) for values in self._space.values])
        distances = (np.abs(self.candidates.codes(numbers) - codes) / ranges).sum(axis=1)
        return int(numbers[distances.argmin()])

    # ---- Optuna's side

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return distributions(self._space)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        # Here, not in sample_relative: Optuna asks for no values of parameters that have only one.
        self.read(study, trial.number)
        proposal = self._next()
        self._seen.add(proposal.number)
        self._proposals[trial.number] = proposal
        self._open[trial.number] = proposal.number

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        return params(self._space, self._proposals[trial.number].number)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{param_name} is no parameter of this feasible set")

    # ---- results

    def read(self, study: optuna.Study, asking: int = -1) -> None:
        """Take in what was added or told since the last ask, except the trial that is asking."""
        trials = study.get_trials(deepcopy=False)
        added = [t for t in trials[self._num_read :] if t.number != asking and t.number not in self._open]
        self._num_read = len(trials)
        for trial, number in zip(added, self._numbers(added), strict=True):
            if number >= 0 and number not in self._seen:
                self._seen.add(number)
                self._open[trial.number] = number
        best = self._best()
        for trial_number in [n for n in self._open if trials[n].state.is_finished()]:
            trial = trials[trial_number]
            is_timed = trial.state is TrialState.COMPLETE
            self._results[self._open.pop(trial_number)] = trial.value if is_timed else None
        if self._model is not None:
            self._accuracy.learn(self._results)
        if self._best() < best:
            self._planned.clear()  # planned before this was known

    @property
    def num_seen(self) -> int:
        """Points that were asked for, or loaded."""
        return len(self._seen)

    def forget(self, trial_number: int) -> None:
        """Nothing comes of the point of this trial: it counts as unseen again."""
        self._seen.discard(self._open.pop(trial_number))

    def correct(self, number: int, time_us: float) -> None:
        """From now on go by this time of a point; nothing happens to one that has none."""
        if self._results.get(number) is not None:
            self._results[number] = time_us

    def _best(self) -> float:
        return min((t for t in self._results.values() if t is not None), default=np.inf)

    def _numbers(self, trials: Sequence[FrozenTrial]) -> Iterator[int]:
        """The point of each trial; -1 for one that is not (or no longer) in the set."""
        for trial in trials:
            codes = [trial.params.get(name, -1) for name in self._space.names]
            is_coded = all(0 <= code < len(v) for code, v in zip(codes, self._space.values, strict=True))
            found = self.candidates.find(np.array([codes], dtype=np.int64)).tolist() if is_coded else []
            yield found[0] if found else -1

    # ---- proposals

    def _next(self) -> Proposal:
        while self._preferred or self._offers:
            is_due = bool(self._preferred)
            offer = (self._preferred or self._offers).popleft()
            if offer.number not in self._seen and (is_due or not self._is_hopeless([offer.number])[0]):
                return offer
        if self._model is None or len(self._seen) < self._num_startup or not self._has_times():
            return Proposal(self._random(), "random")
        while self._planned:
            if self._planned[0] not in self._seen and not self._is_hopeless([self._planned[0]])[0]:
                return Proposal(self._planned.popleft(), "model")
            self._planned.popleft()
        pending = list(self._open.values())
        self._planned.extend(self._model.propose(self._results, pending, self._seen, self.num_wanted))
        if not self._planned:
            return Proposal(self._random(), "random")
        return Proposal(self._planned.popleft(), "model")

    def _has_times(self) -> bool:
        return any(time is not None for time in self._results.values())

    def _is_hopeless(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Whether points are bound to fail. A sampler without a model does not think so far."""
        numbers = np.asarray(numbers, dtype=np.int64)
        return np.zeros(len(numbers), bool) if self._model is None else self._accuracy.is_hopeless(numbers)

    def _random(self) -> int:
        size = len(self._space)
        if len(self._seen) >= size:
            raise SpaceExhausted
        hopeless = None
        for _ in range(_MAX_DRAWS):
            numbers = self.candidates.random(self._rng, _DRAW_BATCH)
            for number, is_hopeless in zip(numbers.tolist(), self._is_hopeless(numbers), strict=True):
                if number not in self._seen and not is_hopeless:
                    return int(number)
                if number not in self._seen:
                    hopeless = int(number)
        if hopeless is not None:  # all else has been asked for, or nearly
            return hopeless
        # So many misses mean that all but a sliver was seen, so the set is small enough to list.
        unseen = np.setdiff1d(np.arange(size), np.fromiter(self._seen, dtype=np.int64))
        return int(self._rng.choice(unseen))

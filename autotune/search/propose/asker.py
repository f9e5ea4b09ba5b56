"""An Optuna study in memory that asks for points of one feasible set, whatever the sampler.

It is rebuilt from the store at each start; what is asked and told lives only here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from ...errors import UsageError
from ...kernel.config import Value
from ...kernel.feasible_set import FeasibleSet
from .sampler import FeasibleSampler, Proposal, SpaceExhausted, distributions, params
from .traits import Traits

SAMPLERS = ("autotune", "random", "tpe", "tpe-snapped")
DEFAULT_SAMPLER = "autotune"
_MAX_MISSES = 100  # asks that Optuna's own TPE may waste on points that are infeasible or known


class Asker:
    """Proposes points and is told what came of them.

    `autotune` is ours (sampler.py). `random` draws unseen feasible points. `tpe` is Optuna's own
    multivariate TPE over the codes, as a yardstick: it knows nothing of the set, and each ask that
    misses it, or repeats a point, is told as pruned; once it finds no new point of the set at all, the
    rest is drawn at random. `tpe-snapped` takes the unseen feasible point next to what TPE asks for, and
    TPE learns of that. `traits` is what our model sees of a point beside
    its parameters (traits.py). One thread at a time may call it. Raises UsageError for another name.
    """

    def __init__(
        self,
        space: FeasibleSet,
        sampler: str = DEFAULT_SAMPLER,
        seed: int = 0,
        traits: Traits | None = None,
    ) -> None:
        if sampler not in SAMPLERS:
            raise UsageError(f"--sampler {sampler!r} is none; known are {', '.join(SAMPLERS)}")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._rng = np.random.default_rng(seed)
        self._distributions = distributions(space)
        self._ours = FeasibleSampler(space, seed=seed, traits=traits, has_model=sampler == "autotune")
        self._candidates = self._ours.candidates
        self._study = optuna.create_study(sampler=self._ours)
        self._tpe = _tpe(seed) if sampler.startswith("tpe") else None
        self._snaps = sampler == "tpe-snapped"
        self._open: dict[int, int] = {}  # point -> trial number

    def load(self, results: Iterable[tuple[int, float | None]]) -> None:
        """Take in earlier trials: number of the point, and time in us or None for a failure."""
        trials = [
            create_trial(
                state=TrialState.FAIL if time_us is None else TrialState.COMPLETE,
                params=params(self._space, number),
                distributions=self._distributions,
                value=time_us,
            )
            for number, time_us in results
        ]
        self._study.add_trials(trials)
        self._ours.read(self._study)

    def offer(self, number: int, origin: str) -> bool:
        """Have a point asked for next, if it is new. Returns whether it is."""
        return self._ours.offer(Proposal(number, origin))

    def ask(self, wanted: int = 1) -> Proposal:
        """An unseen point. Raises SpaceExhausted when there is none left.

        `wanted`: how many are about to be asked for before anything more is told. A model that is asked
        anew plans them together, at hardly more cost than one.
        """
        self._ours.num_wanted = wanted
        if self._tpe is not None and self._ours.is_idle:
            proposal = (self._ask_snapped if self._snaps else self._ask_tpe)(self._tpe)
            if proposal is not None:
                return proposal
            self._tpe = self._tpe if self._snaps else None
        return self._ask()

    def pick(self, codes: np.ndarray, size: int, origin: str) -> list[Proposal]:
        """Ask for the most promising of these points, at most so many; codes (q, parameters) need not be
        feasible or new. Empty while the model knows too little, or without a model."""
        return self.take(self._ours.pick(self._study, codes, size), origin)

    def steps_from(self, number: int, size: int, origin: str) -> list[Proposal]:
        """Ask for the most promising unseen points one step from this one, at most so many: another value of
        one parameter, with what must change along. Empty where `pick` is."""
        at = np.array([number])
        steps = np.union1d(self._candidates.neighbours(at), self._candidates.moves(self._rng, at, 0))
        return self.pick(self._candidates.codes(steps), size, origin)

    def leaders(self, within: float, most: int) -> list[int]:
        """The best point of each tile whose time is within this share of the best, fastest first."""
        return self._ours.leaders(self._study, within, most)

    def take(self, numbers: Iterable[int], origin: str) -> list[Proposal]:
        """Ask for these points, less those that were asked for before."""
        proposals = []
        for number in numbers:
            if self._ours.prefer(Proposal(number, origin)):
                proposals.append(self._ask())
        return proposals

    def _ask(self) -> Proposal:
        trial = self._study.ask(self._distributions)
        proposal = self._ours.proposal(trial.number)
        self._open[proposal.number] = trial.number
        return proposal

    def _ask_tpe(self, tpe: optuna.samplers.BaseSampler) -> Proposal | None:
        self._study.sampler = tpe
        try:
            for _ in range(_MAX_MISSES):
                trial = self._study.ask(self._distributions)
                values = zip(self._space.names, self._space.values, strict=True)
                number = self._space.find({name: choices[trial.params[name]] for name, choices in values})
                if number is not None and self._ours.claim(number, trial.number):
                    self._open[number] = trial.number
                    return Proposal(number, "tpe")
                self._study.tell(trial, state=TrialState.PRUNED)
        finally:
            self._study.sampler = self._ours
        return None

    def _ask_snapped(self, tpe: optuna.samplers.BaseSampler) -> Proposal | None:
        self._study.sampler = tpe
        try:
            wish = self._study.ask(self._distributions)
            self._study.tell(wish, state=TrialState.FAIL)  # TPE leaves failures out
            codes = np.array([wish.params[name] for name in self._space.names], dtype=np.int64)
            number = self._ours.unseen_near(codes)
            if number is None:
                return None
            self._study.enqueue_trial(params(self._space, number))
            trial = self._study.ask(self._distributions)
        finally:
            self._study.sampler = self._ours
        self._ours.claim(number, trial.number)
        self._open[number] = trial.number
        return Proposal(number, "tpe")

    def tell(self, number: int, time_us: float | None) -> None:
        """What came of a point that was asked for; None for a failure."""
        trial_number = self._open.pop(number)
        if time_us is None:
            self._study.tell(trial_number, state=TrialState.FAIL)
        else:
            self._study.tell(trial_number, time_us)

    @property
    def num_unseen(self) -> int:
        """Points that were not asked for yet."""
        return len(self._space) - self._ours.num_seen

    def forget(self, number: int) -> None:
        """Nothing comes of a point that was asked for: it may be asked for again."""
        trial_number = self._open.pop(number)
        self._ours.forget(trial_number)
        self._study.tell(trial_number, state=TrialState.FAIL)

    def correct(self, number: int, time_us: float) -> None:
        """A better time of a point that was told of or loaded before."""
        self._ours.correct(number, time_us)

    def nearest(self, point: Mapping[str, Value]) -> int:
        """The point of the set that is most like another, which need not be in it."""
        number = self._space.find(point)
        return self._candidates.nearest(point) if number is None else number


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)


__all__ = ["DEFAULT_SAMPLER", "SAMPLERS", "Asker", "Proposal", "SpaceExhausted"]

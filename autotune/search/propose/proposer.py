"""Chooses the next point of a feasible set: offered points, then random ones, then those that a model of the
results so far (bayesian.py) finds most promising; once it is stuck, another begins (attempt.py). Pure: no
study, no store, no GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...kernel.config import Value
from ...kernel.feasible_set import FeasibleSet
from ...search_policy import SearchPolicy
from .attempt import Attempt, Results, best_us
from .bayesian import Model
from .candidates import NUM_SAMPLED, Candidates
from .origins import NEIGHBOUR, RANDOM, merged
from .sum_limit import inaccurate
from .traits import Traits


class SpaceExhausted(Exception):
    """Every point of the set has been proposed. Not an error: the search is over."""


@dataclass(frozen=True)
class Proposal:
    """A point by its number in the set, and what proposed it (origins.py)."""

    number: int
    origin: str


class Proposer:
    """Proposes points, none twice, and learns their results. The same seed and results give the same points.
    `traits` are the model's inputs besides the parameters. One thread at a time may call it."""

    def __init__(
        self,
        space: FeasibleSet,
        *,
        seed: int = 0,
        traits: Traits | None = None,
        policy: SearchPolicy | None = None,
        has_model: bool = True,
    ) -> None:
        self._policy = policy or SearchPolicy()
        self.space = space
        self._rng = np.random.default_rng(seed)
        self._candidates = Candidates(space, traits)
        self._sum_limit = inaccurate(space, self._candidates)
        self._model = self._new_model() if has_model else None  # of all results
        self._attempt = None if self._model is None else Attempt(self._model, {})
        self._suggestions: deque[Proposal] = deque()
        self._planned: deque[Proposal] = deque()
        self._seen: set[int] = set()
        self._open: dict[int, None] = {}  # points under way, in the order of their proposal
        self._results: dict[int, float | None] = {}  # by point: time in us; None: failed
        self._named: set[int] = set()  # points that came from elsewhere: known to every attempt
        self._is_up_to_date = True  # of all results

    def _new_model(self) -> Model:
        return Model(self._candidates, self._sum_limit, self._rng, self._policy)

    # ---- what is known

    def load(self, results: Iterable[tuple[int, float | None]]) -> None:
        """Results of points that were not proposed: time in us, or None for a failure. Known ones stay."""
        new: dict[int, float | None] = {}
        for number, time_us in results:
            if number not in self._seen:
                new.setdefault(number, time_us)
        self._seen.update(new)
        self._take_in(new)

    def tell(self, number: int, time_us: float | None) -> None:
        """Take in the result of a proposed point; None for a failure."""
        del self._open[number]
        self._take_in({number: time_us})

    def _take_in(self, results: Results) -> None:
        self._results.update(results)
        if self._attempt is not None and self._attempt.learn(results):
            self._planned.clear()  # planned before this was known
        self._is_up_to_date = False

    def forget(self, number: int) -> None:
        """A proposed point has no result: it may be proposed again."""
        del self._open[number]
        self._seen.discard(number)

    def ask_next(self, number: int, origin: str) -> None:
        """A proposed point has no result: it comes before what is planned."""
        self.forget(number)
        self._suggestions.append(Proposal(number, origin))

    def correct(self, number: int, time_us: float) -> None:
        """From now on use this time of a point; a point without a time does not change."""
        if self._results.get(number) is not None:
            self._results[number] = time_us
            if self._attempt is not None:
                self._attempt.correct(number, time_us)

    def take_up(self, number: int) -> bool:
        """Count a point as under way, here or in another search. False if it was seen before."""
        if number in self._seen:
            return False
        self._seen.add(number)
        self._open[number] = None
        return True

    @property
    def num_not_proposed(self) -> int:
        """Points that were not proposed yet."""
        return self.space.num_points - len(self._seen)

    def region_bests(self, within: float, most: int) -> list[int]:
        """The best point of each region whose time is within this share of the best, fastest first."""
        limit = (1 + within) * best_us(self._results)
        close = {n: time for n, time in self._results.items() if time is not None and time <= limit}
        ranked = np.array(sorted(close, key=close.__getitem__), dtype=np.int64)
        region_bests: list[int] = ranked[self._candidates.firsts(ranked)[:most]].tolist()
        return region_bests

    def nearest(self, point: Mapping[str, Value], first: Mapping[str, Value] | None = None) -> int:
        """The point of the set most similar to another, which need not be in it; to values that come `first`
        before all."""
        number = None if first else self.space.find(point)
        return self._candidates.nearest(point, first or {}) if number is None else number

    def _learn(self) -> None:
        if not self._is_up_to_date and self._model is not None:
            self._sum_limit.learn(self._results)
        self._is_up_to_date = True

    # ---- what is proposed

    def offer(self, number: int, origin: str) -> bool:
        """Propose this point before drawn or planned ones, if it is new and not predicted to fail by then.
        Returns whether it is new, and a point."""
        if not self.space.are_points(np.array([number]))[0]:
            return False
        self._named.add(number)
        if number in self._seen or any(offer.number == number for offer in self._suggestions):
            return False
        self._suggestions.append(Proposal(number, origin))
        return True

    def ask(self, wanted: int = 1) -> Proposal:
        """An unseen point. Raises SpaceExhausted when there is none left. `wanted`: how many will be asked
        for before the next result. A model plans them together, at hardly more cost than one."""
        self._learn()
        proposal = self._next(wanted)
        self.take_up(proposal.number)
        return proposal

    def pick(self, codes: np.ndarray, size: int, origin: str) -> list[Proposal]:
        """Propose the most promising of these points, at most this many; codes (q, parameters) need not be
        feasible or new. Empty while the model knows too little, or without a model."""
        attempt = self._attempt
        if attempt is None:
            return []
        return self._pick(attempt.model, attempt.results, self._candidates.find(codes), size, origin)

    def steps_from(self, number: int, size: int, origin: str) -> list[Proposal]:
        """Propose the most promising unseen points one step from this one, at most this many: another value
        of one parameter, with those that must change along, or another row of a small factor. Empty while too
        little is known, or without a model."""
        if self._model is None:
            return []
        at = np.array([number])
        steps, _ = merged(
            {NEIGHBOUR: self._candidates.neighbours(at), **self._candidates.moves(self._rng, at, 0)}
        )
        return self._pick(self._model, self._results, steps, size, origin)

    def _pick(
        self, model: Model, results: Results, numbers: np.ndarray, size: int, origin: str
    ) -> list[Proposal]:
        self._learn()
        if not self._are_enough(results):
            return []
        unknown = [number for number in np.unique(numbers).tolist() if number not in self._seen]
        pool = np.array(unknown, dtype=np.int64)
        return self._claimed(model.pick(results, list(self._open), pool, size), origin)

    def take(self, numbers: Iterable[int], origin: str) -> list[Proposal]:
        """Propose these points, without those that were proposed before."""
        named = list(numbers)
        self._named.update(named)
        return self._claimed(named, origin)

    def _claimed(self, numbers: Iterable[int], origin: str) -> list[Proposal]:
        return [Proposal(number, origin) for number in numbers if self.take_up(number)]

    def _next(self, wanted: int) -> Proposal:
        for waiting in (self._suggestions, self._planned):
            while waiting:
                found = waiting.popleft()
                if found.number not in self._seen and not self._will_fail([found.number])[0]:
                    return found
        if self._attempt is not None:
            if self._attempt.is_stuck:
                given = {n: time for n, time in self._results.items() if n in self._named}
                self._attempt = Attempt(self._new_model(), given)
            self._planned.extend(self._plan(self._attempt, wanted))
        return self._planned.popleft() if self._planned else self._drawn()

    def _drawn(self) -> Proposal:
        """What is proposed without a plan."""
        return Proposal(self._random(), RANDOM)

    def _plan(self, attempt: Attempt, wanted: int) -> list[Proposal]:
        """What an attempt proposes; nothing as long as it knows too little. Of points that an earlier attempt
        tried it recalls the results, at no cost, of twice as many each time, until others come."""
        planned: list[Proposal] = []
        size = wanted
        while not planned and self._are_enough(attempt.results):
            known = attempt.results.keys() | self._open.keys()
            plan = attempt.model.propose(attempt.results, list(self._open), known, size)
            if not plan:
                break
            attempt.recall({number: self._results[number] for number, _ in plan if number in self._results})
            planned = [Proposal(number, origin) for number, origin in plan if number not in self._seen]
            size = 2 * len(plan)
        return planned[: max(wanted, self._policy.most_planned)]

    def _are_enough(self, results: Results) -> bool:
        """Whether a model that knows these may propose."""
        return best_us(results) < np.inf and len(results) + len(self._open) >= self._policy.num_startup

    def _will_fail(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Whether points are predicted to fail. Without a model none is."""
        numbers = np.asarray(numbers, dtype=np.int64)
        return np.zeros(len(numbers), bool) if self._model is None else self._sum_limit.will_fail(numbers)

    def _random(self) -> int:
        if self.num_not_proposed <= 0:
            raise SpaceExhausted
        drawn = self._candidates.points_of(self._candidates.random(self._rng, NUM_SAMPLED))
        numbers = np.array([number for number in drawn.tolist() if number not in self._seen], dtype=np.int64)
        if len(numbers):  # predicted failures come when nearly all other points have been proposed
            will_fail = self._will_fail(numbers)
            if self._sum_limit.is_sure and will_fail.all():
                raise SpaceExhausted
            return int(numbers[will_fail.argmin()])
        # This many misses mean that nearly all was seen, so the set is small enough to list.
        every = self._candidates.points_of(np.arange(len(self.space)))
        unknown = np.setdiff1d(every, np.fromiter(self._seen, dtype=np.int64))
        return int(self._rng.choice(unknown))

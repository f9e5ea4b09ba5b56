"""One shape under search: its feasible set, its trials in the store, and what to ask next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from ..errors import DuplicateTrial, UsageError
from ..gemm import Gemm
from ..kernel.config import Config, Value
from ..kernel.feasible_set import FeasibleSet
from ..measurement import Measurement, is_accurate
from ..search_policy import SearchPolicy
from ..stats import Patience
from ..store import Claims, Store, StudyRef, TrialRecord
from ..target import Point, Target, point_key, read_key
from .compare.ranking import Duel, Ranked, Ranking
from .compare.verdict import verdict
from .progress import Best
from .propose import origins
from .propose.proposer import Proposal, SpaceExhausted
from .propose.samplers import DEFAULT_SAMPLER, make_proposer
from .propose.seeds import seeds
from .propose.traits import traits_of
from .sharing import Ask, SharedStudy

_IDLE = (origins.REUSE, origins.FILL)  # no seconds that one shape had before another


def study_of(store: Store, target: Target, gemm: Gemm) -> StudyRef:
    """The study that holds this target's trials of this problem."""
    nvrtc = target.environment.nvrtc_version
    compiler = f"nvrtc {nvrtc}" if nvrtc else ""
    return store.study(target.environment, target.source_hash, compiler, gemm, target.policy)


class ShapeSearch:
    """State of the search of one shape. Trials of earlier runs, and of other searches that share its study,
    count, and are never asked for again.

    `starts`: configs that are expected to do well here, most promising first. Raises UsageError if nothing is
    feasible, StoreError where the database does.
    """

    def __init__(
        self,
        target: Target,
        store: Store,
        claims: Claims,
        gemm: Gemm,
        space: FeasibleSet,
        *,
        sampler: str = DEFAULT_SAMPLER,
        seed: int = 0,
        policy: SearchPolicy | None = None,
        starts: Iterable[Config] = (),
    ) -> None:
        self.gemm, self._policy = gemm, policy or SearchPolicy()
        self.study = study_of(store, target, gemm)
        self.space = space
        if not len(space):
            raise UsageError(f"no config can run {gemm} here; `autotune space --shape {gemm}` tells why")
        self.max_error = target.max_error
        self.limit_us = gemm.limit_us(target.limits.fma_tflops, target.limits.bandwidth_gbs)
        # Of the trials that were searched, in their order (None: failed), and what was found on other shapes
        # where it was the best so far: what else was found there tells nothing of how a search gets on.
        self.times_us: list[float | None] = []
        self.ranking = Ranking(self._policy)
        self.num_new = 0
        self.num_open = 0
        self.spent_s = 0.0  # of the target, in this run: its compiler's places, its GPU
        self._earlier_s = 0.0
        self.on_gpu_s = 0.0
        self.num_reused = 0  # trials of this run whose kernels were compiled before
        self.num_reused_open = 0
        self.reused_s = 0.0  # of the target's idle seconds
        self.is_exhausted = False
        self._num_polishes = 0
        self._store = store
        self._num_places = target.capacity
        self._proposer = make_proposer(
            space, sampler, seed, traits_of(space, gemm, target.limits), self._policy
        )
        self.shared = SharedStudy(claims, self.study, space, self._proposer, self._policy)
        self._lent: set[str] = set()
        self._seeds = seeds(space, starts if self._policy.num_seeds else ())
        self._resume()
        self.num_known = len(self.shared.known)
        self.baseline = target.baseline(gemm)
        store.add_baseline(self.study, self.baseline)
        store.add_search(self.study, sampler, seed, self._policy.to_dict())

    def _resume(self) -> None:
        """Take in the trials of earlier runs, then put the first points to try in line."""
        known: list[tuple[int, float | None]] = []
        readable = set()
        for trial in self._store.trials(self.study):
            readable.add(trial.key)
            time_us = self._time_of(trial.measurement)
            self.count(trial.key, trial.point, time_us, trial.origin)
            if trial.origin not in _IDLE:
                self._earlier_s += self._seconds_of(trial.measurement)
            number = self.space.find(trial.point)
            if number is not None:
                known.append((number, time_us))
        numbers = {number for number, _ in known}
        found = {self.space.find(point) for point in self._store.killers(self.study)} - numbers
        known += [(number, None) for number in found if number is not None]  # these are never run again
        # Damaged trials count as tried, as long as their keys can be read.
        damaged = {self.space.find(read_key(key)) for key in self._store.keys(self.study) - readable}
        known += [(number, None) for number in damaged - numbers - found if number is not None]
        self._proposer.load(known)
        for duel in self._store.duels(self.study):
            self._correct(self.ranking.restore(duel))
        self.borrow_from_twins()
        for number in islice(self._seeds, self._policy.num_seeds):
            self._proposer.offer(number, origins.SEED)
        num_lenders = self._policy.num_lenders
        similar = self._store.similar_studies(self.study)[:num_lenders]
        self._borrow(similar, -(-self._policy.num_loans // max(1, num_lenders)))

    def borrow_from_twins(self) -> None:
        """Have the best of other GPUs of the kind, or under another driver, tried here: each but once."""
        twins = self._store.twin_studies(self.study)[::-1][: self._policy.num_lenders]
        self._borrow(reversed(twins), self._policy.num_loans)

    def _borrow(self, studies: Iterable[StudyRef], loans: int) -> None:
        for study in studies:
            for trial in self._store.best(study, loans, self.max_error):
                self.lend(trial.key, trial.point)

    def lend(self, key: str, point: Point) -> bool:
        """Try the best config of another shape here, or its nearest relative; each but once. Returns
        whether that gave something new to try."""
        if key in self._lent or point.keys() != set(self.space.names):
            return False
        self._lent.add(key)
        return self._proposer.offer(self._proposer.nearest(point), origins.TRANSFER)

    def lend_known(self) -> bool:
        """Try the next seed, of those that less is expected of; each but once. Returns whether there was one
        to try."""
        return any(self._proposer.offer(number, origins.LATER_SEED) for number in self._seeds)

    def ask(self, wanted: int = 1, before_each: Callable[[int], None] = lambda num_asked: None) -> list[Ask]:
        """So many points that no other search is at, as far as there are any, claimed together: each claim is
        a transaction. Empty when all have been asked for; then the shape is exhausted, unless others are at
        some. `before_each` may offer points; it is told how many this run has asked for."""
        asks: list[Ask] = []
        while len(asks) < wanted and (proposals := self._propose(wanted - len(asks), before_each)):
            asks += self._claim(proposals)
        return asks

    def _propose(self, wanted: int, before_each: Callable[[int], None]) -> list[Proposal]:
        proposals: list[Proposal] = []
        try:
            while len(proposals) < wanted:
                before_each(self.num_new + self.num_open + len(proposals))
                proposals.append(self._proposer.ask(wanted - len(proposals)))
        except SpaceExhausted:
            if not proposals:
                self.is_exhausted = not self.shared.away
        return proposals

    @property
    def is_waiting(self) -> bool:
        """Whether all points that are left are with other searches: nothing can be asked for until they
        report."""
        return bool(self.shared.away) and self._proposer.num_unseen == 0

    def polish(self, size: int) -> list[Ask]:
        """Steps that were not tried yet, at most so many: from the best point, and from the best of each tile
        that is as good, in turn. The best point is mostly the best of its tile, and then has two turns."""
        champion = self.ranking.champion
        number = None if champion is None else self.space.find(champion.point)
        most = self._policy.num_climbed
        as_good = [] if number is None else [number, *self._proposer.leaders(Patience.gain, most)]
        self._num_polishes += 1
        for at in range(len(as_good)):
            leader = as_good[(self._num_polishes + at) % len(as_good)]
            if steps := self._claim(self._proposer.steps_from(leader, size, origins.POLISH)):
                return steps
        return []

    def pick(self, codes: np.ndarray, size: int) -> list[Ask]:
        """The most promising of these points, whose kernels are compiled; codes (q, parameters)."""
        return self._reuse(self._proposer.pick(codes, size, origins.REUSE))

    def take(self, points: Iterable[Point]) -> list[Ask]:
        """All of these points, whose kernels are compiled, that are feasible here and new."""
        numbers = (self.space.find(point) for point in points)
        return self._reuse(self._proposer.take((n for n in numbers if n is not None), origins.REUSE))

    def _reuse(self, proposals: Sequence[Proposal]) -> list[Ask]:
        asks = self._claim(proposals)
        self.num_reused_open += len(asks)
        return asks

    def _claim(self, proposals: Sequence[Proposal]) -> list[Ask]:
        """Those of these points that no other search is at or has tried."""
        asks = self.shared.claim([self._ask_of(proposal) for proposal in proposals], self)
        self.num_open += len(asks)
        return asks

    def _ask_of(self, proposal: Proposal) -> Ask:
        point = self.space.point(proposal.number)
        return Ask(proposal.number, proposal.origin, point, point_key(point))

    def keep(self, ask: Ask, measurement: Measurement) -> bool:
        """Store what came of a point. False if another search on this database was faster."""
        try:
            self._store.add_trial(self.study, ask.key, ask.point, measurement, ask.origin)
        except DuplicateTrial:
            return False
        return True

    def tell(self, ask: Ask, measurement: Measurement) -> bool:
        """Learn from a point that was kept. Returns whether it is the best so far."""
        self.num_new += 1
        on_gpu_s = measurement.verify_s + measurement.measure_s
        self.on_gpu_s += on_gpu_s
        if ask.origin == origins.REUSE:
            self.num_reused += 1
            self.reused_s += on_gpu_s
        else:
            self.spent_s += self._seconds_of(measurement)
        self.drop(ask)
        time_us = self._time_of(measurement)
        self._proposer.tell(ask.number, time_us)
        return self.count(ask.key, ask.point, time_us, ask.origin)

    def _seconds_of(self, measurement: Measurement) -> float:
        """What a trial took of the target: of its GPU, and of its compiler's places."""
        on_gpu_s = measurement.verify_s + measurement.measure_s
        return on_gpu_s + measurement.compile_s / self._num_places

    def drop(self, ask: Ask) -> None:
        """A point that was asked for is under way no longer."""
        self.num_open -= 1
        self.shared.close(ask)
        self.num_reused_open -= ask.origin == origins.REUSE

    def _time_of(self, measurement: Measurement) -> float | None:
        """None for what cannot win: failures, and what was stored under a looser limit on its error."""
        is_fine = measurement.is_ok and is_accurate(measurement.error_over_cublas, self.max_error)
        return measurement.time_us if is_fine else None

    def count(self, key: str, point: Mapping[str, Value], time_us: float | None, origin: str = "") -> bool:
        """Take in a trial of this study, whoever made it. Returns whether it is the best so far."""
        self.shared.known.add(key)
        is_best = time_us is not None and self.ranking.enter(key, point, time_us)
        if is_best or origin != origins.FILL:
            self.times_us.append(time_us)
        return is_best

    def refine(self, duel: Duel, first_us: tuple[float, ...], second_us: tuple[float, ...]) -> None:
        """Learn from rounds of a duel."""
        self._correct(self.ranking.take(duel, first_us, second_us))
        if duel.is_over:
            self._store.add_duel(self.study, duel.record)

    def _correct(self, corrected: Iterable[Ranked]) -> None:
        """Have the model go by what duels made of times."""
        for ranked in corrected:
            number = self.space.find(ranked.point)
            if number is not None:
                self._proposer.correct(number, ranked.time_us)

    def finalists(self, num: int) -> list[TrialRecord]:
        """The best trials: those that no duel has beaten first, by time as duels corrected it."""
        close = self._store.best(self.study, 4 * num, self.max_error)  # duels may have moved them
        return sorted(close, key=lambda trial: self.ranking.rank(trial.key, trial.measurement.time_us))[:num]

    @property
    def num_total(self) -> int:
        """Trials that searches of this shape made, those of earlier runs included."""
        return len(self.times_us)

    @property
    def num_failed(self) -> int:
        return sum(time_us is None for time_us in self.times_us)

    @property
    def best(self) -> Best | None:
        """The fastest so far, as far as is decided; None while all have failed."""
        champion = self.ranking.champion
        if champion is None:
            return None
        return Best(champion.point, champion.time_us, self.baseline.time_us, self.limit_us)

    @property
    def verdict(self) -> Best | None:
        """What is told of its best kernel once the search is over; None while all have failed."""
        fastest = self._store.best(self.study, 1, self.max_error)
        return verdict(
            fastest[0] if fastest else None,
            self.baseline.time_us,
            self._store.final(self.study, self.max_error),
            self.limit_us,
            is_recorded=self.study.environment.is_recorded,
        )

    @property
    def cutoff_us(self) -> float | None:
        """The time that a candidate must not be far above."""
        return None if self.ranking.champion is None else self.ranking.champion.time_us

    @property
    def expected_spent_s(self) -> float:
        """Seconds of the target that this shape will have had once its open points are done, those of earlier
        runs included."""
        num_done, num_open = self.num_new - self.num_reused, self.num_open - self.num_reused_open
        return self._earlier_s + _expected(self.spent_s, num_done, num_open)

    @property
    def expected_reused_s(self) -> float:
        """As `expected_spent_s`, of idle seconds spent on kernels that were compiled before."""
        return _expected(self.reused_s, self.num_reused, self.num_reused_open)

    @property
    def gpu_s_per_trial(self) -> float:
        """Seconds of the GPU that a trial of this run took, on average; 0 before the first."""
        return self.on_gpu_s / self.num_new if self.num_new else 0.0


def _expected(spent_s: float, num_done: int, num_open: int) -> float:
    return spent_s + (spent_s / num_done * num_open if num_done else 0.0)

"""One shape under search: what can be tried, what is known, what comes next, and its use of the target."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from ..facts.device import Environment
from ..facts.gemm import Gemm
from ..facts.measurement import Measurement
from ..files.errors import DuplicateTrial, UsageError
from ..kernel import templates
from ..kernel.feasible_set import FeasibleSet
from ..kernel.scaled_config import AnyConfig
from ..kernel.where import ANY, Where
from ..search_policy import SearchPolicy
from ..store import Claims, Store, StudyRef
from ..target import Point, Target, read_key
from .compare.ranking import PairComparison, Ranked, Ranking
from .findings import Findings
from .points import Ask, Points
from .propose import origins
from .propose.samplers import DEFAULT_SAMPLER, Sampler, make_proposer, sampler_name
from .propose.seeds import seeds
from .propose.traits import traits_of
from .same_code_trials import TakenOver
from .time_usage import TimeUsage


def study_of(store: Store, target: Target, gemm: Gemm) -> StudyRef:
    """The study that holds this target's trials of this problem."""
    compiler = compiler_of(target.environment)
    return store.study(target.environment, target.source_hash, compiler, gemm, target.policy)


def compiler_of(environment: Environment) -> str:
    """What compiles for it, as studies keep it."""
    return f"nvrtc {environment.nvrtc_version}" if environment.nvrtc_version else ""


class ShapeSearch:
    """Trials of earlier runs, and of other searches that share its study, count, and are never repeated.

    `starts`: configs that are expected to do well here, most promising first. All points of `space` obey
    `where`; trials that do not, of searches under other conditions, stay known, and have no part in this one.
    Raises UsageError if nothing is feasible, StoreError if the database fails."""

    def __init__(
        self,
        target: Target,
        store: Store,
        claims: Claims,
        gemm: Gemm,
        space: FeasibleSet,
        *,
        sampler: Sampler = DEFAULT_SAMPLER,
        seed: int = 0,
        policy: SearchPolicy | None = None,
        starts: Iterable[AnyConfig] = (),
        where: Where = ANY,
        taken_over: TakenOver | None = None,
    ) -> None:
        if not len(space):
            raise UsageError(f"no config can run {gemm} here; `autotune space --shape {gemm}` tells why")
        policy = self._policy = policy or SearchPolicy()
        self.gemm, self.space, self._store, self.taken_over = gemm, space, store, taken_over
        self.study = study = study_of(store, target, gemm)
        baseline = target.baseline(gemm)
        limit_us = templates.limit_us(gemm, target.limits, templates.accuracy_of(target.source_hash))
        self._proposer = make_proposer(space, sampler, seed, traits_of(space, gemm, target.limits), policy)
        self.time_usage = TimeUsage(target.capacity)
        ranking = Ranking(policy)
        self.findings = Findings(store, study, baseline, limit_us, target.max_error, ranking, where)
        self.points = Points(claims, study, space, self._proposer, self.findings, policy)
        self._lent: set[str] = set()  # keys of what did well elsewhere, and was offered
        self._resume()
        self.num_unfit = self.line_up(point for _, point in claims.waiting([study]))
        self.borrow_from_siblings()
        for number in islice(seeds(space, starts, gemm.k), policy.num_seeds):
            self._proposer.offer(number, origins.SEED)
        self.borrow_from_similar()
        self.num_known = self.findings.num_known  # before this run
        store.add_baseline(study, baseline)
        store.add_search(study, sampler_name(sampler), seed, policy.to_dict())

    def _resume(self) -> None:
        """Take in the trials of earlier runs."""
        for trials in self._store.tried(self.study):
            places = self.space.find_all([trial.point for trial in trials])
            times_us = [self.findings.time_of(trial) for trial in trials]
            for trial, time_us in zip(trials, times_us, strict=True):
                self.findings.count(trial.key, trial.point, time_us, trial.origin)
                self.time_usage.add_earlier(trial.origin, trial)
            placed = zip(places, times_us, strict=True)
            self._proposer.load((number, time_us) for number, time_us in placed if number is not None)
        # Damaged trials count as tried, as long as their keys can be read.
        corrupted = map(read_key, self._store.damaged_keys(self.study))
        excluded = self.space.find_all([*self._store.crash_points(self.study), *corrupted])
        self._proposer.load((number, None) for number in excluded if number is not None)
        for comparison in self._store.comparisons(self.study):
            self._correct(self.findings.ranking.restore(comparison))

    # ---- points that results elsewhere suggest: each is offered once, and proposed before anything else

    def line_up(self, points: Iterable[Point]) -> int:
        """Try what somebody lined up, as far as it is feasible here. Returns how many are not."""
        numbers = [self.space.find(point) for point in points]
        for number in numbers:
            if number is not None:
                self._proposer.offer(number, origins.ENQUEUED)
        return numbers.count(None)

    def borrow_from_similar(self) -> None:
        """Try the best of the most similar shapes here."""
        num_lenders = self._policy.num_lenders
        similar = self._store.similar_studies(self.study, num_lenders)
        self._borrow(similar, -(-self._policy.num_loans // max(1, num_lenders)))

    def borrow_from_siblings(self) -> None:
        """Try the best of other GPUs of the kind, or under another driver, here."""
        siblings = self._store.sibling_studies(self.study)[::-1][: self._policy.num_lenders]
        self._borrow(reversed(siblings), self._policy.num_loans)

    def _borrow(self, studies: Iterable[StudyRef], loans: int) -> None:
        for study in studies:
            for trial in self._store.best(study, loans, self.findings.max_error):
                self.lend(trial.key, trial.point)

    def lend(self, key: str, point: Point) -> bool:
        """Try a config that did well elsewhere, or its nearest relative. Returns whether that is new."""
        if key in self._lent or point.keys() != set(self.space.names):
            return False
        self._lent.add(key)
        return self._proposer.offer(self._proposer.nearest(point), origins.TRANSFER)

    # ---- results

    def keep(self, ask: Ask, measurement: Measurement) -> None:
        """Store the result of a point, unless another search on this database was faster."""
        with suppress(DuplicateTrial):
            self._store.add_trial(self.study, ask.key, ask.point, measurement, ask.origin)

    def tell(self, ask: Ask, measurement: Measurement) -> bool:
        """Learn from a point that was stored. Returns whether it is the best so far."""
        self.points.close(ask)
        self.time_usage.add(ask.origin, measurement)
        time_us = self.findings.time_of(measurement)
        self._proposer.tell(ask.number, time_us)
        self.points.is_polished = False  # another point may be the best now, and have steps
        return self.findings.count(ask.key, ask.point, time_us, ask.origin)

    def refine(
        self, comparison: PairComparison, first_us: tuple[float, ...], second_us: tuple[float, ...]
    ) -> None:
        """Learn from rounds of a comparison, stored once it is over."""
        self._correct(self.findings.ranking.take(comparison, first_us, second_us))
        if comparison.is_over:
            self._store.add_comparison(self.study, comparison.record)

    def _correct(self, corrected: Iterable[Ranked]) -> None:
        """Give the model the times that comparisons corrected."""
        for ranked in corrected:
            number = self.space.find(ranked.point)
            if number is not None:
                self._proposer.correct(number, ranked.time_us)
            self.points.is_polished = False

    @property
    def num_requested(self) -> int:
        """Points that this run proposed, without those that were dropped."""
        return self.time_usage.num_new + self.points.num_open

    @property
    def share(self) -> tuple[float, int]:
        """This shape's use of the target once its open points are done, for comparison with others: seconds,
        those of earlier runs included, and points of this run."""
        num_open = self.points.num_open - self.points.num_reused_open
        return self.time_usage.expected_s(num_open), self.num_requested

    @property
    def idle_share(self) -> tuple[float, int]:
        """As `share`, for idle moments of this run spent on kernels that were compiled before."""
        num_open = self.points.num_reused_open
        return self.time_usage.expected_idle_s(num_open), self.time_usage.num_reused + num_open

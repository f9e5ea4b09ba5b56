"""One shape under search: its feasible set, what is known of it, what is tried next, and its use of the
target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from ..facts.device import Environment
from ..facts.gemm import Gemm
from ..facts.measurement import Measurement
from ..files.errors import DuplicateTrial, UsageError
from ..kernel import templates
from ..kernel.feasible_set import FeasibleSet
from ..kernel.scaled_config import AnyConfig
from ..kernel.where import ANY, Where
from ..search_policy import SearchPolicy
from ..store import Claims, NewTrials, Store, StudyRef
from ..target import Point, Target, read_key
from .compare.ranking import PairComparison, Ranked
from .findings import Findings
from .points import Points
from .propose.samplers import DEFAULT_SAMPLER, Sampler, make_proposer, sampler_name
from .propose.traits import traits_of
from .same_code_trials import TakenOver
from .shared_study import Ask, SharedStudy
from .suggestions import Suggestions
from .time_usage import TimeUsage


def study_of(store: Store, target: Target, gemm: Gemm) -> StudyRef:
    """The study that holds this target's trials of this problem."""
    compiler = compiler_of(target.environment)
    return store.study(target.environment, target.source_hash, compiler, gemm, target.policy)


def compiler_of(environment: Environment) -> str:
    """What compiles for it, as studies keep it."""
    return f"nvrtc {environment.nvrtc_version}" if environment.nvrtc_version else ""


class ShapeSearch:
    """The search of one shape. Trials of earlier runs, and of other searches that share its study, count, and
    are never repeated. Each part owns its state; this class does what concerns several of them.

    `starts`: configs that are expected to do well here, most promising first. All points of `space` obey
    `where`; trials that do not, of searches under other conditions, stay known, and have no part in this one.
    Raises UsageError if nothing is feasible, StoreError if the database fails.
    """

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
        policy, max_error = policy or SearchPolicy(), target.max_error
        self.gemm, self.space, self._store, self.taken_over = gemm, space, store, taken_over
        self.study = study = study_of(store, target, gemm)
        baseline = target.baseline(gemm)
        limit_us = templates.limit_us(gemm, target.limits, templates.accuracy_of(target.source_hash))
        self._proposer = make_proposer(space, sampler, seed, traits_of(space, gemm, target.limits), policy)
        self.time_usage = TimeUsage(target.capacity)
        self.findings = Findings(store, study, baseline, limit_us, max_error, policy, where)
        self.shared = SharedStudy(claims, study, space, self._proposer, self.findings, policy)
        self.points = Points(space, self._proposer, self.shared, self.findings, policy)
        self.suggestions = Suggestions(store, study, space, self._proposer, policy, starts, max_error)
        self._resume(point for _, point in claims.waiting([study]))
        self.num_known = self.findings.num_known  # before this run
        store.add_baseline(study, baseline)
        store.add_search(study, sampler_name(sampler), seed, policy.to_dict())

    def _resume(self, waiting: Iterable[Point]) -> None:
        """Take in the trials of earlier runs, then line up the first points to try: first what waits."""
        for trials in self._store.tried(self.study):
            places = self.space.find_all([trial.point for trial in trials])
            times_us = [self.findings.time_of(trial) for trial in trials]
            for trial, time_us in zip(trials, times_us, strict=True):
                self.findings.count(trial.key, trial.point, time_us, trial.origin)
                self.time_usage.add_earlier(trial.origin, trial)
            placed = zip(places, times_us, strict=True)
            self._proposer.load((number, time_us) for number, time_us in placed if number is not None)
        # Damaged trials count as tried, as long as their keys can be read.
        corrupted = map(read_key, self._store.keys(self.study, but=self.findings.known))
        excluded = self.space.find_all([*self._store.crash_points(self.study), *corrupted])
        self._proposer.load((number, None) for number in excluded if number is not None)
        self._correct(self.findings.restore_comparisons())
        self.suggestions.line_up(waiting)
        self.suggestions.begin()

    def keep(self, ask: Ask, measurement: Measurement) -> None:
        """Store the result of a point, unless another search on this database was faster."""
        with suppress(DuplicateTrial):
            self._store.add_trial(self.study, ask.key, ask.point, measurement, ask.origin)

    def tell(self, ask: Ask, measurement: Measurement) -> bool:
        """Learn from a point that was stored. Returns whether it is the best so far."""
        self.shared.close(ask)
        self.time_usage.add(ask.origin, measurement)
        time_us = self.findings.time_of(measurement)
        self._proposer.tell(ask.number, time_us)
        self.points.on_result()
        return self.findings.count(ask.key, ask.point, time_us, ask.origin)

    def take_in(self, new_trials: Sequence[NewTrials]) -> None:
        """Learn from trials of other searches."""
        self.shared.take_in(new_trials)
        if new_trials:
            self.points.on_result()

    def refine(
        self, comparison: PairComparison, first_us: tuple[float, ...], second_us: tuple[float, ...]
    ) -> None:
        """Learn from rounds of a comparison."""
        self._correct(self.findings.take_rounds(comparison, first_us, second_us))

    def _correct(self, corrected: Iterable[Ranked]) -> None:
        """Give the model the times that comparisons corrected."""
        for ranked in corrected:
            number = self.space.find(ranked.point)
            if number is not None:
                self._proposer.correct(number, ranked.time_us)
            self.points.on_result()

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

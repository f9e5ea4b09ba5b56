"""The final: the best handful timed again, interleaved with cuBLAS, until the winner or a tie is declared.

Times taken minutes apart carry the drift of the GPU between them; rounds that hold every finalist do not.
Each look takes rounds after two loads of the kernels, as one load may make a kernel slower (decision 0064).
A finalist drops out once it is known to be slower than the best (`stats.compare`, over all looks). The final
ends when one is left, when those left are known to differ insignificantly, or when enough rounds have not
told them apart. Those left are tied, and the energy of a launch of each is measured too.

With a limit on seconds there is no further look, and no energy, if by what a look took too few are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...facts import stats
from ...facts.gemm import Gemm
from ...facts.measurement import ENERGY_S, Discarded, Failure, Outcome
from ...search_policy import SearchPolicy
from ...store import FinalEntry, Store, TrialRecord
from ...target import Baseline, Rounds, Target
from ..progress import FinalDone, FinalStarted, OnEvent
from ..shape import ShapeSearch
from ..time_usage import TimeUsage

NUM_LOOKS = 4  # at most; rounds between two are the fewest whose signed ranks can decide among 8 finalists
NUM_LOADS = 2  # of each kernel for a look


@dataclass(frozen=True)
class Race:
    """The result of the rounds: finalists by rank, cuBLAS in the same rounds, and disturbances."""

    entries: tuple[FinalEntry, ...]
    baseline: Baseline
    marks: tuple[str, ...] = ()
    look_s: float = 0.0  # what the first look took

    @property
    def num_tied(self) -> int:
        return sum(entry.is_tied for entry in self.entries)


def rounds_of_load(policy: SearchPolicy) -> int:
    return max(1, policy.most_rounds // (NUM_LOOKS * NUM_LOADS))


def look_s(usage: TimeUsage, num: int, policy: SearchPolicy) -> float:
    """Seconds that the first look at so many finalists of a shape takes, as expected by its trials."""
    return max(1e-3, NUM_LOADS * usage.race_s(num, 1 + rounds_of_load(policy)))  # the first round warms up


def wanted_s(usages: Iterable[TimeUsage], policy: SearchPolicy) -> float:
    """Seconds that finals of these shapes take, as expected: every second one has a second look, and one has
    time to measure the energy of two kernels."""
    looks_s = sum(look_s(usage, policy.num_finalists, policy) for usage in usages)
    return policy.renew_s + 1.5 * looks_s + 2 * ENERGY_S


def race(
    target: Target,
    gemm: Gemm,
    finalists: Sequence[TrialRecord],
    policy: SearchPolicy,
    should_stop: Callable[[], bool] = lambda: False,
    on_failure: Callable[[TrialRecord, Failure], None] = lambda trial, failure: None,
    left_s: Callable[[], float] = lambda: math.inf,
) -> Race | None:
    """Time the finalists until the winner is decided or a tie declared. None if none passes verification
    again; `on_failure` is told of each that fails now. `should_stop` is called after each look. `left_s`
    tells the seconds that are left: there is no further look if the first took more, nor is the energy of
    tied kernels measured, which takes ten times as long as timing a launch. Raises what `target.compare`
    raises."""
    running, started_s, first_s = _Field(list(finalists), policy, on_failure), target.now(), 0.0
    rounds = rounds_of_load(policy)
    for _ in range(NUM_LOOKS):
        for _ in range(NUM_LOADS):
            if not running.trials:  # all of them failed
                break
            running.take(target.compare(gemm, [trial.point for trial in running.trials], rounds))
        running.drop_slower()
        first_s = first_s or target.now() - started_s
        if running.is_decided or should_stop() or left_s() < first_s:
            break
    ranking = running.ranking
    if not ranking:
        return None
    tied = running.trials
    joules: dict[str, float | None] = {}
    if len(tied) > 1 and not should_stop() and left_s() >= first_s + len(tied) * ENERGY_S:
        found = target.joules(gemm, [trial.point for trial in tied])
        joules = dict(zip((trial.key for trial in tied), found, strict=True))
    entries = tuple(
        running.entry(trial, rank, joules.get(trial.key), is_tied=rank <= max(1, len(tied)))
        for rank, trial in enumerate(ranking, 1)
    )
    cublas_us = tuple(running.cublas_us)
    baseline = Baseline(stats.median(cublas_us) if cublas_us else None, cublas_us)
    return Race(entries, baseline, tuple(sorted(running.marks)), first_s)


def as_recorded(race: Race, trials: Sequence[TrialRecord], baseline: Baseline) -> Race:
    """A race on a recording. Its rounds draw from the samples that the times of trials came from, and so know
    less: the times are those of the trials, and rank them. The fastest wins; ties stay."""
    times_us = {trial.key: trial.measurement.time_us or math.inf for trial in trials}  # the fastest first
    by_key = {entry.key: entry for entry in race.entries}
    known = [by_key[key] for key in times_us if key in by_key]
    tied = {entry.key for entry in known[:1]} | {entry.key for entry in known if entry.is_tied}
    ranking = sorted(known, key=lambda entry: entry.key not in tied)
    entries = (
        replace(entry, rank=rank, is_tied=entry.key in tied, time_us=times_us[entry.key])
        for rank, entry in enumerate(ranking, 1)
    )
    return replace(race, entries=tuple(entries), baseline=baseline)


@dataclass
class _Field:
    """The finalists still running, by rank once there are rounds, and all their times."""

    trials: list[TrialRecord]
    policy: SearchPolicy
    on_failure: Callable[[TrialRecord, Failure], None]
    out: list[list[TrialRecord]] = field(default_factory=list)  # dropped out, by look, fastest first
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    discarded: dict[str, tuple[Discarded, ...]] = field(default_factory=dict)
    cublas_us: list[float] = field(default_factory=list)
    marks: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._num_comparisons = stats.num_hypotheses(len(self.trials), NUM_LOOKS)

    def take(self, rounds: Rounds) -> None:
        """Add rounds of those running. A finalist without samples failed, and is removed."""
        self.cublas_us += rounds.baseline.samples_us
        self.marks.update(rounds.marks)
        discarded = rounds.discarded or ((),) * len(self.trials)
        fine = []
        for number, failure in rounds.failures.items():
            self.on_failure(self.trials[number], failure)
        for trial, samples, left_out in zip(self.trials, rounds.samples_us, discarded, strict=True):
            if samples:
                self.samples[trial.key] = self.samples.get(trial.key, ()) + samples
                self.discarded[trial.key] = self.discarded.get(trial.key, ()) + left_out
                fine.append(trial)
        self.trials = fine

    def drop_slower(self) -> None:
        if not self.trials:
            return
        rounds = [self.samples[trial.key] for trial in self.trials]
        comparison = stats.compare(rounds, self.policy.final_error, self._num_comparisons)
        ranked = [(self.trials[i], i in comparison.tied) for i in comparison.order]
        self.out.append([trial for trial, is_tied in ranked if not is_tied])
        self.trials = [trial for trial, is_tied in ranked if is_tied]

    @property
    def is_decided(self) -> bool:
        """Whether all that are left differ insignificantly from the first."""
        first, *others = [self.samples[trial.key] for trial in self.trials] or [()]
        return all(stats.is_equivalent(other, first, self.policy.equivalent) for other in others)

    @property
    def ranking(self) -> list[TrialRecord]:
        return [*self.trials, *(trial for dropped in reversed(self.out) for trial in dropped)]

    def entry(self, trial: TrialRecord, rank: int, joules: float | None, *, is_tied: bool) -> FinalEntry:
        samples, discarded = self.samples[trial.key], self.discarded[trial.key]
        time_us = stats.median(samples)
        return FinalEntry(trial.key, trial.point, rank, is_tied, time_us, samples, joules, discarded)


@dataclass(eq=False)
class Finals:
    """The finals of a search, told and stored. `_should_stop` is called before each final and after each
    look; `_seconds_left` are the granted seconds. Finals share them in proportion to what they take by the
    trials of each shape, and by how much longer the finals before took: they have fewer finalists, or are
    left out."""

    _target: Target
    _store: Store
    _policy: SearchPolicy
    _on_event: OnEvent
    _should_stop: Callable[[], bool]
    _seconds_left: Callable[[], float]

    def __post_init__(self) -> None:
        # Of first looks, at first by the worker's start
        self._expected_s = self._taken_s = self._policy.renew_s

    def run(self, shapes: Sequence[ShapeSearch]) -> list[Gemm]:
        """Re-rank the best trials of each shape, in a process that ran no other candidate where there is time
        to start one. Returns the shapes whose finals are left out, as there is no time."""
        due = [(shape, best) for shape in shapes if (best := self._finalists(shape))]
        looks_s = [self._look_s(shape, len(best)) for shape, best in due]
        left_out: list[Gemm] = []
        fewest_s = sum(self._look_s(shape, _fewest(len(best))) for shape, best in due)
        is_time = self._seconds_left() >= self._policy.renew_s + fewest_s
        if due and not self._should_stop() and (is_time or self._target.environment.is_recorded):
            self._target.renew()
        for number, (shape, finalists) in enumerate(due):
            if self._should_stop():
                break
            share = looks_s[number] / sum(looks_s[number:])
            num = self._num_affordable(shape, len(finalists), share)
            if num:
                left_s = self._seconds_left()
                self._run(shape, finalists[:num], left_s * (1 - share) if math.isfinite(left_s) else 0.0)
            else:
                left_out.append(shape.gemm)
        return left_out

    def _look_s(self, shape: ShapeSearch, num: int) -> float:
        return look_s(shape.time_usage, num, self._policy)

    def _num_affordable(self, shape: ShapeSearch, num: int, share: float) -> int:
        """How many finalists a first look may have in this share of the seconds that are left, or the fewest
        that can be compared if these seconds suffice for them, else 0."""
        left_s = self._seconds_left() * self._expected_s / self._taken_s
        least = _fewest(num)
        if self._look_s(shape, least) > left_s:
            return 0
        fewer = range(num, least, -1)
        return next((some for some in fewer if self._look_s(shape, some) <= share * left_s), least)

    def _finalists(self, shape: ShapeSearch) -> list[TrialRecord]:
        """The best trials; none if nothing is new since the last final, and that chose what obeys."""
        best = shape.findings.finalists(self._policy.num_finalists)
        last = self._store.final(shape.study, shape.findings.max_error)
        known: set[str] = set()
        if last is not None and shape.findings.is_decided and shape.time_usage.num_new == 0:
            known = {entry.key for entry in last.entries}
        return [] if best and best[0].key in known else best

    def _run(self, shape: ShapeSearch, finalists: list[TrialRecord], kept_s: float) -> None:
        """One final; `kept_s` seconds are for the next ones."""
        self._on_event(FinalStarted(shape.gemm, len(finalists)))

        def reject(trial: TrialRecord, failure: Failure) -> None:
            """It was ok, and is never a finalist again, unless there was only too little memory for all."""
            if failure.outcome is not Outcome.OUT_OF_MEMORY:
                self._store.invalidate(shape.study, trial.key, failure)

        limits = self._policy, self._should_stop, reject, lambda: self._seconds_left() - kept_s
        found = race(self._target, shape.gemm, finalists, *limits)
        if found is None:
            return
        self._expected_s += self._look_s(shape, len(finalists))
        self._taken_s += found.look_s
        if self._target.environment.is_recorded:
            found = as_recorded(found, finalists, shape.findings.baseline)
        self._store.set_final(shape.study, found.entries, found.baseline, found.marks)
        if (best := shape.findings.verdict) is not None:
            self._on_event(FinalDone(shape.gemm, best, found.num_tied))


def _fewest(num: int) -> int:
    """Of so many finalists, how many a final needs: one alone would be compared with nobody."""
    return min(2, num)

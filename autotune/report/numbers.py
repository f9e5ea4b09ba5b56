"""What a page says of a study, computed from the store's records: no drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..facts.device import DeviceLimits, limits_by_name
from ..facts.measurement import Outcome, is_accurate
from ..kernel import templates
from ..kernel.config import Value
from ..store import Final, FinalEntry, Store, StudyRef, StudySummary, TrialRecord
from .importance import Importance, importance
from .thinned import NO_TOTALS, FailureKind, Totals, failure_kind, share, step_s, thin
from .thinned import PAUSE_S as PAUSE_S

MOST_STUDIES = 200  # of a page: each has its own with all that follows from its trials


@dataclass(frozen=True)
class Timed:
    """An ok trial in the history: `number` counts all trials from 1, `elapsed_s` is searching time."""

    number: int
    elapsed_s: float
    time_us: float
    origin: str
    key: str


@dataclass(frozen=True)
class FailureGroup:
    """Trials that failed alike: reasons that differ in their numbers only count as one."""

    outcome: Outcome
    count: int
    reason: str  # of the newest
    key: str  # of the newest


@dataclass(frozen=True)
class TimeSpent:
    """Where the seconds of a study's trials went, as far as the store knows. `compile_s` adds up over threads
    that run side by side, so it may exceed `elapsed_s`. What a search spends on proposing, storing and
    waiting is not stored: its own `--json` tells it."""

    compile_s: float
    verify_s: float
    measure_s: float
    num_compiled: int  # the other trials' kernels came from the cache, or another trial's compile
    elapsed_s: float  # from trial to trial, without pauses

    @property
    def gpu_share(self) -> float | None:
        """Share of the elapsed time in which the GPU verified or timed trials of this study: a search of
        several shapes has it busy with the others, too."""
        busy = self.verify_s + self.measure_s
        return min(1.0, busy / self.elapsed_s) if self.elapsed_s > 0 else None


@dataclass(frozen=True)
class StudyRecords:
    """All that a database holds of one study."""

    study: StudyRef
    trials: Sequence[TrialRecord]  # in the order they were stored; of very many, those that are shown
    final: Final | None = None  # of accurate trials
    baseline_us: float | None = None  # the newest timing of cuBLAS
    limits: DeviceLimits | None = None  # of a GPU that is known
    max_error: float | None = None  # of what may win, in times cuBLAS's; None: any
    totals: Totals = NO_TOTALS  # of the trials among which those that are shown were chosen


def latest_of(summaries: Collection[StudySummary]) -> list[StudySummary]:
    """Those that pages show, by id: of very many the newest."""
    latest = sorted(summaries, key=lambda one: one.updated_at)[-MOST_STUDIES:]
    return sorted(latest, key=lambda one: one.study.id)


def shown_of(num_all: int) -> str:
    """What a page says where it does not show all studies."""
    return f" (the newest {MOST_STUDIES} of {num_all:,} shapes)" if num_all > MOST_STUDIES else ""


def read_records(
    store: Store,
    study: StudyRef,
    num_trials: int,
    num_all: int,
    final: Final | None,
    baseline_us: float | None,
    max_error: float | None,
) -> StudyRecords:
    """What a page takes of a study with so many trials, of all so many: of very many only some are read."""
    most, totals = share(num_trials, num_all), NO_TOTALS
    if most < num_trials:
        keys = [entry.key for entry in final.entries] if final else []
        ranked = store.ids(study, keys)
        ids, totals = thin(
            store.curve(study), num_trials, most,
            is_recorded=study.environment.is_recorded, max_error=max_error, wanted=ranked,
        )  # fmt: skip
        trials = store.trials_by_id(study, ids)
    else:
        trials = store.trials(study)
    limits = limits_by_name(study.environment.gpu_name)
    return StudyRecords(study, trials, final, baseline_us, limits, max_error, totals)


@dataclass(frozen=True)
class StudyNumbers:
    """All that pages tell of one study. Times in microseconds, None where unknown."""

    records: StudyRecords

    @property
    def study(self) -> StudyRef:
        return self.records.study

    @property
    def final(self) -> Final | None:
        return self.records.final

    @property
    def num_trials(self) -> int:
        return self.records.totals.num_trials + len(self.later)

    @cached_property
    def later(self) -> tuple[TrialRecord, ...]:
        """Trials that no total counts: all of them, or those since."""
        last_id = self.records.totals.last_id
        return tuple(trial for trial in self.records.trials if trial.id > last_id)

    @cached_property
    def weight(self) -> float:
        """How many trials each of those that totals count stands for."""
        num_shown = len(self.records.trials) - len(self.later)
        return self.records.totals.num_trials / num_shown if num_shown else 1.0

    @cached_property
    def ok(self) -> tuple[TrialRecord, ...]:
        return tuple(trial for trial in self.records.trials if trial.measurement.is_ok)

    @property
    def num_failed(self) -> int:
        return self.records.totals.num_failed + sum(not trial.measurement.is_ok for trial in self.later)

    @cached_property
    def num_cut_short(self) -> int:
        """Ok trials so slow that timing stopped after the first samples."""
        later = (trial.measurement for trial in self.later)
        return self.records.totals.num_cut_short + sum(m.is_ok and m.is_cut_short for m in later)

    @cached_property
    def elapsed_s(self) -> list[float]:
        """Of every trial."""
        is_recorded = self.study.environment.is_recorded
        return elapsed_s(self.records.trials, self.records.totals, is_recorded=is_recorded)

    @cached_property
    def timed(self) -> tuple[Timed, ...]:
        return tuple(_timed(self.records.trials, self.elapsed_s))

    @cached_property
    def best_so_far(self) -> tuple[Timed, ...]:
        """Those of `timed` that were accurate, and faster than all such before."""
        trials, max_error = self.records.trials, self.records.max_error
        errors = (trials[t.number - 1].measurement.error_over_cublas for t in self.timed)
        accurate = [t for t, error in zip(self.timed, errors, strict=True) if is_accurate(error, max_error)]
        return tuple(_improvements(accurate))

    @cached_property
    def best(self) -> FinalEntry | Timed | None:
        """The final's winner, or else the fastest accurate trial."""
        if self.final:
            return self.final.winner
        return self.best_so_far[-1] if self.best_so_far else None

    @property
    def best_us(self) -> float | None:
        return self.best.time_us if self.best else None

    @cached_property
    def best_trial(self) -> TrialRecord | None:
        """The trial of the best."""
        key = self.best.key if self.best else None
        return next((trial for trial in self.records.trials if trial.key == key), None)

    @property
    def best_point(self) -> Mapping[str, Value] | None:
        if self.final:
            return self.final.winner.point
        return self.best_trial.point if self.best_trial else None

    @property
    def best_error(self) -> float | None:
        """Of that point, over cuBLAS's."""
        return self.best_trial.measurement.error_over_cublas if self.best_trial else None

    @property
    def cublas_us(self) -> float | None:
        """As timed in the same rounds as the finalists, where there was a final."""
        final = self.final
        interleaved_us = final.baseline.time_us if final and final.baseline else None
        return interleaved_us or self.records.baseline_us

    @property
    def limit_us(self) -> float | None:
        return templates.limit_us(self.study.gemm, self.records.limits, self.accuracy)

    @property
    def accuracy(self) -> str:
        """The class of its kernels."""
        return templates.accuracy_of(self.study.source_hash)

    @property
    def speedup(self) -> float | None:
        """Over cuBLAS."""
        return self.cublas_us / self.best_us if self.cublas_us and self.best_us else None

    @property
    def share_of_limit(self) -> float | None:
        return self.limit_us / self.best_us if self.limit_us and self.best_us else None

    @property
    def cublas_share_of_limit(self) -> float | None:
        return self.limit_us / self.cublas_us if self.limit_us and self.cublas_us else None

    @property
    def tflops(self) -> float | None:
        return self.study.gemm.tflops(self.best_us) or None if self.best_us else None

    @cached_property
    def importance(self) -> tuple[Importance, ...]:
        points = [trial.point for trial in self.ok]
        return importance(points, [trial.measurement.time_us or 0.0 for trial in self.ok])

    @cached_property
    def failures(self) -> tuple[FailureGroup, ...]:
        return failure_groups(self.records.trials, self.records.totals)

    @cached_property
    def ledger(self) -> TimeSpent:
        measured, totals = [trial.measurement for trial in self.later], self.records.totals
        steps = ("compile_s", "verify_s", "measure_s")
        return TimeSpent(
            **{step: getattr(totals, step) + sum(getattr(m, step) for m in measured) for step in steps},
            num_compiled=totals.num_compiled + sum(m.compile_s > 0 for m in measured),
            elapsed_s=self.elapsed_s[-1] if self.elapsed_s else 0.0,
        )


def elapsed_s(trials: Sequence[TrialRecord], totals: Totals = NO_TOTALS, *, is_recorded: bool) -> list[float]:
    """Seconds of searching until each trial was stored: see `thinned.step_s`."""
    seconds, total, before = [], totals.total_s, totals.latest_at
    for trial in trials:
        if trial.id <= totals.last_id:
            seconds.append(totals.elapsed_s.get(trial.id, totals.total_s))
            continue
        m = trial.measurement
        spent_s = m.compile_s + m.verify_s + m.measure_s
        total += step_s(before, trial.created_at, spent_s, is_recorded=is_recorded)
        before = trial.created_at
        seconds.append(total)
    return seconds


def failure_groups(trials: Sequence[TrialRecord], totals: Totals = NO_TOTALS) -> tuple[FailureGroup, ...]:
    """Failures by outcome and reason, the most frequent first; without those of which none is shown."""
    counts, latest = Counter(totals.failures), dict[FailureKind, TrialRecord]()
    for trial in trials:
        m = trial.measurement
        if not m.is_ok:
            kind = failure_kind(m.outcome, m.reason)
            counts[kind] += trial.id > totals.last_id
            latest[kind] = trial
    found = [
        FailureGroup(kind[0], counts[kind], trial.measurement.reason, trial.key)
        for kind, trial in latest.items()
    ]
    return tuple(sorted(found, key=lambda group: (-group.count, group.outcome, group.reason)))


def _timed(trials: Sequence[TrialRecord], elapsed: Sequence[float]) -> list[Timed]:
    return [
        Timed(number, seconds, trial.measurement.time_us, trial.origin, trial.key)
        for number, (trial, seconds) in enumerate(zip(trials, elapsed, strict=True), 1)
        if trial.measurement.is_ok and trial.measurement.time_us is not None
    ]


def _improvements(timed: Sequence[Timed]) -> list[Timed]:
    best: list[Timed] = []
    for trial in timed:
        if not best or trial.time_us < best[-1].time_us:
            best.append(trial)
    return best

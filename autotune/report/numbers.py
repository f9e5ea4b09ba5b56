"""What a report says of a study, computed from the store's records. Pure: no database, no drawing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ..device import DeviceLimits
from ..kernel.config import Value
from ..measurement import Outcome, is_accurate
from ..store import Final, StudyRef, StudySummary, TrialRecord
from .importance import Importance, importance

PAUSE_S = 60.0  # trials further apart were not made by one run: the time between is not counted
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


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
    """Where the seconds of a study's trials went, as far as the store knows.

    `compile_s` adds up over threads that run side by side, so it may exceed `elapsed_s`. What a search
    spends on proposing, storing and waiting is not stored: its own `--json` tells it.
    """

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
class StudyNumbers:
    """All that the page tells of one study. Times in microseconds, None where unknown."""

    study: StudyRef
    num_trials: int
    num_cut_short: int  # ok, but so slow that timing stopped after the first samples
    timed: tuple[Timed, ...]
    best_so_far: tuple[Timed, ...]  # those of `timed` that were accurate, and faster than all such before
    best_us: float | None  # of the final's winner, else of the fastest trial
    best_point: Mapping[str, Value] | None
    best_error: float | None  # of that point, over cuBLAS's
    cublas_us: float | None
    limit_us: float | None
    importance: tuple[Importance, ...]
    failures: tuple[FailureGroup, ...]
    ledger: TimeSpent
    final: Final | None

    @property
    def num_failed(self) -> int:
        return sum(group.count for group in self.failures)

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
        return self.study.gemm.tflops(self.best_us) if self.best_us else None


def study_numbers(
    summary: StudySummary,
    trials: Sequence[TrialRecord],
    final: Final | None,
    limits: DeviceLimits | None,
    max_error: float | None = None,
) -> StudyNumbers:
    """The numbers of one study; `trials` in the order they were stored. Summary and final are those of trials
    whose error is at most `max_error` times cuBLAS's (None: of all)."""
    study = summary.study
    elapsed = elapsed_s(trials, is_recorded=study.environment.is_recorded)
    timed = tuple(_timed(trials, elapsed))
    ok = [trial for trial in trials if trial.measurement.is_ok]
    winner = final.winner if final else summary.best
    fastest_us = summary.best.measurement.time_us if summary.best else None
    interleaved_us = final.baseline.time_us if final and final.baseline else None
    return StudyNumbers(
        study=study,
        num_trials=len(trials),
        num_cut_short=sum(trial.measurement.is_cut_short for trial in ok),
        timed=timed,
        best_so_far=tuple(_improvements(_accurate(timed, trials, max_error))),
        best_us=final.winner.time_us if final else fastest_us,
        best_point=winner.point if winner else None,
        best_error=_error_of(trials, winner.key) if winner else None,
        cublas_us=interleaved_us or summary.cublas_us,
        limit_us=study.gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs) if limits else None,
        importance=importance([t.point for t in ok], [t.measurement.time_us or 0.0 for t in ok]),
        failures=failure_groups(trials),
        ledger=_ledger(trials, elapsed),
        final=final,
    )


def _error_of(trials: Sequence[TrialRecord], key: str) -> float | None:
    return next((trial.measurement.error_over_cublas for trial in trials if trial.key == key), None)


def elapsed_s(trials: Sequence[TrialRecord], *, is_recorded: bool) -> list[float]:
    """Seconds of searching until each trial was stored.

    On a GPU these are the clock's, from the first trial on, less the pauses. For a recording the clock would
    tell how fast it was replayed: there they are the seconds of compiling, verifying and timing, added up.
    """
    seconds, total = [], 0.0
    before: datetime | None = None
    for trial in trials:
        if is_recorded:
            m = trial.measurement
            total += m.compile_s + m.verify_s + m.measure_s
        elif before is not None:
            step = (trial.created_at - before).total_seconds()
            total += step if 0 < step <= PAUSE_S else 0.0
        before = trial.created_at
        seconds.append(total)
    return seconds


def failure_groups(trials: Sequence[TrialRecord]) -> tuple[FailureGroup, ...]:
    """Failures by outcome and reason, the most frequent first."""
    groups: dict[tuple[Outcome, str], list[TrialRecord]] = {}
    for trial in trials:
        m = trial.measurement
        if not m.is_ok:
            groups.setdefault((m.outcome, _NUMBER.sub("#", m.reason)), []).append(trial)
    found = [
        FailureGroup(outcome, len(alike), alike[-1].measurement.reason, alike[-1].key)
        for (outcome, _), alike in groups.items()
    ]
    return tuple(sorted(found, key=lambda group: (-group.count, group.outcome, group.reason)))


def _timed(trials: Sequence[TrialRecord], elapsed: Sequence[float]) -> list[Timed]:
    return [
        Timed(number, seconds, trial.measurement.time_us, trial.origin, trial.key)
        for number, (trial, seconds) in enumerate(zip(trials, elapsed, strict=True), 1)
        if trial.measurement.is_ok and trial.measurement.time_us is not None
    ]


def _accurate(timed: Sequence[Timed], trials: Sequence[TrialRecord], max_error: float | None) -> list[Timed]:
    """Those that may be the best."""
    return [t for t in timed if is_accurate(trials[t.number - 1].measurement.error_over_cublas, max_error)]


def _improvements(timed: Sequence[Timed]) -> list[Timed]:
    best: list[Timed] = []
    for trial in timed:
        if not best or trial.time_us < best[-1].time_us:
            best.append(trial)
    return best


def _ledger(trials: Sequence[TrialRecord], elapsed: Sequence[float]) -> TimeSpent:
    measured = [trial.measurement for trial in trials]
    return TimeSpent(
        compile_s=sum(m.compile_s for m in measured),
        verify_s=sum(m.verify_s for m in measured),
        measure_s=sum(m.measure_s for m in measured),
        num_compiled=sum(m.compile_s > 0 for m in measured),
        elapsed_s=elapsed[-1] if elapsed else 0.0,
    )

"""What a search did over time: its runs, how fast trials came, where the seconds went, what the GPU was like.

A run is a stretch of trials, of all studies on one GPU model, without a pause. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from ..recording.recorded_space import COMPILE_THREADS, cubin_key
from ..recording.replay import EXTRA_OPEN, SimulatedMachine
from ..store import TrialRecord
from .numbers import PAUSE_S, StudyNumbers

NUM_BINS = 120  # of a run's time: as many as are told apart on a screen
LEAST_BIN_S = 0.5
MOST_RUNS = 12  # that are told, the newest ones


@dataclass(frozen=True)
class Bin:
    """A part of a run's time. Means over its trials, None where no trial says."""

    num_ok: int
    num_failed: int
    compile_s: float  # added up over threads
    verify_s: float
    measure_s: float
    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    num_repeated: int  # trials that were timed again because something disturbed them
    marks: Mapping[str, int]  # trials by what disturbed their samples, as far as repeats did not help


@dataclass(frozen=True)
class Climb:
    """The best so far of a study, as steps: [seconds, us], ascending in seconds."""

    study: int
    steps: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class SearchRun:
    """One run. Seconds count from its first trial by the clock; those of a recording are simulated."""

    began_at: datetime
    ended_at: datetime
    gpu: str
    is_recorded: bool
    seconds: float
    num_trials: int
    num_failed: int
    num_disturbed: int  # trials whose times may be off
    bin_s: float
    bins: tuple[Bin, ...]
    progress: tuple[Climb, ...]


@dataclass(frozen=True)
class _Event:
    """A trial and its study."""

    study: StudyNumbers
    trial: TrialRecord

    @property
    def weight(self) -> float:
        """How many trials it stands for."""
        return self.study.weight if self.trial.id <= self.study.records.totals.last_id else 1.0


def runs(studies: Sequence[StudyNumbers]) -> tuple[SearchRun, ...]:
    """All runs, the newest first; MOST_RUNS at most."""
    by_gpu: dict[tuple[str, str], list[StudyNumbers]] = {}
    for study in studies:
        environment = study.study.environment
        by_gpu.setdefault((environment.gpu_name, environment.recorded_on), []).append(study)
    found = [_run(events) for group in by_gpu.values() for events in _segments(group)]
    return tuple(sorted(found, key=lambda run: run.began_at, reverse=True)[:MOST_RUNS])


def _segments(studies: Iterable[StudyNumbers]) -> list[list[_Event]]:
    """Trials of these studies as time goes, parted where none came for PAUSE_S; the newest MOST_RUNS."""
    events = [_Event(study, trial) for study in studies for trial in study.records.trials]
    pause_s = PAUSE_S * max((event.weight for event in events), default=1.0)
    events.sort(key=lambda event: (event.trial.created_at, event.trial.id))
    found: list[list[_Event]] = []
    before: datetime | None = None
    for event in events:
        at = event.trial.created_at
        if before is None or (at - before).total_seconds() > pause_s:
            found.append([])
        found[-1].append(event)
        before = at
    return found[-MOST_RUNS:]


def _run(events: Sequence[_Event]) -> SearchRun:
    environment = events[0].study.study.environment
    seconds = _seconds(events, is_recorded=environment.is_recorded)
    bin_s = max(LEAST_BIN_S, seconds[-1] / NUM_BINS)
    bins: list[list[_Event]] = [[] for _ in range(int(seconds[-1] / bin_s) + 1)]
    for event, at_s in zip(events, seconds, strict=True):
        bins[int(at_s / bin_s)].append(event)
    return SearchRun(
        began_at=events[0].trial.created_at,
        ended_at=events[-1].trial.created_at,
        gpu=environment.gpu_name,
        is_recorded=environment.is_recorded,
        seconds=seconds[-1],
        num_trials=_count(events),
        num_failed=_count(event for event in events if not event.trial.measurement.is_ok),
        num_disturbed=_count(event for event in events if event.trial.measurement.is_disturbed),
        bin_s=bin_s,
        bins=tuple(map(_bin, bins)),
        progress=_progress(events, seconds),
    )


def _seconds(events: Sequence[_Event], *, is_recorded: bool) -> list[float]:
    """Since the run began, of each trial."""
    if not is_recorded:
        started = events[0].trial.created_at
        return [(event.trial.created_at - started).total_seconds() for event in events]
    machine, found = SimulatedMachine(COMPILE_THREADS, COMPILE_THREADS + EXTRA_OPEN), []
    for event in events:
        trial, gemm = event.trial, event.study.study.gemm
        m, times = trial.measurement, event.weight
        machine.submit(cubin_key(trial.point, gemm), times * m.compile_s, times * (m.verify_s + m.measure_s))
        found.append(machine.done_s)
    return found


def _count(events: Iterable[_Event]) -> int:
    """How many trials these stand for."""
    return round(sum(event.weight for event in events))


def _bin(events: Sequence[_Event]) -> Bin:
    measured = [event.trial.measurement for event in events]
    num_ok = _count(event for event in events if event.trial.measurement.is_ok)
    marks: dict[str, float] = {}
    for event in events:
        for mark in event.trial.measurement.marks:
            marks[mark] = marks.get(mark, 0.0) + event.weight
    steps = ("compile_s", "verify_s", "measure_s")
    return Bin(
        num_ok=num_ok,
        num_failed=_count(events) - num_ok,
        **{step: sum(e.weight * getattr(e.trial.measurement, step) for e in events) for step in steps},
        clock_mhz=_mean(m.state.sm_clock_mhz for m in measured),
        power_w=_mean(m.state.power_w for m in measured),
        temperature_c=_mean(m.state.temperature_c for m in measured),
        num_repeated=_count(event for event in events if event.trial.measurement.discarded),
        marks={mark: round(num) for mark, num in marks.items()},
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _progress(events: Sequence[_Event], seconds: Sequence[float]) -> tuple[Climb, ...]:
    """Of each study with trials in the run, what was best before at 0."""
    at_s = {event.trial.id: s for event, s in zip(events, seconds, strict=True)}
    found = []
    for study in {event.study.study.id: event.study for event in events}.values():
        trials = study.records.trials
        steps: list[tuple[float, float]] = []
        for best in study.best_so_far:
            trial = trials[best.number - 1]
            if trial.id in at_s:
                steps.append((at_s[trial.id], best.time_us))
            elif trial.created_at < events[0].trial.created_at:
                steps = [(0.0, best.time_us)]
        found.append(Climb(study.study.id, tuple(steps)))
    return tuple(found)

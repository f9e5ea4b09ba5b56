"""What pages are drawn from, as plain data for JSON: an overview of all studies, each study in full.

Trials are columns, 20,000 in a few megabytes. A column is one of three things, whichever is the shortest:

    {"all": value}                      every trial has this value
    {"values": [...], "rows": [...]}    trial i has values[rows[i]]
    [...]                               trial i has the i-th
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ..facts.device import DeviceLimits
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..facts.stats import median, median_interval
from ..kernel import templates
from ..kernel.config import PARAMETER, PARAMETERS, Value, brief
from ..kernel.resources import workspace_of
from ..store import Final, TrialRecord
from .activity import SearchRun, runs
from .importance import MIN_TRIALS, pairs
from .ladder_steps import LadderFacts
from .numbers import PAUSE_S, StudyNumbers

MAX_ENCODED = 0.5  # distinct values per trial, up to which their numbers are shorter than they are
_FIGURES = ("is_cut_short", "registers", "spill_bytes", "smem_bytes")  # as they are
TIME_DIGITS = 5  # significant ones: samples scatter by more than the sixth

Column = dict[str, Any] | list[Any]


def column(values: Sequence[Any]) -> Column:
    """These values, of JSON's types, in the shortest way."""
    index: dict[Any, int] = {}
    rows = [index.setdefault(value, len(index)) for value in values]
    if len(index) == 1:
        return {"all": values[0]}
    if len(index) <= MAX_ENCODED * len(values):
        return {"values": list(index), "rows": rows}
    return list(values)


def significant(value: float | None, digits: int = TIME_DIGITS) -> float | None:
    """Rounded to so many significant digits; None for what JSON has no number for."""
    return float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None


def trial_columns(
    trials: Sequence[TrialRecord],
    elapsed_s: Sequence[float],
    first: int,
    gemm: Gemm,
    limits: DeviceLimits | None,
) -> dict[str, Any]:
    """Trials of one study by column; `first` is the number of the first of them in the study, `limits` those
    of its GPU model, if it is known. `point` has a column per parameter; parameters that no trial has are
    left out."""
    measured = [trial.measurement for trial in trials]
    names = list(dict.fromkeys(name for trial in trials for name in trial.point))
    columns = {
        "id": [trial.id for trial in trials],
        "s": [round(seconds, 2) for seconds in elapsed_s],
        "us": [significant(m.time_us) for m in measured],
        "origin": column([trial.origin for trial in trials]),
        "outcome": column([m.outcome.value for m in measured]),
        "reason": column([m.reason for m in measured]),
        "error": column([significant(m.error_over_cublas, 3) for m in measured]),
        **{name: column([getattr(m, name) for m in measured]) for name in _FIGURES},
        "workspace_bytes": column([workspace_of(trial.point, gemm, limits) for trial in trials]),
        "clock_mhz": column([m.state.sm_clock_mhz for m in measured]),
        "power_w": column([significant(m.state.power_w, 4) for m in measured]),
        "temperature_c": column([m.state.temperature_c for m in measured]),
        "marks": column([" ".join(m.marks) for m in measured]),
    }
    point = {name: column([trial.point.get(name) for trial in trials]) for name in names}
    return {"first": first, "count": len(trials), "columns": columns, "point": point}


Document = dict[str, Any]


def overview(studies: Sequence[StudyNumbers], source: str, ladders: Sequence[LadderFacts] = ()) -> Document:
    """All studies in a line each, and the runs of their searches. `source` names the database; `ladders`
    stand with the shapes that they are of."""
    return {
        "source": source,
        "written_at": time_text(datetime.now(UTC)),
        "studies": [
            {**line(study), "label": label} for study, label in zip(studies, _names(studies), strict=True)
        ],
        "runs": [_run(run) for run in runs(studies)],
        "ladders": [asdict(ladder) for ladder in ladders],
        "parameters": {p.name: {"meaning": p.description, "unit": p.unit} for p in PARAMETERS},
    }


def _names(studies: Sequence[StudyNumbers]) -> list[str]:
    """Shapes; where one stands twice (two kernel sources, say), with the number of the study."""
    shapes = [str(study.study.gemm) for study in studies]
    times = Counter(shapes)
    return [
        f"{shape} #{study.study.id}" if times[shape] > 1 else shape
        for shape, study in zip(shapes, studies, strict=True)
    ]


def line(study: StudyNumbers) -> Document:
    """One study in the overview."""
    gemm, environment = study.study.gemm, study.study.environment
    return {
        "id": study.study.id,
        "shape": str(gemm),
        **picked(gemm, "m n k layout"),
        "measured_on": measured_on(study),
        "gpu": environment.gpu_name,
        "recorded_on": environment.recorded_on,
        "flops_per_byte": significant(gemm.flops / gemm.num_bytes) if gemm.num_bytes else None,
        **picked(study, "best_us tflops cublas_us limit_us speedup share_of_limit cublas_share_of_limit"),
        **picked(study, "num_trials num_failed"),
        "error": significant(study.best_error),
        "num_shown": len(study.records.trials),
        "num_tied": len(study.final.tied) if study.final else None,
        "config": brief(study.best_point) if study.best_point else None,
        "best_trial": study.best_trial.id if study.best_trial else None,
        "updated_at": time_text(study.records.trials[-1].created_at) if study.num_trials else None,
    }


def measured_on(study: StudyNumbers) -> str:
    """Under what times were taken; studies that share it compare."""
    environment = study.study.environment
    return (
        f"{environment.gpu_name}, driver {environment.driver_version or 'unknown'}, "
        f"{study.study.compiler or 'compiler unknown'}, {study.study.policy} operands"
        + (f", recorded {environment.recorded_on}" if environment.is_recorded else "")
    )


def in_full(study: StudyNumbers) -> Document:
    """A study with all its trials."""
    return {**what_follows(study), **new_trials(study)}


def new_trials(study: StudyNumbers, after: int = 0) -> Document:
    """A study's line, and its trials of ids above `after`, for a page that has the others."""
    trials = study.records.trials
    first = next((at for at, trial in enumerate(trials) if trial.id > after), len(trials))
    gemm, limits = study.study.gemm, study.records.limits
    columns = trial_columns(trials[first:], study.elapsed_s[first:], first + 1, gemm, limits)
    return {**line(study), "trials": columns}


def what_follows(study: StudyNumbers) -> Document:
    """What follows from all trials of a study together."""
    limits, environment = study.records.limits, study.study.environment
    ids = {trial.key: trial.id for trial in study.records.trials}
    final = finalists(study.final) if study.final else ()
    return {
        **picked(study.study, "source_hash compiler policy"),
        "environment": environment.to_dict(),
        "peak_tflops": templates.tflops(study.accuracy, limits) if limits else None,
        "bandwidth_gbs": limits.bandwidth_gbs if limits else None,
        "pause_s": PAUSE_S,
        "least_trials": MIN_TRIALS,
        "best_so_far": [[step.number, round(step.elapsed_s, 2), step.time_us] for step in study.best_so_far],
        "finalists": [{**asdict(one), "trial": ids.get(one.key)} for one in final],
        "final_at": time_text(study.final.created_at) if study.final else None,
        "final_marks": list(study.final.marks) if study.final else [],
        "importance": [{**vars(one), "values": [*map(vars, one.values)]} for one in study.importance],
        "pairs": [*map(vars, pairs(study.ok, study.importance))],
        "failures": [{**asdict(group), "trial": ids[group.key]} for group in study.failures],
        "ledger": {**asdict(study.ledger), "gpu_share": study.ledger.gpu_share},
        "num_cut_short": study.num_cut_short,
        "order": list(PARAMETER),
    }


def _run(run: SearchRun) -> Document:
    """Bins as columns."""
    bins = [asdict(one) for one in run.bins]
    names = [name for name in bins[0] if name != "marks"]
    marks = sorted({mark for one in run.bins for mark in one.marks})
    return {
        **{k: v for k, v in asdict(run).items() if k not in ("bins", "progress")},
        "began_at": time_text(run.began_at),
        "ended_at": time_text(run.ended_at),
        "bins": {name: [significant(one[name], 4) for one in bins] for name in names},
        "marks": {mark: [one.marks.get(mark, 0) for one in run.bins] for mark in marks},
        "progress": [
            {"study": p.study, "steps": [[round(s, 2), significant(us)] for s, us in p.steps]}
            for p in run.progress
        ],
    }


def time_text(at: datetime) -> str:
    """As pages read it: ISO, UTC, whole seconds."""
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


Point = Mapping[str, Value]


@dataclass(frozen=True)
class Finalist:
    """A config of the final, or cuBLAS (rank 0). `ratio`: median of its time over the winner's within each
    round, `low` and `high` hold it in 19 of 20 cases; None where there are no samples of the same rounds."""

    rank: int
    label: str
    key: str
    is_tied: bool
    time_us: float
    joules: float | None
    ratio: float | None
    low: float | None
    high: float | None


def finalists(final: Final) -> tuple[Finalist, ...]:
    """By rank, cuBLAS behind them if it was timed in the same rounds."""
    winner = final.winner.samples_us
    named = labels([entry.point for entry in final.entries])
    found = []
    for e, label in zip(final.entries, named, strict=True):
        over = _over(winner, e.samples_us, e.time_us, final)
        found.append(Finalist(e.rank, label, e.key, e.is_tied, e.time_us, e.joules, *over))
    baseline = final.baseline
    if baseline and baseline.time_us:
        over = _over(winner, baseline.samples_us, baseline.time_us, final)
        found.append(Finalist(0, "cuBLAS", "", False, baseline.time_us, None, *over))
    return tuple(found)


def _over(
    winner: Sequence[float], samples: Sequence[float], time_us: float, final: Final
) -> tuple[float | None, float | None, float | None]:
    """Ratio to the winner, and its interval. Rounds match from the first on: who was out early has fewer."""
    ratios = [own_us / best for own_us, best in zip(samples, winner, strict=False)]
    if not ratios:
        return time_us / final.winner.time_us, None, None
    low, high = median_interval(ratios)
    return median(ratios), low, high


def labels(points: Sequence[Point]) -> list[str]:
    """What `brief` says of each; behind it, where several share that, the parameters that differ."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(brief(point), []).append(point)
    return [" ".join([brief(point), *_distinct(point, groups[brief(point)])]) for point in points]


def _distinct(point: Point, groups: Sequence[Point]) -> list[str]:
    """`name=value` of each parameter that does not have one value in all of them."""
    return [
        f"{name}={value}"
        for name, value in point.items()
        if any(other.get(name) != value for other in groups)
    ]

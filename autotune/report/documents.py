"""What pages are drawn from, as plain data for JSON: an overview of all studies, and each study in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..facts.frozen import picked
from ..kernel import templates
from ..kernel.config import PARAMETER, PARAMETERS, brief
from .activity import SearchRun, runs
from .finalists import finalists
from .importance import MIN_TRIALS, pairs
from .ladder_steps import LadderFacts
from .numbers import PAUSE_S, StudyNumbers
from .trial_columns import significant, trial_columns

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
        "importance": [asdict(parameter) for parameter in study.importance],
        "pairs": [asdict(pair) for pair in pairs(study.ok, study.importance)],
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

"""`autotune report`: everything that a database holds, as one HTML file to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..facts.frozen import picked
from ..files.output_file import check_writable, write_file
from ..files.words import counted
from ..kernel.where import ANY
from ..report import documents, page
from ..report.ladder_steps import LadderFacts, read_ladder
from ..report.numbers import StudyNumbers, latest_of, read_records, shown_of
from ..report.table_maps import table_document
from ..store import Store, StudySummary, shown
from . import common, console
from .requests import ReportRequest


def run(request: ReportRequest, *, is_json: bool) -> None:
    """Write the report of all studies, or of those of some shapes. Raises EnvironmentProblem without jinja2
    or on a full disk, UsageError where `out` cannot be written, a ladder cannot be read or there is no trial,
    DispatchError where there is no table."""
    page.jinja()  # before anything is computed for nothing
    out = request.out
    check_writable(out)
    ladders = [read_ladder(path) for path in request.ladders]
    with common.open_existing(request.db) as store:
        summaries = _summaries(store, request.shapes)
        studies = _numbers(store, latest_of(summaries), request.max_error)
    part = shown_of(len(summaries))
    found = contents(studies, f"{shown(request.db)}{part}", ladders)
    if request.table:
        found["table"] = table_document(request.table, studies)
    write_file(out, page.render(found))
    num_trials = counted(sum(study.num_trials for study in studies), "trial")
    num_studies = counted(len(studies), "study", "studies")
    text = f"wrote {out}: {num_studies}{part}, {num_trials}; open it in a browser"
    facts = {"out": str(out), "studies": [_facts(study) for study in studies]}
    console.answer(facts, lambda: text, is_json=is_json)


def numbers_of(store: Store, shapes: Sequence[str], max_error: float | None) -> list[StudyNumbers]:
    """The numbers of the newest studies with trials, or of those of `shapes`. Raises UsageError if there is
    none."""
    return _numbers(store, latest_of(_summaries(store, shapes)), max_error)


def _summaries(store: Store, shapes: Sequence[str]) -> list[StudySummary]:
    return common.studies_of(store, common.read_problems(shapes))


def _numbers(store: Store, summaries: Sequence[StudySummary], max_error: float | None) -> list[StudyNumbers]:
    num_all = sum(summary.num_trials for summary in summaries)
    studies = [summary.study for summary in summaries]
    finals, baselines = store.finals(dict.fromkeys(studies, ANY), max_error), store.baselines(studies)
    found = []
    for s in summaries:
        final, baseline = finals.get(s.study.id), baselines.get(s.study.id)
        cublas_us = baseline.time_us if baseline else None
        records = read_records(store, s.study, s.num_trials, num_all, final, cublas_us, max_error)
        found.append(StudyNumbers(records))
    return found


def contents(
    studies: Sequence[StudyNumbers], source: str, ladders: Sequence[LadderFacts] = ()
) -> dict[str, Any]:
    """All documents of a report, by name."""
    in_full = {f"study/{study.study.id}": documents.in_full(study) for study in studies}
    return {"overview": documents.overview(studies, source, ladders), **in_full}


def _facts(s: StudyNumbers) -> dict[str, Any]:
    return {
        "shape": str(s.study.gemm),
        **common.measured_on(s.study.environment),
        "policy": s.study.policy,
        **picked(s, "num_trials num_failed num_cut_short limit_us speedup share_of_limit"),
        "best_time_us": s.best_us,
        "best_config": dict(s.best_point) if s.best_point else None,
        "cublas_time_us": s.cublas_us,
        "ledger": {**asdict(s.ledger), "gpu_share": s.ledger.gpu_share},
        "importance": {parameter.name: parameter.share for parameter in s.importance},
        "failures": [asdict(group) for group in s.failures],
        "best_so_far": [asdict(step) for step in s.best_so_far],
        "tied": [entry.key for entry in s.final.tied] if s.final else [],
    }

"""`autotune trials history --csv` and `failures --csv`: trials as a table for spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..store import Store, StudyRef, TrialRecord
from . import common, console
from .requests import HistoryRequest


def run(request: HistoryRequest, *, is_failed: bool = False) -> None:
    """Print the trials of these shapes, or of all, or those that failed; the newest so many, or all of each
    study. Raises UsageError without trials."""
    with common.open_existing(request.db) as store:
        found = common.studies_of(store, common.read_problems(request.shapes), is_brief=True)
        studies = [summary.study for summary in found]
        names = _names(store, studies)
        latest = store.latest(studies, request.limit, is_failed=is_failed) if request.limit else []
        console.show_csv((_row(study, record) for study, record in latest), names)
        all_of = {study: _first(study) for study in studies if request.limit is None}
        console.show_lines(store.csv_lines(all_of, names, is_failed=is_failed))


def _first(study: StudyRef) -> dict[str, Any]:
    return {"study": study.id, "shape": str(study.gemm), "gpu": study.environment.gpu_name}


def _row(study: StudyRef, record: TrialRecord) -> dict[str, Any]:
    return {**_first(study), **record.flat()}


def _names(store: Store, studies: Sequence[StudyRef]) -> list[str]:
    """The columns: trials of a kernel have the same parameters."""
    of_kernels = {study.source_hash: study for study in studies}.values()
    firsts = (
        _row(study, record)
        for study in of_kernels
        for record in store.best(study, 1) or [record for _, record in store.latest([study], 1)]
    )
    return list(dict.fromkeys(name for row in firsts for name in row))

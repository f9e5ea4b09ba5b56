"""`autotune trials history --csv` and `failures --csv`: trials as a table for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        rows = _rows(store, studies, request.limit, is_failed=is_failed)
        console.show_csv(rows, names=_names(store, studies))


def _rows(
    store: Store, studies: Sequence[StudyRef], limit: int | None, *, is_failed: bool
) -> Iterator[Mapping[str, Any]]:
    if limit is not None:
        for study, record in store.latest(studies, limit, is_failed=is_failed):
            yield _row(study, record)
        return
    for study in studies:
        for record in store.each_trial(study, is_failed=is_failed):
            yield _row(study, record)


def _row(study: StudyRef, record: TrialRecord) -> dict[str, Any]:
    return {"study": study.id, "shape": str(study.gemm), "gpu": study.environment.gpu_name, **record.flat()}


def _names(store: Store, studies: Sequence[StudyRef]) -> list[str]:
    """The columns: trials of a kernel have the same parameters."""
    of_kernels = {study.source_hash: study for study in studies}.values()
    firsts = (
        _row(study, record)
        for study in of_kernels
        for record in store.best(study, 1) or [record for _, record in store.latest([study], 1)]
    )
    return list(dict.fromkeys(name for row in firsts for name in row))

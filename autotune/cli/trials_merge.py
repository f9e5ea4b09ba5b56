"""`autotune trials merge` and `trials forget`: what a database takes from another one, what it gives up."""

from __future__ import annotations

from collections.abc import Sequence

from ..files.errors import UsageError
from ..files.words import counted
from ..store import Store, optuna_mirror, shown
from . import common, console


def merge(other: str, db: str, *, is_json: bool, is_quiet: bool) -> None:
    """Copy all of `other` into `db`, which is made where there is none. Raises UsageError if both are one
    database, StoreError."""
    with common.open_existing(other) as source, Store.open(db) as target:
        target.tell_when_away(console.note)
        with console.Progress(is_quiet=is_quiet) as progress:
            merged = target.merge(
                source, lambda done, total: progress.update(f"{done:,} of {counted(total, 'trial')} read")
            )
    if is_json:
        facts = {"num_studies": merged.num_studies, "num_new": merged.num_new, "num_known": merged.num_known}
        console.show_json({"db": shown(db), "other": shown(other), **facts, "others": merged.others})
        return
    studies = counted(merged.num_studies, "study", "studies")
    new = counted(merged.num_new, f"trial of {studies} is", f"trials of {studies} are")
    known = counted(merged.num_known, "was", "were")
    console.show(f"{shown(db)}: {new} new, {known} there already")


def forget(db: str, shapes: Sequence[str], study_ids: Sequence[int], *, is_sure: bool, is_json: bool) -> None:
    """Delete the studies of these problems, and those with these ids. Raises UsageError where there is none,
    and, unless `is_sure`, with what would be deleted."""
    if not (shapes or study_ids):
        raise UsageError(
            "nothing to forget: pass --shape 4096 or --study ID (`trials best --json` lists them)"
        )
    problems = common.read_problems(shapes)
    with Store.open_existing(db) as store, store.damages.told(console.note):
        summaries = [
            summary
            for summary in store.studies()
            if summary.study.gemm in problems or summary.study.id in study_ids
        ]
        if not summaries:
            store.damages.refuse()
            raise UsageError(f"{shown(db)} holds no such study")
        lines = [
            f"study {s.study.id}: {s.study.gemm} on {common.source_text(s.study.environment)}, "
            f"{counted(s.num_trials, 'trial')}"
            for s in summaries
        ]
        if not is_sure:
            raise UsageError(f"would forget {'; '.join(lines)}; add --yes to do it")
        for summary in summaries:
            optuna_mirror.forget(store, summary.study)
            store.forget(summary.study)
    if is_json:
        forgotten = [
            {"id": s.study.id, "shape": str(s.study.gemm), "num_trials": s.num_trials} for s in summaries
        ]
        console.show_json({"db": shown(db), "forgotten": forgotten})
    else:
        console.show("\n".join(f"forgotten: {line}" for line in lines))

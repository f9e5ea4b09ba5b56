"""`autotune trials merge` and `trials forget`: what a database takes from another one, what it gives up."""

from __future__ import annotations

import codecs
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ..facts.frozen import picked
from ..files.errors import UsageError
from ..files.words import counted
from ..recording.replay import ReplayTarget
from ..search import study_of
from ..store import Store, shown
from ..store.merging import Merged, OnPage
from . import common, console
from .recorder import ORIGIN
from .requests import ForgetRequest, MergeRequest

_HEAD = 64  # bytes of a file that tell what it is


def merge(request: MergeRequest, *, is_json: bool, is_quiet: bool) -> None:
    """Copy all of `other`, a database or a recording, into `db`, which is made where there is none. Raises
    UsageError if both are one database, StoreError."""
    other, db = request.other, request.db
    with ExitStack() as opened, console.Progress(is_quiet=is_quiet) as progress:

        def on_page(done: int, total: int, name: str = "trial") -> None:
            progress.update(f"{done:,} of {counted(total, name)} read")

        if _is_recording(other):
            recorded = ReplayTarget(other)
            if recorded.note:
                console.note(recorded.note)
            target = opened.enter_context(Store.open(db))
            merged = _merge_recording(recorded, target, partial(on_page, name="shape"))
        else:
            source = opened.enter_context(common.open_existing(other))
            target = opened.enter_context(Store.open(db))
            target.tell_when_away(console.note)
            merged = target.merge(source, on_page)
    studies = counted(merged.num_studies, "study", "studies")
    new = counted(merged.num_new, f"trial of {studies} is", f"trials of {studies} are")
    known = counted(merged.num_known, "was", "were")
    console.answer(
        {"db": shown(db), "other": shown(other), **picked(merged, "num_studies num_new num_known others")},
        lambda: f"{shown(db)}: {new} new, {known} there already",
        is_json=is_json,
    )


def _is_recording(other: str) -> bool:
    """Whether a file is no database of SQLite: compressed or JSON, as recordings are."""
    path = Path(other)
    if "://" in other or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    return text.startswith((b"{", b"\x1f\x8b", codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def _merge_recording(recorded: ReplayTarget, target: Store, on_page: OnPage) -> Merged:
    """As trials of the GPU and the day that the recording names."""
    merged = Merged()
    for done, gemm in enumerate(recorded.gemms):
        on_page(done, len(recorded.gemms))
        study = study_of(target, recorded, gemm)
        trials = recorded.trials(gemm)
        known = target.keys(study, within=trials)
        target.add_trials(study, trials, ORIGIN)
        if target.baseline(study) is None:
            target.add_baseline(study, recorded.baseline(gemm))
        merged.num_studies += 1
        merged.num_new += len(trials) - len(known)
        merged.num_known += len(known)
    return merged


def forget(request: ForgetRequest, *, is_json: bool) -> None:
    """Delete the studies of these problems, and those with these ids. Raises UsageError where there is none,
    and, unless `is_sure`, with what would be deleted."""
    if not (request.shapes or request.studies):
        raise UsageError(
            "nothing to forget: pass --shape 4096 or --study ID (`trials best --json` lists them)"
        )
    problems = common.read_problems(request.shapes)
    with Store.open_existing(request.db) as store, store.bad_rows.reported(console.note):
        known = store.studies()
        summaries = [s for s in known if s.study.gemm in problems or s.study.id in request.studies]
        if not summaries:
            store.bad_rows.refuse()
            raise UsageError(f"{shown(request.db)} holds no such study (`trials best --json` lists them)")
        lines = [
            f"study {s.study.id}: {s.study.gemm}, {common.source_text(s.study.environment)}, "
            f"{counted(s.num_trials, 'trial')}"
            for s in summaries
        ]
        if not request.is_sure:
            raise UsageError(f"would forget {'; '.join(lines)}; add --yes to do it")
        for summary in summaries:
            store.forget(summary.study)
    names = [{"id": s.study.id, "shape": str(s.study.gemm), "num_trials": s.num_trials} for s in summaries]
    facts = {"db": shown(request.db), "forgotten": names}
    console.answer(facts, lambda: "\n".join(f"forgotten: {line}" for line in lines), is_json=is_json)

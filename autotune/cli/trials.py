"""`autotune trials`: what the database holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from ..facts.device import limits_by_name
from ..facts.gemm import Gemm
from ..facts.measurement import Outcome
from ..files.errors import UsageError
from ..files.words import counted
from ..kernel import templates
from ..kernel.config import PARAMETER, Config, lanes_k
from ..kernel.resources import workspace_of
from ..store import Store, StudySummary, TrialRecord
from . import common, console, trials_csv
from .requests import BestRequest, FailuresRequest, HistoryRequest

SHOWN = 20  # trials
REASON_WIDTH = 90
OF_PRODUCTS = ("vs cuBLAS", "of limit", "TFLOP/s", "workspace")  # what no other problem has


def best(request: BestRequest, *, is_json: bool, is_csv: bool = False) -> None:
    """One line per study: its best trial, as accurate as it is to be, against cuBLAS and the limit."""
    max_error = request.max_error
    with common.open_existing(request.db) as store:
        summaries = common.studies_of(store, common.read_problems(request.shapes), max_error)
        found = sorted(summaries, key=lambda summary: summary.study.gemm)
        studies = [_study_facts(store, summary, max_error) for summary in found]
    if is_json:
        console.show_json({"studies": studies})
        return
    if is_csv:
        rows = [_flat(study) for study in studies]
        console.show_csv(rows, list(dict.fromkeys(name for row in rows for name in row)))
        return
    groups: dict[str, list[dict[str, Any]]] = {}
    for study in studies:
        groups.setdefault(study["measured_on"], []).append(study)
    console.show("\n\n".join(f"{_best_head(found)}\n{_best_table(found)}" for found in groups.values()))


def _best_head(studies: Sequence[dict[str, Any]]) -> str:
    """What was measured, when, and what came of it in all."""
    drivers = ", ".join(dict.fromkeys(s["driver"] for s in studies if s["driver"]))
    days = sorted(s["updated_at"][:10] for s in studies)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    trials = counted(sum(s["num_trials"] for s in studies), "trial")
    failed = sum(s["num_trials"] - s["num_ok"] for s in studies)
    notes = [f"{counted(len(studies), 'shape')}, {trials} ({failed:,} failed), the newest of {when}"]
    speedups = [common.share(s["cublas_time_us"], s["best_time_us"]) for s in studies]
    known = [speedup for speedup in speedups if speedup]
    if len(known) > 1:
        slower = sum(speedup < 1 for speedup in known)
        mean = console.ratio_text(geometric_mean(known))
        notes.append(f"geometric mean {mean} cuBLAS, {slower:,} slower than it")
    under = f", driver {drivers}" if drivers else ""
    head = f"{studies[0]['measured_on']}{under}: {'; '.join(notes)}"
    return console.wrap_text(console.one_line(head))


def _study_facts(store: Store, summary: StudySummary, max_error: float | None) -> dict[str, Any]:
    """A study's winner: of its final if there was one, else its fastest trial."""
    study, fastest = summary.study, summary.best
    final = store.final(study, max_error)
    winner = final.winner if final else fastest
    tried = store.trial(study, winner.key) if winner else None
    time_us = final.winner.time_us if final else fastest and fastest.measurement.time_us
    baseline_us = final.baseline.time_us if final and final.baseline else summary.cublas_us
    limits = limits_by_name(study.environment.gpu_name)
    limit_us = templates.limit_us(study.gemm, limits, templates.accuracy_of(study.source_hash))
    return {
        "id": tried and tried.id,
        "study": study.id,
        "shape": str(study.gemm),
        **common.measured_on(study.environment),
        "measured_on": common.source_text(study.environment),
        "driver": study.environment.driver_version,
        "policy": study.policy,
        "num_trials": summary.num_trials,
        "num_ok": sum(count for outcome, count in summary.counts.items() if outcome == "ok"),
        "best_time_us": time_us,
        "tflops": study.gemm.tflops(time_us) or None if time_us else None,
        "cublas_time_us": baseline_us,
        "error_over_cublas": tried and tried.measurement.error_over_cublas,
        "limit_us": limit_us,
        "is_final": final is not None,
        "num_tied": len(final.tied) if final else None,
        "workspace_bytes": workspace_of(winner.point, study.gemm, limits) if winner else None,
        "best_config": dict(winner.point) if winner else None,
        "updated_at": summary.updated_at.isoformat(timespec="seconds"),
    }


def _flat(study: dict[str, Any]) -> dict[str, Any]:
    config = study["best_config"] or {}
    facts = {name: value for name, value in study.items() if name != "best_config"}
    return {**facts, **{f"config.{name}": value for name, value in config.items()}}


def _best_table(studies: Sequence[dict[str, Any]]) -> str:
    headers = (
        "trial", "shape", "best", "vs cuBLAS", "of limit", "TFLOP/s", "error", "trials", "tied", "workspace",
        "config",
    )  # fmt: skip
    rows = [
        (
            "-" if s["id"] is None else s["id"],
            s["shape"],
            console.time_text(s["best_time_us"]),
            console.ratio_text(common.share(s["cublas_time_us"], s["best_time_us"])),
            console.ratio_text(common.share(s["limit_us"], s["best_time_us"]), "%"),
            f"{s['tflops']:.1f}" if s["tflops"] else "-",
            console.ratio_text(s["error_over_cublas"]),
            s["num_trials"],
            "-" if s["num_tied"] is None else s["num_tied"],
            console.workspace_text(s["workspace_bytes"]),
            brief(s["best_config"]),
        )
        for s in studies
    ]
    return console.table(headers, rows, right=(0, *range(2, 10)), optional=OF_PRODUCTS)


def brief(point: dict[str, Any] | None) -> str:
    """A config in one short word for tables: `64x128x16 8x8 s3 async ...`; others' points whole."""
    if point is None:
        return "-"
    try:
        c = Config.from_dict(point)
        is_whole = set(point) == set(PARAMETER)
    except UsageError:  # of another kernel, or of another version of this one
        is_whole = False
    if not is_whole:
        return ",".join(f"{name}={value}" for name, value in point.items())
    split = f" split_k={c.split_k}" if c.split_k > 1 else ""
    slices = f" slice_k={c.slice_k}" if c.slice_k > 1 else ""
    flush = f" flush_k={c.flush_k}" if c.flush_k else ""
    how = "lanes along k" if lanes_k(c) > 1 else f"stages={c.stages} {c.order}"
    packed = "".join(f" {name}" for name in ("pack_a", "pack_b") if getattr(c, name))
    return f"{c.bm}x{c.bn}x{c.bk} {c.tm}x{c.tn} {how}{slices}{flush}{split}{packed}"


def history(request: HistoryRequest, *, is_json: bool, is_csv: bool = False) -> None:
    """The newest trials, oldest of them first."""
    if is_csv:
        trials_csv.run(request)
        return
    counts, latest = _latest(request)
    if is_json:
        console.show_json({"num_trials": counts.total(), "trials": [trial_facts(*row) for row in latest]})
        return
    cells = [
        (
            record.id,
            f"{record.created_at:%Y-%m-%d %H:%M:%S}",
            str(gemm),
            record.measurement.outcome,
            console.time_text(record.measurement.time_us),
            console.ratio_text(record.measurement.error_over_cublas),
            record.origin,
            brief(dict(record.point)),
        )
        for gemm, record in latest
    ]
    headers = ("trial", "stored (UTC)", "shape", "outcome", "time", "error", "from", "config")
    console.show(console.table(headers, cells, right=(0, 4, 5)))


def failures(request: FailuresRequest, *, is_json: bool, is_csv: bool = False) -> None:
    """A count per outcome and the newest failures with their reasons."""
    if is_csv:
        trials_csv.run(request, is_failed=True)
        return
    counts, latest = _latest(request, is_failed=True)
    del counts[Outcome.OK]
    if is_json:
        by_outcome = {outcome.value: count for outcome, count in counts.most_common()}
        console.show_json({"counts": by_outcome, "trials": [trial_facts(*row) for row in latest]})
        return
    if not counts:
        console.show("no trial failed")
        return
    console.show(console.table(("outcome", "trials"), counts.most_common(), right=(1,)))
    cells = [
        (record.id, str(gemm), record.measurement.outcome, _one_line(record.measurement.reason), record.key)
        for gemm, record in latest
    ]
    console.show("\n" + console.table(("trial", "shape", "outcome", "reason", "config"), cells, right=(0,)))


def _one_line(reason: str) -> str:
    text = " ".join(reason.split())
    return text if len(text) <= REASON_WIDTH else f"{text[: REASON_WIDTH - 3]}..."


def _latest(
    request: HistoryRequest, *, is_failed: bool = False
) -> tuple[Counter[Outcome], list[tuple[Gemm, TrialRecord]]]:
    """How the trials of these shapes ended, or of all, and the newest of them, or of those that failed."""
    with common.open_existing(request.db) as store:
        summaries = common.studies_of(store, common.read_problems(request.shapes), is_brief=True)
        studies = [summary.study for summary in summaries]
        found = store.latest(studies, request.limit or SHOWN, is_failed=is_failed)
        counts = Counter[Outcome]()
        for summary in summaries:
            counts.update(summary.counts)
        if not (found or is_failed):
            store.bad_rows.refuse()
        return counts, [(study.gemm, record) for study, record in found]


def trial_facts(gemm: Gemm, record: TrialRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "shape": str(gemm),
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "origin": record.origin,
        "config": dict(record.point),
        **record.measurement.to_dict(),
    }

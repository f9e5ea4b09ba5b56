"""`autotune trials` and `autotune runs`: what the database holds, and who searched it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from .. import target_finder as targets
from ..facts.device import limits_by_name
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..facts.measurement import Outcome
from ..files.words import counted
from ..kernel import templates
from ..kernel.resources import workspace_of
from ..kernel.where import ANY
from ..search import stale
from ..store import Final, RunRecord, Store, StudyRef, StudySummary, TrialRecord
from . import common, console
from .facts_table import OF_PRODUCTS, facts_table
from .requests import BestRequest, FailuresRequest, HistoryRequest, RunsRequest

SHOWN = 20  # trials
REASON_WIDTH = 90
_BEST = {
    "trial": "id", "shape": "shape", "best": "best_time_us", "vs cuBLAS": "speedup",
    "of limit": "share_of_limit", "TFLOP/s": "tflops", "error": "error_over_cublas",
    "trials": "num_trials", "tied": "num_tied", "workspace": "workspace_bytes", "config": "best_config",
}  # fmt: skip
_HISTORY = {
    "trial": "id", "stored (UTC)": "created_at", "shape": "shape", "outcome": "outcome", "time": "time_us",
    "error": "error_over_cublas", "from": "origin", "config": "config",
}  # fmt: skip


def best(request: BestRequest, *, is_json: bool, is_csv: bool = False) -> None:
    """One line per study: its best trial, as accurate as it is to be, against cuBLAS and the limit."""
    max_error = request.max_error
    with common.open_existing(request.db) as store:
        summaries = common.studies_of(store, common.read_problems(request.shapes))
        found = sorted(summaries, key=lambda summary: summary.study.gemm)
        newest_first = sorted(summaries, key=lambda summary: summary.updated_at, reverse=True)
        changed = stale.outdated((one.study for one in newest_first), targets.installed_here)
        finals = store.finals(dict.fromkeys((one.study for one in found), ANY), max_error)
        studies = [
            {
                **_study_facts(store, summary, finals.get(summary.study.id), max_error),
                "stale": [*map(stale.describe, changed.get(summary.study, ()))],
            }
            for summary in found
        ]
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
    if changed:
        console.note(stale.describe_outdated(changed))


def _best_head(studies: Sequence[dict[str, Any]]) -> str:
    """What was measured, when, and what came of it in all."""
    drivers = ", ".join(dict.fromkeys(s["driver"] for s in studies if s["driver"]))
    days = sorted(s["updated_at"][:10] for s in studies)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    trials = counted(sum(s["num_trials"] for s in studies), "trial")
    failed = sum(s["num_trials"] - s["num_ok"] for s in studies)
    shapes = counted(len({s["shape"] for s in studies}), "shape")
    several = f" in {len(studies):,} studies" if len(studies) > len({s["shape"] for s in studies}) else ""
    notes = [f"{shapes}{several}, {trials} ({failed:,} failed), the newest of {when}"]
    speedups = [common.share(s["cublas_time_us"], s["best_time_us"]) for s in studies]
    known = [speedup for speedup in speedups if speedup]
    if len(known) > 1:
        slower = sum(speedup < 1 for speedup in known)
        mean = console.ratio_text(geometric_mean(known))
        notes.append(f"geometric mean {mean} cuBLAS, {slower:,} slower than it")
    under = f", driver {drivers}" if drivers else ""
    head = f"{studies[0]['measured_on']}{under}: {'; '.join(notes)}"
    return console.wrap_text(console.one_line(head))


def _study_facts(
    store: Store, summary: StudySummary, final: Final | None, max_error: float | None
) -> dict[str, Any]:
    """A study's winner: of its final if there was one, else its fastest trial."""
    study = summary.study
    fastest = None if final else next(iter(store.best(study, 1, max_error)), None)
    winner = final.winner if final else fastest
    tried = store.trial(study, final.winner.key) if final else fastest
    time_us = final.winner.time_us if final else fastest and fastest.measurement.time_us
    baseline_us = final.baseline.time_us if final and final.baseline else store.cublas_us(study)
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
    facts["stale"] = ", ".join(study["stale"])
    return {**facts, **{f"config.{name}": value for name, value in config.items()}}


def _best_table(studies: Sequence[dict[str, Any]]) -> str:
    rows = [
        {
            **s,
            "speedup": common.share(s["cublas_time_us"], s["best_time_us"]),
            "share_of_limit": common.share(s["limit_us"], s["best_time_us"]),
        }
        for s in studies
    ]
    return facts_table(rows, _BEST, OF_PRODUCTS)


def history(request: HistoryRequest, *, is_json: bool, is_csv: bool = False) -> None:
    """The newest trials, oldest of them first."""
    if is_csv:
        _show_csv(request, is_failed=False)
        return
    counts, latest = _latest(request)
    facts = [trial_facts(*row) for row in latest]
    shown = [{**one, "created_at": one["created_at"].replace("T", " ")[:19]} for one in facts]
    console.answer(
        {"num_trials": counts.total(), "trials": facts}, lambda: facts_table(shown, _HISTORY), is_json=is_json
    )


def failures(request: FailuresRequest, *, is_json: bool, is_csv: bool = False) -> None:
    """A count per outcome and the newest failures with their reasons."""
    if is_csv:
        _show_csv(request, is_failed=True)
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
        summaries = common.studies_of(store, common.read_problems(request.shapes))
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
        **picked(record, "id origin"),
        "shape": str(gemm),
        "created_at": common.moment(record.created_at),
        "config": dict(record.point),
        **record.measurement.to_dict(),
    }


# --------------------------------------------------------------------------------- for spreadsheets


def _show_csv(request: HistoryRequest, *, is_failed: bool) -> None:
    """Print the trials of these shapes, or of all, or those that failed; the newest so many, or all of each
    study. Raises UsageError without trials."""
    with common.open_existing(request.db) as store:
        found = common.studies_of(store, common.read_problems(request.shapes))
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


_SHOWN_SHAPES = 3


def runs(request: RunsRequest, *, is_json: bool) -> None:
    """The newest runs, oldest of them first; of these shapes, or of all."""
    wanted = {str(problem) for problem in common.read_problems(request.shapes)}
    with common.open_existing(request.db) as store:
        found = [one for one in store.runs() if not wanted or wanted & set(one.shapes)]
        if not found:
            store.bad_rows.refuse()
    facts = [_facts(one) for one in found[-request.limit :]]
    nothing = "no run is stored; databases keep them since autotune tells who searched"
    result = {"num_runs": len(found), "runs": facts}
    console.answer(result, lambda: "\n\n".join(map(_text, facts)) or nothing, is_json=is_json)


def _facts(one: RunRecord) -> dict[str, Any]:
    return {
        **picked(one, "id state login host command num_trials"),
        "began_at": common.moment(one.began_at),
        "ended_at": common.moment(one.ended_at),
        "shapes": list(one.shapes),
        "environment": one.environment.to_dict(),
        "versions": dict(one.versions),
    }


def _text(facts: dict[str, Any]) -> str:
    environment, shapes = facts["environment"], facts["shapes"]
    more = f" and {len(shapes) - _SHOWN_SHAPES:,} more" if len(shapes) > _SHOWN_SHAPES else ""
    driver = environment["driver_version"]
    where = (
        f"recorded on {environment['gpu_name']}" if environment["recorded_on"] else environment["gpu_name"]
    )
    trials = "" if facts["num_trials"] is None else f", {counted(facts['num_trials'], 'trial')}"
    return "\n".join(
        console.one_line(line)
        for line in (
            f"run {facts['id']}: {facts['login'] or 'somebody'} on {facts['host']}, {facts['began_at']}, "
            f"{facts['state']}{' ' + facts['ended_at'] if facts['ended_at'] else ''}{trials}",
            f"  {facts['command']}",
            f"  {where}{f', driver {driver}' if driver else ''}; "
            f"{', '.join(shapes[:_SHOWN_SHAPES]) or 'shapes drawn at random'}{more}",
            f"  {', '.join(f'{name} {version}' for name, version in facts['versions'].items())}",
        )
    )

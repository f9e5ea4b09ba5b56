"""`autotune bench`: the best known kernels against cuBLAS, interleaved, with the percentage of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from .. import target_finder as targets
from ..facts.gemm import Gemm
from ..facts.measurement import read_policy
from ..files.errors import UsageError
from ..files.words import counted
from ..store import Store, StudyRef
from ..target import Point, Target
from . import common, console
from .requests import BenchRequest
from .trials import brief


def run(request: BenchRequest, *, is_json: bool) -> None:
    """Time the winner of every tuned shape (or of those named) and cuBLAS in the same rounds."""
    named = common.read_shapes(request.shapes, common.read_calls(request.suites)[0])
    with (
        common.open_existing(request.db) as store,
        closing(
            targets.open_target(
                request.gpu, read_policy(request.cache), max_error=request.max_error, note=console.note
            )
        ) as target,
    ):
        tuned = winners(store, target, named)
        with console.Progress(is_quiet=is_json) as progress:
            results = []
            for number, (gemm, point) in enumerate(tuned.items(), 1):
                progress.update(f"timing {gemm} ({number}/{len(tuned)})")
                results.append(_race(target, gemm, point, request.rounds))
        facts = {
            **common.measured_on(target.environment),
            "policy": target.policy,
            "num_rounds": request.rounds,
            "shapes": results,
        }
        measured_on = common.source_text(target.environment)
    head = f"{measured_on}, {facts['policy']} operands, {counted(request.rounds, 'interleaved round')}"
    console.answer(facts, lambda: f"{head}\n{_table(results)}", is_json=is_json)


def winners(store: Store, target: Target, named: Sequence[Gemm]) -> dict[Gemm, Point]:
    """The best known point of each tuned shape on GPUs of this kind, as accurate as the target asks for.

    Raises UsageError if one has none, StoreError if that is because it is damaged.
    """
    latest = store.latest_studies(target.environment, target.policy, target.max_error)
    wanted = [study for study in latest if not named or study.gemm in named]
    found = {study.gemm: winner(store, study, target.max_error) for study in wanted}
    tuned = {gemm: point for gemm, point in found.items() if point is not None}
    missing = [gemm for gemm in named if gemm not in tuned]
    if missing or not tuned:
        store.damages.refuse()
        what = ", ".join(map(str, missing)) or "any shape"
        where = common.source_text(target.environment)
        raise UsageError(f"nothing was tuned for {what} ({where}); run `autotune search` for it first")
    return {gemm: tuned[gemm] for gemm in named or tuned}


def winner(store: Store, study: StudyRef, max_error: float | None) -> Point | None:
    """The best known point of a study that is accurate to `max_error`: of its final if there was one,
    else its fastest trial; None if there is none."""
    if final := store.final(study, max_error):
        return final.winner.point
    fastest = store.best(study, 1, max_error)
    return fastest[0].point if fastest else None


def _race(target: Target, gemm: Gemm, point: Point, rounds: int) -> dict[str, Any]:
    """One shape: medians, and the ratio of times within rounds with its 95 % interval."""
    timed = target.compare(gemm, [point], rounds)
    (samples,), baseline = timed.samples_us, timed.baseline
    if not samples:
        raise UsageError(f"the kernel for {gemm} gives a wrong result here: {dict(point)}; search again")
    return {
        "shape": str(gemm),
        **common.race(gemm, target.limits, samples, baseline.samples_us),
        "cublas_time_us": baseline.time_us,
        "config": dict(point),
        "cublas_samples_us": baseline.samples_us,
        "marks": timed.marks,
    }


def _table(results: Sequence[dict[str, Any]]) -> str:
    headers = ("shape", "tuned", "cuBLAS", "speedup", "95% interval", "TFLOP/s", "of limit", "config")
    rows = [
        (
            r["shape"],
            console.time_text(r["time_us"]),
            console.time_text(r["cublas_time_us"]),
            console.ratio_text(r["speedup"]),
            common.interval_text(r["speedup_interval"]),
            f"{r['tflops']:.1f}",
            console.ratio_text(r["share_of_limit"], "%"),
            brief(r["config"]),
        )
        for r in results
    ]
    return console.table(headers, rows, right=range(1, 7))

"""`autotune bench`: the best known kernels against cuBLAS, interleaved, with the percentage of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import target_finder as targets
from ..facts.gemm import Gemm
from ..facts.measurement import read_policy
from ..files.errors import UsageError
from ..files.words import counted
from ..store import Store, StudyRef
from ..target import Point, Target
from . import common, console, on_gpus
from .facts_table import facts_table
from .requests import BenchRequest

_COLUMNS = {
    "shape": "shape", "tuned": "time_us", "cuBLAS": "cublas_time_us", "speedup": "speedup",
    "95% interval": "speedup_interval", "TFLOP/s": "tflops", "of limit": "share_of_limit", "config": "config",
}  # fmt: skip


def run(request: BenchRequest, *, is_json: bool) -> None:
    """Time the winner of every tuned shape (or of those named) and cuBLAS in the same rounds."""
    named = common.read_shapes(request.shapes, common.read_calls(request.suites)[0])
    policy = read_policy(request.cache)

    def opening(selector: str) -> Target:
        return targets.open_target(selector, policy, max_error=request.max_error, note=console.note)

    with (
        common.open_existing(request.db) as store,
        on_gpus.opened(request.gpu, opening) as models,
        console.Progress(is_quiet=is_json) as progress,
    ):
        found = [_timed(store, gpus, named, request.rounds, progress) for gpus in models.values()]
    console.answer(
        found[0] if len(found) == 1 else {"gpus": found},
        lambda: "\n".join(map(_text, found)),
        is_json=is_json,
    )


def _timed(
    store: Store, gpus: Sequence[Target], named: Sequence[Gemm], rounds: int, progress: console.Progress
) -> dict[str, Any]:
    """The facts of one model of GPU, each shape timed on whichever of these is free."""
    tuned = winners(store, gpus[0], named)
    numbers = {gemm: number for number, gemm in enumerate(tuned, 1)}

    def race(target: Target, item: tuple[Gemm, Point]) -> dict[str, Any]:
        progress.update(f"timing {item[0]} ({numbers[item[0]]}/{len(tuned)})")
        return _race(target, *item, rounds)

    results = on_gpus.on_any(gpus, list(tuned.items()), race)
    environment = gpus[0].environment
    return {
        **common.measured_on(environment),
        "policy": gpus[0].policy,
        "num_rounds": rounds,
        "shapes": results,
        "measured_on": common.source_text(environment),
    }


def _text(facts: dict[str, Any]) -> str:
    rounds = counted(facts["num_rounds"], "interleaved round")
    head = f"{facts['measured_on']}, {facts['policy']} operands, {rounds}"
    return f"{head}\n{facts_table(facts['shapes'], _COLUMNS)}"


def winners(store: Store, target: Target, named: Sequence[Gemm]) -> dict[Gemm, Point]:
    """The best known point of each tuned shape on GPUs of this model, as accurate as the target asks for.
    Raises UsageError if one has none, StoreError if that is because it is damaged."""
    latest = store.latest_studies(target.environment, target.policy, target.max_error)
    wanted = [study for study in latest if not named or study.gemm in named]
    found = {study.gemm: winner(store, study, target.max_error) for study in wanted}
    tuned = {gemm: point for gemm, point in found.items() if point is not None}
    missing = [gemm for gemm in named if gemm not in tuned]
    if missing or not tuned:
        store.bad_rows.refuse()
        what = ", ".join(map(str, missing)) or "any shape"
        where, of_any_error = common.source_text(target.environment), (target.environment, target.policy)
        if any(study.gemm in (missing or [study.gemm]) for study in store.latest_studies(*of_any_error)):
            where += f", within --max-error {target.max_error:g}"
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
        reason = timed.failures[0].reason if timed.failures else "it gives a wrong result here"
        raise UsageError(f"the kernel for {gemm}: {reason}: {dict(point)}; search again")
    return {
        "shape": str(gemm),
        **common.race(gemm, target.limits, samples, baseline.samples_us),
        "cublas_time_us": baseline.time_us,
        "config": dict(point),
        "cublas_samples_us": baseline.samples_us,
        "marks": timed.marks,
    }

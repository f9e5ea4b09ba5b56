"""`autotune ladder`: the classic steps of an SGEMM beside the tuned kernel and cuBLAS, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from .. import target_finder as targets
from ..facts.gemm import Gemm
from ..facts.measurement import POLICY_VERSION, read_policy
from ..files.errors import TrialFailure, UsageError
from ..files.words import counted
from ..gpu.gpu_target import GpuTarget
from ..gpu.protocol import KernelCode, Problem, RaceResult
from ..kernel import template
from ..kernel.config import Config
from ..kernel.rungs import REFERENCE_FILE, ReferenceKernel, Step, steps
from ..store import exists, shown
from . import common, console
from .bench import winner
from .facts_table import facts_table
from .requests import LadderRequest

TUNED, CUBLAS = "tuned", "cuBLAS"
SLOWEST_OVER_LIMIT = 500.0  # the naive kernel takes about a hundred times the roofline
_COLUMNS = {
    "step": "name", "time": "time_us", "GFLOP/s": "gflops", "of limit": "share_of_limit",
    "vs cuBLAS": "speedup", "adds": "adds",
}  # fmt: skip


@dataclass(frozen=True)
class Rung:
    """A step made ready: `code` is what runs, or `reason` why it cannot run here."""

    step: Step
    code: KernelCode | None
    reason: str = ""


def run(request: LadderRequest, *, is_json: bool) -> None:
    """Compile every step, time them all interleaved with the best tuned kernel known and cuBLAS."""
    gemm = Gemm.parse(request.shape)
    ladder, policy = steps(gemm), read_policy(request.cache)
    with closing(
        targets.open_gpu(request.gpu, policy, [gemm], request.max_error, note=console.note)
    ) as target:
        wanted = (*ladder, *_tuned(request.db, target, gemm))
        with console.Progress(is_quiet=is_json) as progress:
            progress.update(f"compiling {counted(len(wanted), 'kernel')}")
            rungs = [_rung(target, gemm, step) for step in wanted]
            kernels, rounds = counted(len(rungs), "kernel"), counted(request.rounds, "round")
            progress.update(f"timing {kernels} on {gemm}, {rounds}")
            codes = [rung.code for rung in rungs if rung.code]
            problem = Problem(gemm, target.policy)
            result = target.worker.race(problem, codes, request.rounds, SLOWEST_OVER_LIMIT)
        facts = _facts(target, gemm, request.rounds, rungs, result)
    console.answer(facts, lambda: _table(facts), is_json=is_json)


def _tuned(db: str, target: GpuTarget, gemm: Gemm) -> list[Step]:
    """The best known kernel for this problem as the last rung, or none, with a note how to get one."""
    hint = f"`autotune search --gpu {target.gpu.index} --shape {gemm}` adds the tuned kernel to this ladder"
    if not exists(db):
        console.note(f"No database {shown(db)}: {hint}.")
        return []
    with common.open_existing(db) as store:
        latest = store.latest_studies(target.environment, target.policy, target.max_error)
        points = [winner(store, study, target.max_error) for study in latest if study.gemm == gemm]
        point = points[0] if points else None
        if point is None:
            gpu_name = target.environment.gpu_name
            console.note(f"{shown(db)} holds nothing tuned for {gemm} on {gpu_name}: {hint}.")
            return []
    return [Step(TUNED, "what the search found", Config.from_dict(point))]


def _rung(target: GpuTarget, gemm: Gemm, step: Step) -> Rung:
    try:
        return Rung(step, _build(target, gemm, step.kernel))
    except (UsageError, TrialFailure) as error:
        return Rung(step, None, str(error))


def _build(target: GpuTarget, gemm: Gemm, wanted: ReferenceKernel | Config) -> KernelCode:
    if isinstance(wanted, Config):
        return target.builder.build(gemm, wanted)
    return target.builder.build_source(template.source(REFERENCE_FILE), wanted.entry, wanted.spec)


# ------------------------------------------------------------------------------------- what is told


def _facts(
    target: GpuTarget, gemm: Gemm, rounds: int, rungs: Sequence[Rung], result: RaceResult
) -> dict[str, Any]:
    limit_us = gemm.limit_us(target.limits.fma_tflops, target.limits.bandwidth_gbs)
    left = iter(result.samples_us)
    rows = []
    for rung in rungs:
        samples = next(left) if rung.code else ()
        reason = rung.reason or ("" if samples else "gives a wrong result here")
        row = _row(rung.step.name, rung.step.adds, target, gemm, samples, result.baseline_us)
        wanted = rung.step.kernel
        what = wanted.to_dict() if isinstance(wanted, Config) else wanted.entry
        rows.append({**row, "kernel": what, "reason": reason})
    if result.baseline_us:
        row = _row(CUBLAS, "cublasSgemm", target, gemm, result.baseline_us, result.baseline_us)
        rows.append({**row, "kernel": f"cuBLAS {target.environment.cublas_version}", "reason": ""})
    return {
        "shape": str(gemm),
        "environment": target.environment.to_dict(),
        "source_hash": target.source_hash,
        "policy": target.policy,
        "policy_version": POLICY_VERSION,
        "num_rounds": rounds,
        "limit_us": limit_us,
        "limit_gflops": 1e3 * gemm.tflops(limit_us),
        "state": vars(result.state),
        "steps": rows,
    }


def _row(
    name: str, adds: str, target: GpuTarget, gemm: Gemm, samples: Sequence[float], cublas_us: Sequence[float]
) -> dict[str, Any]:
    """One rung in figures."""
    found = common.race(gemm, target.limits, samples, cublas_us)
    figures = {one: found[one] for one in ("time_us", "share_of_limit", "speedup", "samples_us")}
    return {"name": name, "adds": adds, "gflops": found["tflops"] and 1e3 * found["tflops"], **figures}


def _table(facts: dict[str, Any]) -> str:
    rows = [{**row, "adds": row["reason"] or row["adds"]} for row in facts["steps"]]
    return f"{headline(facts)}\n{facts_table(rows, _COLUMNS)}"


def headline(facts: dict[str, Any]) -> str:
    """What was measured, on what, how."""
    return (
        f"{facts['shape']} on {facts['environment']['gpu_name']}, {facts['policy']} operands, "
        f"{counted(facts['num_rounds'], 'interleaved round')}, limit {facts['limit_gflops']:,.0f} GFLOP/s"
    )

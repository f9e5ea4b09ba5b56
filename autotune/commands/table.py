"""`autotune export-table` and `autotune verify`: making an exported folder, and checking one on a GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from .. import console, gpu
from ..compiler import Compiler
from ..device import DeviceLimits, Environment
from ..dispatch.export import export_table
from ..dispatch.from_store import read_results
from ..dispatch.table import Kernel, Table, load, load_cubins
from ..errors import DispatchError, EnvironmentProblem
from ..gemm import Gemm
from ..gpu.protocol import KernelCode
from ..launch import NARROW_LD, refusal
from ..measurement import CachePolicy, Measurement
from ..store import shown
from . import common, targets

# Beside the shapes that a kernel was tuned for: ragged in every dimension, and smaller than any tile.
ODD_EXTENTS = ((129, 257, 65), (1, 1, 1), (3, 515, 1031))


# ------------------------------------------------------------------------------------------------
# export-table


def export(
    db: str, out: Path, shapes: Sequence[str], suite: Path | None, policy: str, *, is_json: bool
) -> None:
    """Write the winners of the GPU that was measured last."""
    gemms = common.read_shapes(shapes, suite)
    with common.open_existing(db) as store:
        environments = store.environments()
        if not environments:
            raise DispatchError(f"{shown(db)} holds no kernel that ran; run `autotune search` first")
        newest = environments[0]
        limits = _limits(newest)
        results = read_results(store, newest, limits, policy=common.read_policy(policy), gemms=gemms or None)
    with closing(Compiler(limits.arch, note=console.note)) as compiler:
        export_table(results, out, compiler, note=console.note)
    _tell_export(load(out), out, is_json=is_json)
    others = {e.gpu_name for e in environments} - {newest.gpu_name}
    if others:
        names = ", ".join(sorted(others))
        console.note(f"{shown(db)} also holds trials of {names}; the newest were exported")


def _limits(environment: Environment) -> DeviceLimits:
    """Limits of the kind of GPU that was measured: asked of one that is here, else as known by name."""
    known = common.limits_by_name(environment.gpu_name)
    if environment.is_recorded and known is not None:
        return known
    from ..gpu.driver import device_limits

    try:
        here = [g for g in gpu.list_gpus() if g.name == environment.gpu_name]
    except EnvironmentProblem:
        here = []
    if here:
        return device_limits(here[0].index)
    if known is None:
        raise EnvironmentProblem(
            f"the limits of {environment.gpu_name} are not known here; export where it is"
        )
    return known


def _tell_export(table: Table, folder: Path, *, is_json: bool) -> None:
    cubins = {kernel.sha256: (folder / kernel.cubin_file).stat().st_size for kernel in table.kernels}
    tuned = {ranked.kernel for entry in table.entries for ranked in entry.ranked}
    facts: dict[str, Any] = {
        "folder": str(folder),
        "gpu": table.environment.gpu_name,
        "is_recorded": table.is_recorded,
        "recorded_on": table.recorded_on or None,
        "num_kernels": len(table.kernels),
        "num_general": sum(kernel.id not in tuned for kernel in table.kernels),
        "num_cubins": len(cubins),
        "cubin_bytes": sum(cubins.values()),
        "shapes": [
            {
                "shape": str(entry.gemm),
                "kernel": entry.ranked[0].kernel,
                "time_us": entry.ranked[0].time_us,
                "cublas_time_us": entry.cublas_us,
                "num_tied": sum(ranked.is_tied for ranked in entry.ranked),
            }
            for entry in table.entries
        ],
    }
    if is_json:
        console.show_json(facts)
        return
    rows = [
        (
            s["shape"],
            console.time_text(s["time_us"]),
            console.ratio_text(common.share(s["cublas_time_us"], s["time_us"])),
            s["kernel"],
        )
        for s in facts["shapes"]
    ]
    num_shapes = console.counted(len(table.entries), "tuned shape", "tuned shapes")
    console.show(
        f"{folder}/: {num_shapes} for {facts['gpu']}, {facts['num_kernels']:,} kernels "
        f"({facts['num_general']:,} of them for all other shapes), {facts['cubin_bytes'] / 1e6:.1f} MB\n"
        + console.table(("shape", "time", "vs cuBLAS", "kernel"), rows, right=(1, 2))
    )
    if table.is_recorded:
        console.show(f"These times were {common.source_text(table.environment)}; none was measured here.")
    else:
        console.show(f"Next: autotune verify {shlex.quote(str(folder))}")


# ------------------------------------------------------------------------------------------------
# verify


def verify(folder: Path, selector: str, *, is_json: bool) -> None:
    """Run every kernel of a folder on its tuned shapes and on odd ones, against float64 and cuBLAS.

    Raises DispatchError if the folder is damaged or for another GPU, or if a kernel fails.
    """
    table = load(folder)
    codes = load_cubins(folder, table)
    with closing(targets.open_gpu(selector, CachePolicy(table.policy))) as target:
        _check_gpu(table, target.gpu)
        with console.Progress(is_quiet=is_json) as progress:
            checks = []
            for kernel, gemm in _cases(table):
                progress.update(f"checking {kernel.id} on {gemm}")
                code = KernelCode(codes[kernel.sha256], kernel.sha256, kernel.spec)
                checks.append((kernel, gemm, target.check(gemm, code)))
    _tell_checks(table, checks, is_json=is_json)
    failed = [(kernel, gemm, found) for kernel, gemm, found in checks if not found.is_ok]
    if failed:
        kernel, gemm, found = failed[0]
        raise DispatchError(
            f"{len(failed)} of {len(checks)} checks failed, first {kernel.id} on {gemm} ({found.outcome}: "
            f"{found.reason}); do not use {folder}, search and export again on this GPU"
        )


def _check_gpu(table: Table, here: gpu.GpuInfo) -> None:
    expected = table.environment
    if (here.name, here.compute_capability) != (expected.gpu_name, expected.compute_capability):
        raise DispatchError(
            f"the table is for {expected.gpu_name}, GPU {here.index} is {here.name}: search on it with "
            f"`autotune search --gpu {here.index}` and export again"
        )


def _cases(table: Table) -> Iterator[tuple[Kernel, Gemm]]:
    """Every kernel with the shapes it is ranked for and the odd ones that it may serve."""
    for kernel in table.kernels:
        tuned = [e.gemm for e in table.entries if kernel.id in {ranked.kernel for ranked in e.ranked}]
        variant = kernel.spec.variant
        odd = [Gemm(*extents, variant.trans_a, variant.trans_b) for extents in ODD_EXTENTS]
        # what the config asks for is met by multiples of its tiles
        fitting = Gemm(
            2 * kernel.spec.bm, 2 * kernel.spec.bn, 4 * kernel.spec.bk, variant.trans_a, variant.trans_b
        )
        for gemm in dict.fromkeys([*tuned, *odd, fitting]):
            if _serves(kernel, gemm):
                yield kernel, gemm


def _serves(kernel: Kernel, gemm: Gemm) -> bool:
    lds = (gemm.lda, gemm.ldb, gemm.ldc)
    return max(lds) < NARROW_LD and refusal(kernel.spec, gemm.m, gemm.n, gemm.k, lds) is None


def _tell_checks(table: Table, checks: Sequence[tuple[Kernel, Gemm, Measurement]], *, is_json: bool) -> None:
    worst: dict[str, Any] = {}
    for kernel, _, found in checks:
        worst[kernel.id] = max(worst.get(kernel.id, 0.0), found.error_ratio or 0.0)
    if is_json:
        cases = [
            {
                "kernel": kernel.id,
                "shape": str(gemm),
                "outcome": found.outcome,
                "reason": found.reason,
                "error_ratio": found.error_ratio,
                "time_us": found.time_us,
            }
            for kernel, gemm, found in checks
        ]
        console.show_json({"gpu": table.environment.gpu_name, "num_kernels": len(worst), "checks": cases})
        return
    rows = [
        (
            kernel.id,
            sum(k.id == kernel.id for k, _, _ in checks),
            sum(k.id == kernel.id and not found.is_ok for k, _, found in checks),
            f"{worst[kernel.id]:.2f}",
        )
        for kernel in table.kernels
        if kernel.id in worst
    ]
    console.show(console.table(("kernel", "checks", "failed", "error / bound"), rows, right=(1, 2, 3)))

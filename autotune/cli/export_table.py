"""`autotune export-table`: the winners of a database as a folder to import."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import gpu
from ..device import DeviceLimits, Environment
from ..errors import DispatchError, EnvironmentProblem
from ..export.exporter import export_table
from ..export.from_store import read_results
from ..kernel.compiler import Compiler
from ..runtime.table import Table, load
from ..store import shown
from . import common, console


def export(
    db: str,
    out: Path,
    shapes: Sequence[str],
    suite: Path | None,
    policy: str,
    max_error: float | None,
    *,
    is_json: bool,
) -> None:
    """Write the winners of the GPU that was measured last; none whose error is more than `max_error` times
    cuBLAS's (None: no limit)."""
    gemms = common.read_shapes(shapes, suite)
    with common.open_existing(db) as store:
        environments = store.environments(max_error)
        if not environments:
            store.damages.refuse()
            raise DispatchError(f"{shown(db)} holds no kernel that ran; run `autotune search` first")
        newest = environments[0]
        limits = _limits(newest)
        results = read_results(
            store,
            newest,
            limits,
            policy=common.read_policy(policy),
            gemms=gemms or None,
            max_error=max_error,
        )
    results = replace(results, power_limit_w=_power_limit_w(results.environment))
    with (
        closing(Compiler(limits.arch, note=console.note)) as compiler,
        console.Progress(is_quiet=is_json) as progress,
    ):
        export_table(
            results,
            out,
            compiler,
            note=console.note,
            on_compiled=lambda done, total: progress.update(f"{done:,} of {total:,} kernels are compiled"),
        )
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


def _power_limit_w(environment: Environment) -> float | None:
    """Of the very GPU that was measured, if it is in this machine."""
    if environment.is_recorded:
        return None
    from ..gpu.nvml import Monitor

    return Monitor(environment.gpu_uuid).power_limit_w()


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

"""`autotune export-table`: the winners of a database as a folder to import."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import tuning
from ..runtime.table import Table
from . import common, console


def export(
    db: str,
    out: Path,
    shapes: Sequence[str],
    suite: Path | None,
    policy: str,
    max_error: float | None,
    max_kernels: int,
    *,
    is_json: bool,
) -> None:
    """Write the winners of the GPU that was measured last; none whose error is more than `max_error` times
    cuBLAS's (None: no limit). Beside them at most `max_kernels` for shapes that were not tuned. A suite names
    the shapes to write; one that counts calls says instead what these kernels are chosen for, too."""
    calls, is_counted = common.read_calls(suite)
    with console.Progress(is_quiet=is_json) as progress:
        table = tuning.export_table(
            out,
            common.read_shapes(shapes, None if is_counted else suite),
            db=db,
            policy=policy,
            max_error=max_error,
            max_kernels=max_kernels,
            calls=calls if is_counted else {},
            note=console.note,
            on_compiled=lambda done, total: progress.update(f"{done:,} of {total:,} kernels are compiled"),
        )
    _tell_export(table, out, is_json=is_json)


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

"""`autotune export-table`: the winners of a database as a folder to import."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import tuning
from ..export.package import names_of
from ..facts.frozen import picked
from ..facts.keywords import ExportKeywords, keywords_of
from ..files.words import counted
from ..kernel.launch import PLAIN, name_of
from ..kernel.resources import workspace_bytes
from ..kernel.where import MIB
from ..runtime.table.gpu_models import load_models
from ..runtime.table.table import HeldOut, Table
from . import common, console
from .facts_table import facts_table
from .requests import ExportRequest

_COLUMNS = {
    "shape": "shape", "time": "time_us", "vs cuBLAS": "speedup", "workspace": "workspace_bytes",
    "kernel": "kernel",
}  # fmt: skip
LONG_S = 10.0  # of compiling: worth a hint at what would shorten it


def run(request: ExportRequest, *, is_json: bool) -> None:
    """Write the winners of the GPU that was measured last, as `tuning.export_table` has it. A suite names the
    shapes to write; one that counts calls says instead what kernels for other shapes are chosen for, and with
    which epilogues they come."""
    calls, is_counted, called, _ = common.read_requested(request.suites)
    with console.Progress(is_quiet=is_json) as progress:
        printer = ExportPrinter(progress, request.max_kernels, is_quiet=is_json)
        table = tuning.export_table(
            request.out,
            common.read_shapes(request.shapes, () if is_counted else calls),
            **picked(request, " ".join(keywords_of(ExportKeywords))),
            calls=calls if is_counted else {},
            called=called,
            with_c=request.form == "c",
            note=console.note,
            on_step=printer.step,
            on_compiled=printer.compiled,
        )
    _tell_export(table, request.out, is_json=is_json)


class ExportPrinter:
    """Tells what an export does, how far the compiler is and, if it takes long, what would shorten it."""

    def __init__(self, progress: console.Progress, max_kernels: int, *, is_quiet: bool) -> None:
        self._progress, self._max_kernels, self._is_quiet = progress, max_kernels, is_quiet
        self._started_s = time.monotonic()

    def step(self, step: str) -> None:
        """Tells what is done next."""
        if not self._is_quiet:
            self._progress.close()
            console.note(step)

    def compiled(self, done: int, total: int) -> None:
        """Tells how many kernels are compiled, how fast, and how long the others take at this rate."""
        if not done:
            self._started_s = time.monotonic()
            return
        took_s = time.monotonic() - self._started_s
        left_s = took_s / done * (total - done)
        if self._max_kernels and left_s > LONG_S:
            most = min(self._max_kernels, total)
            console.note(
                f"{counted(total, 'kernel has', 'kernels have')} to be compiled, up to {most:,} of them for "
                "shapes that were not tuned; --max-kernels 0 leaves these out"
            )
            self._max_kernels = 0  # once
        parts = [f"compiled {done:,} of {counted(total, 'kernel')}"]
        if took_s >= 1:  # what a cache holds has no rate
            parts.append(f"{done / took_s:.1f}/s")
            if done < total:
                parts.append(f"{console.duration(left_s)} left")
        if done == total:
            self._max_kernels = 0  # what follows are variants of the same kernels
        self._progress.update(*parts)


def _tell_export(table: Table, folder: Path, *, is_json: bool) -> None:
    models = load_models(folder)
    own = next(path for path, found in models if found == table)
    others = [found for path, found in models if path != own]
    cubins = {kernel.sha256: kernel.packed_bytes or 0 for kernel in table.kernels}
    plain = [kernel for kernel in table.kernels if kernel.is_plain]
    configs = {kernel.id: kernel.config for kernel in plain}
    tuned = {ranked.kernel for entry in table.entries for ranked in entry.ranked}
    held = {kernel.variant.epilogue for kernel in table.kernels}
    facts: dict[str, Any] = {
        "folder": str(folder),
        "gpu": table.environment.gpu_name,
        "other_gpus": [other.environment.gpu_name for other in others],
        **picked(table, "is_recorded order accuracy"),
        "recorded_on": table.recorded_on or None,
        "max_workspace_mib": None if table.max_workspace is None else table.max_workspace / MIB,
        "num_kernels": len(plain),
        "num_general": sum(kernel.id not in tuned for kernel in plain),
        "epilogues": [name_of(one) for one in table.epilogues],
        "epilogues_of_some": sorted(map(name_of, held - {PLAIN, *table.epilogues})),
        "num_cubins": len(cubins),
        "cubin_bytes": sum(cubins.values()),
        "shapes": [
            {
                "shape": str(entry.gemm),
                "kernel": entry.ranked[0].kernel,
                "time_us": entry.ranked[0].time_us,
                "cublas_time_us": entry.cublas_us,
                "workspace_bytes": workspace_bytes(configs[entry.ranked[0].kernel], entry.gemm, table.limits),
                "num_tied": sum(ranked.is_tied for ranked in entry.ranked),
            }
            for entry in table.entries
        ],
        "left_out": [asdict(figures) for figures in table.left_out],
    }
    if is_json:
        console.show_json(facts)
        return
    rows = [{**s, "speedup": common.share(s["cublas_time_us"], s["time_us"])} for s in facts["shapes"]]
    each = "".join(
        f", {who} also with {', '.join(facts[names])}"
        for who, names in (("each", "epilogues"), ("some", "epilogues_of_some"))
        if facts[names]
    )
    num_shapes = counted(len(table.entries), "tuned shape")
    console.show(
        f"{folder}/: {num_shapes} for {facts['gpu']}, {counted(facts['num_kernels'], 'kernel')} "
        f"({facts['num_general']:,} of them for all other shapes){each}, "
        f"{facts['cubin_bytes'] / 1e6:.1f} MB\n{facts_table(rows, _COLUMNS)}"
    )
    if others:
        console.show(f"{folder}/ also holds the tables for {names_of(others)}")
    console.show(_held_out_text(table.left_out))
    if table.is_recorded:
        console.show(f"These times were {common.source_text(table.environment)}; none was measured here.")
    checked = " --gpu none" if table.is_recorded else ""
    console.show(f"Next: autotune verify {shlex.quote(str(folder))}{checked}")


def _held_out_text(found: Sequence[HeldOut]) -> str:
    """What the table's choice of kernels is worth where nothing was tuned, as far as that is known."""
    if not found:
        return (
            "How well shapes that were not tuned are served is unknown: too few kernels for them, or times "
            "on this GPU model. `autotune search --any 80` adds both."
        )
    speed_table = ("vs cuBLAS", "slower", "served", "slower")
    has_zero = any(not one.portfolio for one in found)
    zero = "; 0: no kernel that is chosen without them serves some of these shapes" * has_zero
    headers = ("left out", "shapes", "portfolio", "pick", "first four", *speed_table)
    return (
        "Shapes that were left out while kernels were chosen and modelled:\n"
        + console.table(headers, [_held_out_row(one) for one in found], right=range(1, len(headers)))
        + "\nportfolio: the best kernel chosen over the best known; pick, first four: over the best chosen; "
        f"served: by cuBLAS where that is picked{zero}"
    )


def _held_out_row(one: HeldOut) -> list[str]:
    shares = [f"{ratio:.3f}" for ratio in (one.portfolio, one.pick, one.first)]
    columns = ["-"] * 4
    if one.cublas is not None:
        by_kernels = (one.cublas.kernels, one.cublas.kernels_slower)
        pairs = (by_kernels, (one.cublas.served, one.cublas.served_slower))
        columns = [text for mean, slower in pairs for text in (console.ratio_text(mean), f"{slower:.1%}")]
    return [one.group, f"{one.num_shapes:,}", *shares, *columns]

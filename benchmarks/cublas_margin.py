"""What tables would have served with another margin against cuBLAS, by shapes that were judged on a GPU.

    python benchmarks/cublas_margin.py studies/results/h200-any-shape-seed15486.json.xz [more ...]
        [--margins 1.2,1.5,1.8] [--tile-apart 3]

A file of any_shape.py says of each shape what the picked kernel was expected to take and took, and what
cuBLAS took. What cuBLAS would be expected to take is learned anew, from the matrices that ship of that kind
of GPU (perf_model/cublas_model.py); with --tile-apart 0 without the tiles of cuBLAS. All files together: over
cuBLAS, geometric mean; the shapes below 0.98 and below 0.93 times cuBLAS, and the least; the share that
kernels serve. The error of the kernels' expected times is taken to be --kernel-error everywhere.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import reports
from table_arena import CUBLAS

from autotune.cli import console
from autotune.facts.device import DeviceLimits, known_limits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import UsageError
from autotune.perf_model.cublas_model import CublasModel, TimedCublas, deviation_scale
from autotune.perf_model.model_figures import TILE_APART
from autotune.target_finder import matrices


class Replayed(NamedTuple):
    """Of one shape, logarithms: how much longer cuBLAS and the kernel took than expected; the expected and
    the real gain of the kernel."""

    cublas_off: float
    kernel_off: float
    expected: float
    real: float
    deviation: float  # of cuBLAS's expected times


def replayed(path: Path, tile_apart: float) -> Iterator[Replayed]:
    report = reports.read(path, "any_shape")
    limits = known_limits(report["gpu"])
    models = models_of(limits, tile_apart)
    for shape in report["shapes"]:
        facts = shape.get("pick", {})
        samples = facts.get("samples_us", {})
        if facts.get("name") not in samples or facts["expected_us"] is None:
            continue
        gemm = Gemm.parse(shape["shape"])
        cublas_us, kernel_us = (float(np.median(samples[x])) for x in (CUBLAS, facts["name"]))
        model = models[gemm.layout]
        expected_us = model.expected_us(gemm, limits)
        yield Replayed(
            math.log(cublas_us / expected_us),
            math.log(kernel_us / facts["expected_us"]),
            math.log(expected_us / facts["expected_us"]),
            math.log(cublas_us / kernel_us),
            model.deviation * float(deviation_scale(min(gemm.m, gemm.n))),
        )


@cache
def models_of(limits: DeviceLimits, tile_apart: float) -> dict[str, CublasModel]:
    """By layout, from the matrices that ship of this GPU model."""
    times_us: dict[str, dict[Gemm, float]] = {layout: {} for layout in LAYOUTS}
    for found in matrices():
        if found.environment.gpu_name == limits.name:
            for gemm, time_us in found.cublas_us.items():
                if time_us is not None:
                    times_us[gemm.layout][gemm] = time_us
    if not all(times_us.values()):
        raise UsageError(f"no matrix of a {limits.name} ships")
    return {x: TimedCublas(known, limits, tile_apart).model() for x, known in times_us.items()}


def row_of(margin: float, found: list[Replayed], kernel_error: float) -> list[str]:
    served = [one.expected > margin * math.hypot(one.deviation, kernel_error) for one in found]
    logs = np.array([one.real if by_kernel else 0.0 for one, by_kernel in zip(found, served, strict=True)])
    slower = [int((logs < math.log(ratio)).sum()) for ratio in (0.98, 0.93)]
    share = f"{100 * np.mean(served):.0f} %"
    return [
        f"{margin:g}", f"{math.exp(logs.mean()):.3f}", *map(str, slower), f"{math.exp(logs.min()):.3f}", share
    ]  # fmt: skip


def _run(args: argparse.Namespace) -> None:
    found: list[Replayed] = [one for path in args.files for one in replayed(path, args.tile_apart)]
    if not found:
        raise UsageError("none of these shapes was judged against cuBLAS")
    off: dict[str, Any] = {
        name: np.sqrt(np.mean(np.square([getattr(one, name) for one in found])))
        for name in ("cublas_off", "kernel_off")
    }
    console.show(
        f"{len(found)} shapes; expected times are off by {off['cublas_off']:.3f} (cuBLAS) and"
        f" {off['kernel_off']:.3f} (kernels), root of the mean square of the logarithm"
    )
    margins = [float(margin) for margin in args.margins.split(",")]
    header = ["margin", "served", "below 0.98", "below 0.93", "least", "by kernels"]
    console.show(
        "\n".join(reports.table(header, [row_of(margin, found, args.kernel_error) for margin in margins]))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--margins", default="0,0.7,1,1.2,1.4,1.6,1.8,2")
    parser.add_argument("--tile-apart", type=float, default=TILE_APART)
    parser.add_argument("--kernel-error", type=float, default=0.1)
    reports.run(_run, parser.parse_args())


if __name__ == "__main__":
    main()

"""What routing serves with its share of the margin of `sgemm`, on drawn shapes that nothing was fitted to:
times that benchmarks/any_shape.py measured, of the kernel that the table picked and of cuBLAS in the same
rounds."""

from __future__ import annotations

import json
import lzma
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.facts.gemm import Gemm
from autotune.perf_model import residual
from autotune.perf_model.cublas_model import CublasModel
from autotune.runtime.choose.chooser import Pick
from autotune.runtime.torch.routed_engine import RoutedEngine

SEEDS = {"h100": (58237, 73519, 38291), "h200": (58237, 70921, 48611)}  # of the last tables
RESULTS = Path(__file__).parents[2] / "studies" / "results"
CUBLAS = CublasModel(residual.none(1), 0.0, 0.15)  # as surely as tables of these GPUs know it
KERNEL_ERROR = 0.06


def served_anyway(path: Path) -> Iterator[float]:
    """cuBLAS's time over the kernel's, for each shape that only routing serves."""
    engine = SimpleNamespace(
        table=SimpleNamespace(order=None, limits=SimpleNamespace(bandwidth_gbs=4000.0)),
        _has_bias=False,
    )
    for shape in json.loads(lzma.decompress(path.read_bytes()))["shapes"]:
        known, gemm = shape["pick"], Gemm.parse(shape["shape"])
        if known["how"] != "modelled":
            continue
        name, times, expected_us = known["name"], known["samples_us"], known["expected_us"]
        margin = CUBLAS.margin(gemm, KERNEL_ERROR)
        if known["cublas_us"] >= expected_us * math.exp(margin):
            continue  # `sgemm` does, too
        pick = Pick(name, "modelled", str, 1, expected_us, None, "cublas", known["cublas_us"], margin=margin)
        if not RoutedEngine.why_not(engine, gemm, pick):
            yield statistics.median(times["cublas"]) / statistics.median(times[name])


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_what_only_routing_serves_is_faster(gpu: str) -> None:
    paths = [RESULTS / f"{gpu}-any-shape-seed{seed}.json.xz" for seed in SEEDS[gpu]]
    ratios = [ratio for path in paths for ratio in served_anyway(path)]
    assert len(ratios) >= 100 and statistics.geometric_mean(ratios) > 1.1
    assert sum(ratio < 0.98 for ratio in ratios) < 0.18 * len(ratios)
    assert sum(ratio < 0.9 for ratio in ratios) < 0.05 * len(ratios)

"""What routing serves without the margin of `sgemm`, on drawn shapes that nothing was fitted to: times that
benchmarks/any_shape.py measured, of the kernel that the table picked and of cuBLAS in the same rounds."""

from __future__ import annotations

import json
import lzma
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.facts.gemm import Gemm
from autotune.runtime.choose.chooser import Pick
from autotune.runtime.torch.routed_engine import RoutedEngine

SEEDS = {"h100": (58237, 73519, 38291), "h200": (58237, 70921, 48611)}  # of the last tables
RESULTS = Path(__file__).parents[2] / "studies" / "results"


def served_anyway(path: Path) -> Iterator[float]:
    """cuBLAS's time over the kernel's, for each shape that only routing serves."""
    engine = SimpleNamespace(
        table=SimpleNamespace(order=None, limits=SimpleNamespace(bandwidth_gbs=4000.0)),
        _has_bias=False,
    )
    for shape in json.loads(lzma.decompress(path.read_bytes()))["shapes"]:
        known = shape["pick"]
        if known["how"] != "modelled" or known["provider"] != "cublas":
            continue
        name, times = known["name"], known["samples_us"]
        pick = Pick(name, "modelled", str, 1, known["expected_us"], None, "cublas", known["cublas_us"])
        if not RoutedEngine.why_not(engine, Gemm.parse(shape["shape"]), pick):
            yield statistics.median(times["cublas"]) / statistics.median(times[name])


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_what_is_served_without_a_margin_is_faster(gpu: str) -> None:
    """Of all 3,800 drawn shapes 865 are served: 1.19 times as fast, and 7 % below 0.98."""
    paths = [RESULTS / f"{gpu}-any-shape-seed{seed}.json.xz" for seed in SEEDS[gpu]]
    ratios = [ratio for path in paths for ratio in served_anyway(path)]
    assert len(ratios) > 120 and statistics.geometric_mean(ratios) > 1.15
    assert sum(ratio < 0.98 for ratio in ratios) < 0.08 * len(ratios)
    assert sum(ratio < 0.9 for ratio in ratios) < 0.02 * len(ratios)

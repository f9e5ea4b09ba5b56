"""How well predictions of `autotune estimate` agree with measurements of shapes that the matrices lack.

    python benchmarks/shipped_accuracy.py

Reads studies/results: shapes that were tuned by several searches (vs_itself.py), and shapes that tables
served untuned (any_shape.py, whose own tables the prediction does not know). No GPU is needed.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.shipped.expected_times import Predicted, ShippedFigures


class Measured(NamedTuple):
    """Times of one shape in us, and what was predicted."""

    cublas_us: float
    served_us: float
    predicted: Predicted


def results(benchmark: str, gpu: str) -> Iterator[dict[str, Any]]:
    """The shapes of all results of a benchmark on a GPU model."""
    for path in sorted((targets.studies_dir() / "results").glob("*.json.xz")):
        found = json.loads(lzma.decompress(path.read_bytes()))
        if not isinstance(found, dict) or found.get("benchmark") != benchmark:
            continue
        if gpu in (found.get("gpu"), found.get("environment", {}).get("gpu_name")):
            yield from (shape for shape in found["shapes"] if {"pick", "searches"} & shape.keys())


def tuned(shape: dict[str, Any]) -> tuple[float, float]:
    return shape["cublas"]["time_us"], min(median(one["samples_us"]) for one in shape["searches"].values())


def untuned(shape: dict[str, Any]) -> tuple[float, float]:
    samples, pick = shape["pick"]["samples_us"], shape["pick"]
    cublas_us = median(samples["cublas"])
    return cublas_us, cublas_us if pick["provider"] == "cublas" else median(samples[pick["name"]])


def measured(benchmark: str, figures: ShippedFigures, known: set[Gemm]) -> list[Measured]:
    """Each shape once, packed, of those that the matrices do not hold."""
    found: dict[Gemm, Measured] = {}
    for shape in results(benchmark, figures.limits.name):
        gemm = Gemm.parse(shape["shape"])
        is_packed = tuple(shape.get("lds", gemm.lds)) == gemm.lds
        if gemm not in known and is_packed and not gemm.is_batched:
            times = untuned(shape) if benchmark == "any_shape" else tuned(shape)
            found[gemm] = Measured(*times, figures.predict(gemm))
    return list(found.values())


def spread(ratios: list[float]) -> str:
    low, high = np.quantile(ratios, (0.1, 0.9))
    return f"{geometric_mean(ratios):.2f} (80% within {low:.2f} ... {high:.2f})"


def main() -> None:
    matrices = targets.matrices()
    known = {gemm for matrix in matrices for gemm in matrix.columns}
    for figures in ShippedFigures.of_models(matrices):
        for benchmark, name in (("vs_itself", "tuned_us"), ("any_shape", "untuned_us")):
            found = measured(benchmark, figures, known)
            gains = [(one.cublas_us / one.served_us) for one in found]
            predicted = [one.predicted.cublas_us / getattr(one.predicted, name) for one in found]
            text = (
                f"{figures.limits.name}, {len(found)} shapes {'tuned' if name == 'tuned_us' else 'untuned'}"
            )
            print(f"{text}: gain {geometric_mean(gains):.2f}, predicted {geometric_mean(predicted):.2f}")
            cublas = [one.predicted.cublas_us / one.cublas_us for one in found]
            own = [getattr(one.predicted, name) / one.served_us for one in found]
            print(f"  predicted over measured: cuBLAS {spread(cublas)}, {name[:-3]} {spread(own)}")


if __name__ == "__main__":
    main()

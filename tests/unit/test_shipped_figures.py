"""What ships predicts times of shapes that it does not hold, and says of which GPU models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.shipped.expected_times import ShippedFigures


@pytest.fixture(scope="module")
def matrices() -> list[Any]:
    return targets.matrices()


@pytest.fixture(scope="module")
def h100(matrices: list[Any]) -> ShippedFigures:
    return next(one for one in ShippedFigures.of_models(matrices) if "H100" in one.limits.name)


def test_kinds_of_gpu_with_times_of_every_layout_are_predicted_for(matrices: list[Any]) -> None:
    names = [one.limits.name for one in ShippedFigures.of_models(matrices)]
    assert len(names) == 2 and any("H100" in name for name in names) and "NVIDIA H200" in names
    assert len(ShippedFigures.of_models([one for one in matrices if _layout(one).lower() != "nt"])) == 0


def _layout(matrix: Any) -> str:
    return str(next(iter(matrix.columns)).layout)


@pytest.mark.parametrize("shape", ["8x3072x768:NT", "3072x768x8192:NT"])
def test_times_lie_above_the_limit_and_a_table_never_loses(h100: ShippedFigures, shape: str) -> None:
    gemm = Gemm.parse(shape)
    found = h100.predict(gemm)
    limit_us = gemm.limit_us(h100.limits.fma_tflops, h100.limits.bandwidth_gbs)
    assert limit_us < found.tuned_us <= found.untuned_us <= found.cublas_us
    assert found.untuned_us in (found.kernel_us, found.cublas_us)


def test_a_batch_takes_as_long_as_one_product_of_its_rows_and_untuned_cublas_serves_it(
    h100: ShippedFigures,
) -> None:
    batch = Gemm(64, 512, 512, trans_b=True, batch=12)
    found, single = h100.predict(batch), h100.predict(replace(batch, m=64, n=512 * 12, batch=1))
    assert (found.cublas_us, found.kernel_us) == (single.cublas_us, single.kernel_us)
    assert found.untuned_us == found.cublas_us
    longest = h100.predict(replace(batch, batch=2**31 - 1))  # more rows than a product may have
    assert longest.untuned_us == longest.cublas_us > found.cublas_us

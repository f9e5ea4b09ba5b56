"""How long cuBLAS is expected to take on a shape or a strided batch: the least that the hardware allows,
times a learned factor.

cuBLAS chooses its kernel by its own rules, so its times jump from shape to shape. But timing cuBLAS needs no
compile: a Gaussian process learns the factor from a thousand shapes (residual.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from . import residual
from .model_figures import (
    BATCH_ERROR,
    BATCH_STEP_US,
    CUBLAS_FIXED_US,
    CUBLAS_MOST,
    DEVIATION_POWER,
    DEVIATION_SIDE,
    MARGIN,
    OTHER_VERSION,
    TILE,
    TILE_APART,
    VECTOR_APART,
    Floats,
)
from .residual import Residuals

NUM_TIMED = 2400  # shapes of all layouts: they predict times within 0.16, half of them within 0.18 (0061)
NUM_BATCHES = 1600  # strided batches of all layouts (0120)


class CublasModel(NamedTuple):
    """Of one layout, for single products or for batches. `level`: the mean by which the logarithms of times
    exceed those of the limits.
    `deviation`: that of the logarithm of one expected time, measured on shapes left out one by one, for a
    shorter side of DEVIATION_SIDE.
    `tile_apart`: the TILE_APART that it was learned with."""

    missed: Residuals
    level: float
    deviation: float
    tile_apart: float = TILE_APART

    def expected_us(self, gemm: Gemm, limits: DeviceLimits) -> float:
        """Of one product or batch of this layout."""
        at = place(gemm.m, gemm.n, gemm.k, self.tile_apart, gemm.batch)
        factor = residual.factors(self.missed, at)[0]
        return _scale_us(gemm, limits) * math.exp(self.level) * float(factor)

    def margin(self, gemm: Gemm, relative_error: float, *, is_other_version: bool = False) -> float:
        """Logarithm of the factor by which a kernel must be expected to be faster than cuBLAS to serve a
        shape: a kernel with this `relative_error` of expected times, against the timed version of cuBLAS or
        another."""
        deviation = self.deviation * float(deviation_scale(min(gemm.m, gemm.n)))
        others = BATCH_ERROR * gemm.is_batched, OTHER_VERSION * is_other_version
        return MARGIN * math.hypot(deviation, relative_error, *others)


def place(m: Any, n: Any, k: Any, tile_apart: float = TILE_APART, products: Any = 1) -> Floats:
    """(..., 6) places of shapes: logarithms to base 2 of m, n and k, with products of a vector farther away;
    how empty tiles along m and n are; and the logarithm of the products of a batch."""
    places = residual.place(np.minimum(m, CUBLAS_MOST), np.minimum(n, CUBLAS_MOST), k)
    places[..., :2] -= VECTOR_APART * (places[..., :2] == 0)
    sides = np.maximum(np.array((m, n), float).T, 1)
    empty = np.log2(np.ceil(sides / TILE) * TILE / sides)
    in_batch = np.log2(np.broadcast_to(products, np.shape(m)).astype(float))[..., None]
    return np.concatenate([places, tile_apart * np.minimum(empty, 1), in_batch], axis=-1)


def deviation_scale(side: Any) -> Any:
    """By how much less surely than those of a shorter side of DEVIATION_SIDE times of these are known."""
    return (np.maximum(side, 1) / DEVIATION_SIDE) ** -DEVIATION_POWER


def least_us(gemm: Gemm, limits: DeviceLimits) -> float:
    """The least time of a product: the hardware's limit and a launch."""
    return CUBLAS_FIXED_US + gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)


def _scale_us(gemm: Gemm, limits: DeviceLimits) -> float:
    """What is learned is the factor over it. In a batch cuBLAS splits no k, but of vectors."""
    if not gemm.is_batched or min(gemm.m, gemm.n) <= 1:
        return least_us(gemm, limits)
    limit_us = gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    return CUBLAS_FIXED_US + math.hypot(limit_us, BATCH_STEP_US * gemm.k)


class TimedCublas:
    """Times of cuBLAS on shapes of one layout, or on batches. The costly part of learning is done once for
    all subsets."""

    def __init__(
        self, times_us: Mapping[Gemm, float], limits: DeviceLimits, tile_apart: float = TILE_APART
    ) -> None:
        """At least two times."""
        self._gemms, self._tile_apart = list(times_us), tile_apart
        m, n, k, products = np.array([(gemm.m, gemm.n, gemm.k, gemm.batch) for gemm in times_us]).T
        self._scales = deviation_scale(np.minimum(m, n))
        self._places = place(m, n, k, tile_apart, products)
        self._logs = np.log([time_us / _scale_us(gemm, limits) for gemm, time_us in times_us.items()])
        self._precision = residual.precision(self._places)

    def model(self, apart: Collection[Gemm] = ()) -> CublasModel:
        """The model learned without these shapes. At least two must remain."""
        is_apart = np.array([gemm in apart for gemm in self._gemms])
        logs = self._logs[~is_apart]
        level = float(logs.mean())
        inverse = residual.without(self._precision, is_apart)
        weights, missed = residual.learned_and_missed(inverse, logs - level)
        residuals = Residuals(self._places[~is_apart], weights[None])
        deviation = float(np.sqrt(np.square(missed / self._scales[~is_apart]).mean()))
        return CublasModel(residuals, level, deviation, self._tile_apart)


def learn(times_us: Mapping[Gemm, float], limits: DeviceLimits) -> CublasModel:
    """From at least two times on shapes of one layout."""
    return TimedCublas(times_us, limits).model()

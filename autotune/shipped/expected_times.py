"""What the shipped matrices predict for shapes on a GPU model that they were measured on: cuBLAS, kernels.

For who has no GPU, no search and no table yet. A batch is predicted as one product of as many tiles; no table
serves it untuned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..export.figures import error_of
from ..export.portfolio import Costs, TimedCandidates, candidates
from ..facts.device import DeviceLimits
from ..facts.gemm import LAYOUTS, Gemm
from ..files.words import counted
from ..perf_model import cublas_model
from ..recording.matrix import TimeMatrix
from .starting_points import as_single


class Predicted(NamedTuple):
    """Times of one call in us: of cuBLAS, of the best kernel that ships, and as a table serves the shape
    untuned, where cuBLAS keeps what no kernel is clearly faster on."""

    cublas_us: float
    kernel_us: float
    untuned_us: float

    @property
    def tuned_us(self) -> float:
        """At least as fast as a search makes it: it begins with the best kernel that ships."""
        return min(self.cublas_us, self.kernel_us)


class Expectation(NamedTuple):
    """What a shape takes on a GPU model, in us: the best kernel that ships, and cuBLAS where it was timed.
    Kernels of `matrices` tell: of this model, or, where nothing was measured on it, of others, carried over
    by a model."""

    kernel_us: float
    cublas_us: float | None
    matrices: tuple[TimeMatrix, ...]

    @property
    def is_measured(self) -> bool:
        return self.cublas_us is not None

    @property
    def sources(self) -> dict[str, str]:
        """Where that is known from: when and under what, by the name of the GPU."""
        found = {}
        for one in self.matrices:
            here, day = one.environment, one.facts.get("measured_on", "an unknown day")
            shapes = f"{counted(len(one.columns), 'shape')} of {next(iter(one.columns)).layout}"
            versions = f"driver {here.driver_version}, cuBLAS {here.cublas_version or 'absent'}"
            found[here.gpu_name] = f"{shapes}, {day}, {versions}"
        return found


def expected_on(matrices: Sequence[TimeMatrix], limits: DeviceLimits, gemm: Gemm) -> Expectation | None:
    """Of a product, or a batch, with m, n and k of at least 1; None if no kernel that ships serves it here.
    Takes some seconds."""
    single = as_single(gemm)
    own = [one for one in matrices if one.limits.name == limits.name]
    tables = tuple(one for one in own or matrices if any(g.layout == single.layout for g in one.columns))
    if own and tables:
        kernel_us, cublas_us = ShippedFigures(matrices, limits).predict(gemm)[1::-1]
        return Expectation(kernel_us, cublas_us, tables)
    kernels = candidates(single.layout, (), matrices, limits)
    if not kernels:
        return None
    costs_us = Costs(TimedCandidates.of(single.layout, kernels, limits)).on(single)
    return Expectation(float(costs_us.min()), None, tables)


class _OfLayout:
    """The models of one layout."""

    def __init__(self, layout: str, matrices: Sequence[TimeMatrix], limits: DeviceLimits) -> None:
        kernels = candidates(layout, (), matrices, limits)
        self._limits, self._costs = limits, Costs(TimedCandidates.of(layout, kernels, limits))
        figures = self._costs.figures
        self._errors = [error_of(one, own.samples) for one, own in zip(figures, kernels, strict=True)]
        times_us = {
            gemm: time_us
            for matrix in matrices
            if matrix.limits.name == limits.name
            for gemm, time_us in matrix.cublas_us.items()
            if gemm.layout == layout and time_us is not None
        }
        self._cublas = cublas_model.learn(times_us, limits)

    def predict(self, gemm: Gemm) -> Predicted:
        costs_us = self._costs.on(gemm)
        best = int(np.argmin(costs_us))
        kernel_us, cublas_us = float(costs_us[best]), self._cublas.expected_us(gemm, self._limits)
        is_served = kernel_us * math.exp(self._cublas.margin(gemm, self._errors[best])) <= cublas_us
        return Predicted(cublas_us, kernel_us, kernel_us if is_served else cublas_us)


class ShippedFigures:
    """Predicts for one GPU model, of those that `of_models` names. A layout is learned at its first use,
    which takes about a second."""

    def __init__(self, matrices: Sequence[TimeMatrix], limits: DeviceLimits) -> None:
        self.limits, self._matrices = limits, matrices
        self._layouts: dict[str, _OfLayout] = {}

    @classmethod
    def of_models(cls, matrices: Sequence[TimeMatrix]) -> list[ShippedFigures]:
        """One for each GPU model with times of cuBLAS in every layout."""
        timed: dict[str, set[str]] = {}
        for matrix in matrices:
            timed.setdefault(matrix.limits.name, set()).update(gemm.layout for gemm in matrix.columns)
        limits = {matrix.limits.name: matrix.limits for matrix in matrices}
        return [cls(matrices, limits[name]) for name, found in timed.items() if found == {*LAYOUTS}]

    def predict(self, gemm: Gemm) -> Predicted:
        """Of a product, or a batch, with m and n of at least 1."""
        single = as_single(gemm)
        if single.layout not in self._layouts:
            self._layouts[single.layout] = _OfLayout(single.layout, self._matrices, self.limits)
        found = self._layouts[single.layout].predict(single)
        return found._replace(untuned_us=found.cublas_us) if gemm.is_batched else found

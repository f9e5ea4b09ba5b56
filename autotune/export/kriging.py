"""Times of kernels on a tuned shape that never timed them, from the times of their relatives there.

A search times some hundreds of configs on each shape, hardly any of them on another. What a table wants to
know of each of its kernels, its time on every tuned shape, follows from those nearest to it: a Gaussian
process per shape over the configs, with the figures of thumb (models/fit.guess) as its mean, so that far
from all that was timed it says what would be said without any time, and how little that is worth.
Source: C. E. Rasmussen, C. Williams, Gaussian Processes for Machine Learning (2006), 2.2 and 2.7.

A fifth of 37,000 trials on an H200 left out, their times are met within 5.4 % in the median, those of
configs within 1.6 of the best within 3.8 %, and half of all within 0.6 of the deviations stated (of a normal
distribution: 0.67; some are far off).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..device import DeviceLimits
from ..gemm import Gemm
from ..kernel.config import PARAMETERS, Config
from ..kernel.resources import blocks_per_sm, launch_spec, register_cap, register_estimate
from ..models.fit import guess
from ..models.launches import Launches, Shapes, grids
from ..models.time_model import Speeds, modelled_us, work

# Of the logarithm of a time over its mean. The length is in features: doublings of a parameter, mostly.
_LENGTH = 5.0
_DEVIATION = 0.3
_NOISE = 0.02  # of one trial
_MORE_REGISTERS = 24  # beyond the estimate, which is a lower bound: cubins of trials are not kept

# How far apart neighbouring values of a parameter are, where that is not one doubling.
_SCALES = {"flush_k": 0.1, "pad": 0.5, "pack_a": 2.0, "pack_b": 2.0, "reduction": 1.5, "edges": 0.5,
           "raster": 0.4, "order": 0.3}  # fmt: skip
_Z = math.sqrt(3)


class Kriging:
    """Times on one shape."""

    def __init__(self, gemm: Gemm, times: Mapping[Config, float], limits: DeviceLimits) -> None:
        """`times` in us, of at least one config."""
        self._gemm, self._limits = gemm, limits
        configs = list(times)
        self._features = _features(configs)
        noise = _NOISE**2 * np.eye(len(configs))
        chol = np.linalg.cholesky(_covariance(self._features, self._features) + noise)
        self._half = np.linalg.inv(chol)  # of the inverse covariance
        residuals = np.log([times[config] for config in configs]) - self._means(configs)
        self._offset = float(np.median(residuals))
        self._weights = self._half.T @ (self._half @ (residuals - self._offset))

    def times(self, configs: Sequence[Config]) -> list[tuple[float, float]]:
        """For each config its expected time in us and the relative deviation of that."""
        across = _covariance(_features(configs), self._features)  # (configs, timed)
        logs = self._means(configs) + self._offset + across @ self._weights
        explained = np.square(self._half @ across.T).sum(axis=0)
        deviations = np.sqrt(np.maximum(_DEVIATION**2 - explained, 0.0) + _NOISE**2)
        return list(zip(map(float, np.exp(logs)), map(float, deviations), strict=True))

    def _means(self, configs: Sequence[Config]) -> np.ndarray:
        specs = [launch_spec(config, self._gemm, self._limits) for config in configs]
        launches = Launches.of(specs, [self._residency(config) for config in configs])
        shape = Shapes.of(self._gemm)
        todo = work(launches, shape, grids(launches, shape), self._limits)
        speeds = Speeds.of([guess(spec, self._limits) for spec in specs])
        means: np.ndarray = np.log(modelled_us(speeds, todo))
        return means

    def _residency(self, config: Config) -> int:
        registers = min(register_cap(config, self._limits), register_estimate(config) + _MORE_REGISTERS)
        return max(1, int(blocks_per_sm(config, self._limits, self._gemm, registers)))


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Matern (3/2); (p, features), (q, features) -> (p, q)."""
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2 * (a @ b.T)
    r = _Z / _LENGTH * np.sqrt(np.maximum(squares, 0.0))
    covariance: np.ndarray = _DEVIATION**2 * (1 + r) * np.exp(-r)
    return covariance


def _features(configs: Sequence[Config]) -> np.ndarray:
    """Numbers by their logarithms, words each on an axis of its own; (configs, features)."""
    columns: list[np.ndarray] = []
    for parameter in PARAMETERS:
        scale = _SCALES.get(parameter.name, 1.0)
        values = [getattr(config, parameter.name) for config in configs]
        if isinstance(parameter.values[0], str):
            columns += [scale * np.array([v == word for v in values], float) for word in parameter.values]
        else:
            shift = 1 if 0 in parameter.values else 0
            columns.append(scale * np.log2(np.array(values, float) + shift))
    return np.stack(columns, axis=1)

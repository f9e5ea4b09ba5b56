"""What each kernel of a layout is expected to take on a shape, in each number of splits that is worth a look.

For the choice of kernels when a table is exported, and for that among them when a program calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..device import DeviceLimits
from . import residual, splits
from .launches import Floats, Launches, Shapes, Whole, grids, serves
from .residual import Residuals
from .time_model import Speeds, modelled_us, work


class Expected(NamedTuple):
    """For each candidate launch its kernel, its number of splits, and its time in us: infinite where it may
    not serve the shape."""

    kernel: Whole
    split_k: Whole
    time_us: Floats


class Forecast:
    """Kernels of one layout on one kind of GPU: how they are launched, and what is known of their speed."""

    def __init__(
        self, launches: Launches, speeds: Speeds, residuals: Residuals, limits: DeviceLimits
    ) -> None:
        self._residuals, self._limits = residuals, limits
        fixed = np.flatnonzero(~launches.is_splitting)
        self._are_free = np.flatnonzero(launches.is_splitting)
        self._owner = np.concatenate([fixed, np.tile(self._are_free, splits.NUM_CHOICES)])
        self._num_kernels, self._num_fixed = len(launches.bm), len(fixed)
        self._free = launches.take(self._are_free)
        self._launches = launches.take(self._owner)
        self._speeds = speeds.take(self._owner)

    def least_us(self, shapes: Shapes) -> Floats:
        """(kernels,) what each takes on one shape in its best number of splits; infinite where it may not
        serve."""
        found = self.expected(shapes)
        least = np.full(self._num_kernels, np.inf)
        np.minimum.at(least, found.kernel, found.time_us)
        return least

    def expected(self, shapes: Shapes, accurate: Any = 1) -> Expected:
        """One shape: extents are plain numbers. `accurate`: from how many splits on the sums of each kernel
        are accurate enough."""
        split_k = self._launches.split_k
        if len(self._are_free):
            split_k = split_k.copy()
            least = np.broadcast_to(accurate, self._num_kernels)[self._are_free]
            found = splits.choices(self._free, shapes, self._limits.num_sms, least)
            split_k[self._num_fixed :] = found.ravel()
        launches = self._launches._replace(split_k=split_k)
        grid = grids(launches, shapes)
        modelled = modelled_us(self._speeds, work(launches, shapes, grid, self._limits))
        missed = residual.factors(self._residuals, shapes.m, shapes.n, shapes.k)[self._owner]
        times_us = np.where(serves(launches, shapes, grid), modelled * missed, np.inf)
        return Expected(self._owner, split_k, times_us)

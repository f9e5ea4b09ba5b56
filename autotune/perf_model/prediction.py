"""The expected time of each kernel of a layout on a shape, with each promising number of splits.

Used to choose kernels when a table is exported, and to pick one when a program calls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from . import residual
from .launches import Access, Flags, Launches, Shapes, Whole, accesses, fits, grids, reads
from .model_figures import Floats
from .residual import Residuals
from .splits import NUM_CHOICES, Splits
from .time_model import Speeds, TimeModel, modelled_us

MAX_CACHED = 256  # combinations of alignment for which the legal kernels are cached


class Expected(NamedTuple):
    """For each candidate launch its kernel, its number of splits, and its time in us: infinite where it may
    not serve the shape."""

    kernel: Whole
    split_k: Floats
    time_us: Floats


class Prediction:
    """Kernels of one layout on one GPU model: how they are launched, and what is known of their speed."""

    def __init__(
        self, launches: Launches, speeds: Speeds, residuals: Residuals, limits: DeviceLimits
    ) -> None:
        free, fixed = np.flatnonzero(launches.is_splitting), np.flatnonzero(~launches.is_splitting)
        self.kernel = np.concatenate([fixed, np.tile(free, NUM_CHOICES)])  # of each candidate launch
        self._launches, self._speeds = launches.take(self.kernel), speeds.take(self.kernel)
        self._model = TimeModel(self._launches, limits)
        self._splits = Splits(launches.take(free), limits.num_sms)
        self._residuals = residuals
        self._free, self._num_fixed, self._num_kernels = free, len(fixed), launches.bm.size
        self._readers: dict[tuple[Access, ...], Flags] = {}

    def least_us(self, shapes: Shapes) -> Floats:
        """(kernels,) the time of each on one shape with its best number of splits; infinite if it may not
        serve."""
        found = self.expected(shapes)
        least = np.full(self._num_kernels, np.inf)
        np.minimum.at(least, found.kernel, found.time_us)
        return least

    def expected(self, shapes: Shapes, accurate: Floats | None = None) -> Expected:
        """One shape: extents are plain numbers. `accurate`: the number of splits from which on the sums of
        each kernel are accurate enough; None: 1."""
        split_k = self._launches.split_k
        if self._free.size:
            split_k = split_k.copy()
            least = 1.0 if accurate is None else accurate[self._free]
            split_k[self._num_fixed :] = self._splits.choices(shapes, least).ravel()
        grid = grids(self._launches, shapes, split_k)
        times_us = modelled_us(self._speeds, self._model.work(shapes, grid))
        times_us *= residual.factors(self._residuals, residual.place(shapes.m, shapes.n, shapes.k))[
            self.kernel
        ]
        times_us[~(self._reads(shapes) & fits(self._launches, shapes, grid))] = np.inf
        return Expected(self.kernel, split_k, times_us)

    def _reads(self, shapes: Shapes) -> Flags:
        """Whether each launch may read and write operands with this access."""
        operands = accesses(shapes)
        found = self._readers.get(operands)
        if found is None:
            if len(self._readers) >= MAX_CACHED:
                self._readers.clear()
            found = self._readers[operands] = reads(self._launches, operands)
        return found

"""The expected time of each kernel of a layout on a shape, with each promising number of splits.

Used to choose kernels when a table is exported, and to pick one when a program calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from . import launch_errors, residual
from .launch_errors import LaunchErrors
from .launches import Access, Flags, Grids, Launches, Shapes, Whole, accesses, ceil_div, fits, grids, reads
from .model_figures import PARTS_OF_LAST, VALUES, Floats
from .time_model import Speeds, TimeModel, modelled_us

MAX_CACHED = 256  # combinations of alignment for which the legal kernels are cached


class Expected(NamedTuple):
    """Of each candidate launch: kernel, number of splits, us; infinite where it may not serve the shape."""

    kernel: Whole
    split_k: Floats
    time_us: Floats


class Prediction:
    """Kernels of one layout on one GPU model: how they are launched, and what is known of their speed."""

    def __init__(
        self, launches: Launches, speeds: Speeds, missed: LaunchErrors, limits: DeviceLimits
    ) -> None:
        free, fixed = np.flatnonzero(launches.is_splitting), np.flatnonzero(~launches.is_splitting)
        self.kernel = np.concatenate([fixed, np.tile(free, NUM_CHOICES)])  # of each candidate launch
        self._launches, self._speeds = launches.take(self.kernel), speeds.take(self.kernel)
        self._model = TimeModel(self._launches, limits)
        self._splits = Splits(launches.take(free), limits.num_sms)
        self._weights, self._level = missed.weights[self.kernel].T.copy(), missed.level
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
        found, grid = self.modelled(shapes, accurate)
        found.time_us[~(self._reads(shapes) & fits(self._launches, shapes, grid))] = np.inf
        return found

    def modelled(self, shapes: Shapes, accurate: Floats | None = None) -> tuple[Expected, Grids]:
        """The same, of launches that may not serve it, too."""
        split_k = self._launches.split_k
        if self._free.size:
            split_k = split_k.copy()
            least = 1.0 if accurate is None else accurate[self._free]
            split_k[self._num_fixed :] = self._splits.choices(shapes, least).ravel()
        grid = grids(self._launches, shapes, split_k)
        todo = self._model.work(shapes, grid)
        times_us = modelled_us(self._speeds, todo)
        level = np.log(residual.factors(self._level, residual.place(shapes.m, shapes.n, shapes.k)))
        times_us *= np.exp((self._weights * launch_errors.terms(self._speeds, todo, level)).sum(axis=0))
        return Expected(self.kernel, split_k, times_us), grid

    def _reads(self, shapes: Shapes) -> Flags:
        """Whether each launch may read and write operands with this access."""
        operands = accesses(shapes)
        found = self._readers.get(operands)
        if found is None:
            if len(self._readers) >= MAX_CACHED:
                self._readers.clear()
            found = self._readers[operands] = reads(self._launches, operands)
        return found


BLOCKS_PER_SM = (1, 2, 4)  # and as many as are resident
NUM_CHOICES = len(BLOCKS_PER_SM) + 2
_BETWEEN = np.sqrt(VALUES[1:] * VALUES[:-1])  # below this, a wish goes to the smaller of two neighbours


class Splits:
    """The promising numbers of splits for launches on a GPU with this number of SMs."""

    def __init__(self, launches: Launches, num_sms: int) -> None:
        self._launches = launches
        resident = launches.blocks_per_sm
        per_sm = np.stack([*(np.minimum(blocks, resident) for blocks in BLOCKS_PER_SM), resident])
        # Blocks that all tiles are split into; of last_wave, blocks that each tile is split into
        self._wanted = per_sm * np.where(launches.is_last_wave, PARTS_OF_LAST, num_sms)
        self._counts_tiles = np.where(launches.is_last_wave, 0.0, 1.0)
        self._are_all_free = bool(launches.is_splitting.all())

    def choices(self, shapes: Shapes, accurate: Any = 1) -> Floats:
        """(NUM_CHOICES, launches) numbers for one shape; equal ones occur. Launches whose number is not an
        argument have their own. If k is too short for two parts, two. `accurate`: the number from which on
        the sums of each launch are accurate enough."""
        launches = self._launches
        tiles = shapes.tiles_m(launches.bm) * ceil_div(shapes.n, launches.bn)
        wanted = self._wanted / np.maximum(tiles * self._counts_tiles, 1.0)
        at = np.empty((NUM_CHOICES, tiles.size), np.int64)
        at[:-1] = _BETWEEN.searchsorted(wanted)
        at[-1] = VALUES.searchsorted(accurate)
        most = VALUES.searchsorted(shapes.k / launches.bk, side="right") - 1
        found = VALUES[np.maximum(np.minimum(at, most), 0)]
        return found if self._are_all_free else np.where(launches.is_splitting, found, launches.split_k)

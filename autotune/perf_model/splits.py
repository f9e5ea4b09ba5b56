"""The candidates for the number of splits of k, where that is an argument: a few numbers that fill the GPU.

Those that give each SM one block, two, four, or all that it holds at a time; or, if only the tiles of the
last wave are split, these numbers of parts. And the number that sums need to be accurate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .launches import Launches, Shapes, ceil_div
from .model_figures import PARTS_OF_LAST, VALUES, Floats

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
        tiles = ceil_div(shapes.m, launches.bm) * ceil_div(shapes.n, launches.bn)
        wanted = self._wanted / np.maximum(tiles * self._counts_tiles, 1.0)
        at = np.empty((NUM_CHOICES, tiles.size), np.int64)
        at[:-1] = _BETWEEN.searchsorted(wanted)
        at[-1] = VALUES.searchsorted(accurate)
        most = VALUES.searchsorted(shapes.k / launches.bk, side="right") - 1
        found = VALUES[np.maximum(np.minimum(at, most), 0)]
        return found if self._are_all_free else np.where(launches.is_splitting, found, launches.split_k)

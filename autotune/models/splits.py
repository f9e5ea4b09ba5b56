"""Into how many parts k is split, where that is an argument: a few numbers that fill the GPU.

As many as give each SM one block, two, four, or all that it holds at a time; or, where only the tiles of the
last wave are split, as many parts each. And as many as sums need to be accurate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernel.config import PARAMETER
from .launches import Launches, Shapes, Whole, ceil_div

BLOCKS_PER_SM = (1, 2, 4)  # and as many as are resident
NUM_CHOICES = len(BLOCKS_PER_SM) + 2
VALUES = np.array([v for v in PARAMETER["split_k"].values if isinstance(v, int) and v > 1])
_BETWEEN = np.sqrt(VALUES[1:] * VALUES[:-1])  # a wish below goes to the smaller of two neighbours


def choices(launches: Launches, shapes: Shapes, num_sms: int, accurate: Any = 1) -> Whole:
    """(NUM_CHOICES, ...) numbers of splits worth a look for each launch; equal ones occur. Those of launches
    whose number is no argument are their own. Where k is too short for two parts, two. `accurate`: from how
    many on the sums of each launch are accurate enough."""
    tiles = ceil_div(shapes.m, launches.bm) * ceil_div(shapes.n, launches.bn)
    resident = launches.blocks_per_sm
    per_sm: Any = np.stack([*(np.minimum(blocks, resident) for blocks in BLOCKS_PER_SM), resident])
    wanted = per_sm * np.where(launches.is_last_wave, 2.0, num_sms / tiles)
    at_least = np.broadcast_to(np.searchsorted(VALUES, accurate), wanted.shape[1:])
    nearest = np.concatenate([np.searchsorted(_BETWEEN, wanted), at_least[None]])
    most = np.searchsorted(VALUES, shapes.k // launches.bk, side="right") - 1
    found = VALUES[np.maximum(np.minimum(nearest, most), 0)]
    return np.where(launches.is_splitting, found, launches.split_k)

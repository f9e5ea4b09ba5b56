"""Rows of a factor in regions that share their leading parameters; of our kernel, tiles, or tiles and depths.

The first parameters decide which values the later ones may have: another tile needs another warp tile, other
vectors, another depth. So a step from one tile to another changes many parameters at once, and changes of one
do not reach it. A move here takes the row of the target region that is most similar to its origin.
"""

from __future__ import annotations

import math

import numpy as np

from ...kernel.feasible_set import Factor


class Regions:
    """About as many regions as one has rows. Rows are the factor's numbers, in the factor's order."""

    def __init__(self, factor: Factor) -> None:
        # A factor of our kernel is sorted, and has a million rows: this avoids a copy.
        self._order = factor.order
        self._inverse = None if self._order is None else np.argsort(self._order)
        self._codes = factor.codes if self._order is None else factor.codes[self._order]
        self._depth, starts = _regions(self._codes, math.sqrt(len(factor)))
        self._bounds = np.concatenate([[0], starts, [len(factor)]])
        self._heads = self._codes[self._bounds[:-1], : self._depth].astype(np.int16)
        self._distances: dict[int, np.ndarray] = {}  # of all regions from one, by their leading parameters

    def __len__(self) -> int:
        return len(self._heads)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The region of each row; (q,) -> (q,)."""
        return np.asarray(np.searchsorted(self._bounds, self._places(rows), side="right") - 1)

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """The places of rows among the sorted ones."""
        return rows if self._inverse is None else self._inverse[rows]

    def _rows(self, places: np.ndarray) -> np.ndarray:
        return places if self._order is None else self._order[places]

    def carried(self, rng: np.random.Generator, row: int, size: int) -> np.ndarray:
        """The most similar row in each of at most this many other regions, some of them similar."""
        home, codes = self._home(row)
        weights = np.append(np.zeros(self._depth, np.float32), _weights(rng, len(codes) - self._depth))
        regions = self._other_regions(rng, home, size)
        starts, nums = self._bounds[regions], np.diff(self._bounds)[regions]
        begins = np.cumsum(nums) - nums
        places = np.arange(nums.sum()) + np.repeat(starts - begins, nums)  # of all rows of all these regions
        off = (self._codes.take(places, axis=0) != codes) @ weights
        nearest = [int(off[begin : begin + num].argmin()) for begin, num in zip(begins, nums, strict=True)]
        return self._rows(starts + np.array(nearest, dtype=np.int64))

    def repaired(self, rng: np.random.Generator, row: int) -> np.ndarray:
        """For every other value of every later parameter in its region, the most similar row that has it."""
        region, codes = self._home(row)
        start, end = self._bounds[region], self._bounds[region + 1]
        off = (self._codes[start:end] != codes) @ _weights(rng, len(codes))
        order = np.argsort(-off, kind="stable")  # the most similar last: the last assignment stays
        first = np.full((len(codes) - self._depth, 256), -1)
        columns = np.arange(len(first))
        first[columns, self._codes[start + order, self._depth :]] = order[:, None]
        first[columns, codes[self._depth :]] = -1
        return np.unique(self._rows(start + first[first >= 0]))

    def _home(self, row: int) -> tuple[int, np.ndarray]:
        """The region of a row, and its codes."""
        rows = np.array([row])
        return int(self.of(rows)[0]), self._codes[self._places(rows)[0]]

    def _other_regions(self, rng: np.random.Generator, home: int, size: int) -> np.ndarray:
        """Other regions: half of them drawn from twice as many whose leading parameters are nearest."""
        if home not in self._distances:  # parents stay for a while
            self._distances[home] = np.abs(self._heads - self._heads[home]).sum(axis=1)
        distances = self._distances[home] + rng.random(len(self))
        nearest = np.argpartition(distances, size - 1)[:size] if size < len(self) else np.arange(len(self))
        similar = rng.permutation(nearest)[: size // 2]
        found = np.unique(np.append(similar, rng.integers(len(self), size=size - size // 2)))
        return np.asarray(found[found != home])


def _regions(codes: np.ndarray, wanted: float) -> tuple[int, np.ndarray]:
    """How many leading columns distinguish this many regions, or all of them, and the rows at which those
    begin, except the first; codes: (rows, columns), sorted."""
    is_start = np.zeros(max(len(codes) - 1, 0), dtype=bool)
    for depth, column in enumerate(codes.T, start=1):
        is_start |= column[1:] != column[:-1]
        if 1 + np.count_nonzero(is_start) >= wanted:
            return depth, 1 + np.flatnonzero(is_start)
    return codes.shape[1], 1 + np.flatnonzero(is_start)


def _weights(rng: np.random.Generator, size: int) -> np.ndarray:
    """The weight of a difference in each parameter: drawn for each move, as none is known."""
    weights: np.ndarray = rng.exponential(size=size).astype(np.float32)
    return weights

"""Candidate points of a feasible set: drawn at random, moved locally, nearest to a wish.

A set may hold 10^9 points in factors of two million rows. Nothing here scans the set, only binary searches
do; the exception is `nearest` in a factor with unsorted rows, which scans them once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby

import numpy as np

from ...kernel.config import Value
from ...kernel.feasible_set import Factor, FeasibleSet
from .origins import CARRIED, FACTOR, REPAIRED
from .regions import Regions
from .traits import Traits

NUM_SAMPLED = 4096  # points drawn at random at a time, where one is not enough
_MOST_TWOS = 6  # more divisions by two count as these: 64 is a multiple of any warp and bank


class Candidates:
    """Numbers of points (FeasibleSet.index), in arrays; codes and features of all parameters."""

    def __init__(self, space: FeasibleSet, traits: Traits | None = None) -> None:
        self._space = space
        self._dims = tuple(len(factor) for factor in space.factors)
        self._largest = max(range(len(self._dims)), key=self._dims.__getitem__, default=0)
        self._strides = [math.prod(self._dims[i + 1 :]) for i in range(len(self._dims))]
        widths = [len(factor.names) for factor in space.factors]
        self._columns = [slice(sum(widths[:i]), sum(widths[: i + 1])) for i in range(len(widths))]
        self._num_values = np.array([len(v) for v in space.values])
        self._tables = [_feature_table(values) for values in space.values]
        self._traits = traits
        self._scaled = None
        if traits is not None and len(space):
            sample = self.random(np.random.default_rng(0), NUM_SAMPLED)
            self._scaled = _scaled(traits, self.codes(sample))

    @property
    def num_features(self) -> int:
        return int(self.features(np.zeros(1, dtype=np.int64)).shape[1])

    def codes(self, numbers: np.ndarray) -> np.ndarray:
        """(q,) -> (q, parameters)."""
        rows = np.unravel_index(numbers, self._dims)
        parts = [factor.codes[row] for factor, row in zip(self._space.factors, rows, strict=True)]
        return np.concatenate(parts, axis=1)

    def features(self, numbers: np.ndarray) -> np.ndarray:
        """What a model sees: values as `_feature_table` has them, and traits where there are some, on about
        0 ... 1; (q, features)."""
        codes = self.codes(numbers)
        parts = [table[codes[:, j]] for j, table in enumerate(self._tables)]
        if self._scaled is not None:
            parts.append(self._scaled(codes))
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(codes), 0))

    def longest_sums(self, numbers: np.ndarray) -> np.ndarray:
        """The largest number of products that a thread adds up one by one; 0 if unknown; (q,)."""
        if self._traits is None:
            return np.zeros(len(numbers))
        return self._traits.longest_sums(self.codes(numbers))

    def find(self, codes: np.ndarray) -> np.ndarray:
        """Numbers of the feasible points among these; (q, parameters) -> (at most q,)."""
        rows = [f.rows_of(codes[:, s]) for f, s in zip(self._space.factors, self._columns, strict=True)]
        is_there = np.all([row >= 0 for row in rows], axis=0)
        found = np.ravel_multi_index([row[is_there] for row in rows], self._dims)
        return self.points_of(np.asarray(found, dtype=np.int64))

    def points_of(self, numbers: np.ndarray) -> np.ndarray:
        """Those of these numbers that are of points."""
        return numbers if self._space.pairs is None else numbers[self._space.are_points(numbers)]

    def random(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Uniform over all numbers, also those of no point, with replacement."""
        rows = [rng.integers(dim, size=size) for dim in self._dims]
        return np.asarray(np.ravel_multi_index(rows, self._dims), dtype=np.int64)

    @cached_property
    def _regions(self) -> Regions:
        return Regions(self._space.factors[self._largest])

    def regions_of(self, numbers: np.ndarray) -> np.ndarray:
        """The region that each point lies in, of our kernel the tile; (q,) -> (q,)."""
        return self._regions.of(np.unravel_index(numbers, self._dims)[self._largest])

    def firsts(self, ranked: np.ndarray) -> np.ndarray:
        """The index of the first point of each region among these, in their order; (q,) -> (regions,)."""
        return np.sort(np.unique(self.regions_of(ranked), return_index=True)[1])

    def moves(self, rng: np.random.Generator, numbers: np.ndarray, size: int) -> dict[str, np.ndarray]:
        """Points, by origin, that differ from one of these in parameters that must change together: one and
        those illegal with it, a whole small factor, or the region, of which `size` are tried."""
        rows = np.unravel_index(numbers, self._dims)[self._largest].tolist()
        found = {
            REPAIRED: self._in_largest(numbers, [self._regions.repaired(rng, row) for row in rows]),
            FACTOR: self._with_small_factors(numbers),
            CARRIED: self._in_largest(numbers, [self._regions.carried(rng, row, size) for row in rows]),
        }
        return {name: np.setdiff1d(points, numbers) for name, points in found.items()}

    def _in_largest(self, numbers: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
        """Each of these points at other rows of the largest factor; (q,) and q times (some,) -> (more,)."""
        repeated = np.repeat(numbers, [len(rows) for rows in others])
        return self._with_rows(repeated, self._largest, _joined(others))

    def _with_rows(self, numbers: np.ndarray, factor: int, others: np.ndarray) -> np.ndarray:
        """These points at other rows of one factor, in the shape to which both broadcast."""
        stride = self._strides[factor]
        rows = numbers // stride % self._dims[factor]
        return np.asarray(numbers + (others - rows) * stride)

    def _with_small_factors(self, numbers: np.ndarray) -> np.ndarray:
        """These points at every row of each small factor: not the largest, and in all no more points than are
        drawn at a time; (q,) -> (more,)."""
        most = NUM_SAMPLED // max(len(numbers), 1)
        small = [i for i, dim in enumerate(self._dims) if i != self._largest and dim <= most]
        moved = (self._with_rows(numbers[:, None], i, np.arange(self._dims[i])).ravel() for i in small)
        return _joined([*moved])

    def neighbours(self, numbers: np.ndarray) -> np.ndarray:
        """All feasible points that differ from one of these in one parameter."""
        changes = [(j, code) for j, n in enumerate(self._num_values) for code in range(n)]
        if not changes or not len(numbers):
            return np.array([], dtype=np.int64)
        columns, values = map(np.array, zip(*changes, strict=True))
        codes = np.repeat(self.codes(numbers), len(changes), axis=0)
        codes[np.arange(len(codes)), np.tile(columns, len(numbers))] = np.tile(values, len(numbers))
        found = self.find(codes)
        return np.setdiff1d(found, numbers)

    def mixtures(self, rng: np.random.Generator, numbers: np.ndarray, size: int) -> np.ndarray:
        """Feasible points that take a few parameters from another point: half of them two or three at
        random, half a run of neighbouring parameters, which belong together, from another point."""
        if not len(numbers):
            return np.array([], dtype=np.int64)
        codes = self.codes(rng.choice(numbers, size=size))
        donors = np.concatenate([self.random(rng, size - size // 2), rng.choice(numbers, size=size // 2)])
        given = self.codes(rng.permutation(donors))
        num = codes.shape[1]
        is_run = rng.random(size) < 0.5
        start, length = rng.integers(num, size=size), rng.integers(2, max(3, num // 2 + 1), size=size)
        offset = (np.arange(num)[None, :] - start[:, None]) % num
        scattered = rng.random((size, num)).argsort(axis=1) < rng.integers(2, 4, size=size)[:, None]
        taken = np.where(is_run[:, None], offset < length[:, None], scattered)
        return np.unique(self.find(np.where(taken, given, codes)))

    def nearest(self, point: Mapping[str, Value], first: Mapping[str, Value] | None = None) -> int:
        """The point that agrees with a wish on as many parameters as it can, those of `first` before all,
        then earlier ones; others may have any value. Raises ValueError for an empty set."""
        return self._space.index([_nearest_row(factor, point, first or {}) for factor in self._space.factors])


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.array([], dtype=np.int64), *parts])


def _scaled(traits: Traits, codes: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Traits on 0 ... 1 over these points, without those that are the same for all; codes (q, parameters)."""
    found = traits(codes)
    low, span = found.min(axis=0), np.ptp(found, axis=0)
    varies = ~np.isclose(span, 0.0)
    return lambda others: (traits(others)[:, varies] - low[varies]) / span[varies]


def _nearest_row(factor: Factor, point: Mapping[str, Value], first: Mapping[str, Value]) -> int:
    if factor.order is None and not first and point.keys() >= set(factor.names):
        return _nearest_sorted(factor, point)
    rows = np.arange(len(factor))
    for wish in first, point:
        for j, name in enumerate(factor.names):
            if name in wish:
                distance = _distances(factor.values[j], wish[name])[factor.codes[rows, j]]
                rows = rows[distance == distance.min()]
    return int(rows.min())


def _nearest_sorted(factor: Factor, point: Mapping[str, Value]) -> int:
    """The same where rows stand in order and a wish is complete, without scanning the rows: those that are
    nearest by the parameters so far are runs of rows."""
    runs = [(0, len(factor))]
    for j, name in enumerate(factor.names):
        away = _distances(factor.values[j], point[name]).__getitem__
        column = factor.codes[:, j]  # not contiguous: numpy would copy it to search it
        nearest_first = groupby(sorted(range(len(factor.values[j])), key=away), away)
        runs = next(found for _, codes in nearest_first if (found := _having(column, [*codes], runs)))
    return runs[0][0]


def _having(column: np.ndarray, codes: list[int], runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of runs of a sorted column that have one of these codes."""
    ends = ((bisect_left(column, c, *run), bisect_right(column, c, *run)) for run in runs for c in codes)
    return [(start, stop) for start, stop in ends if start < stop]


@lru_cache(maxsize=4096)  # few parameters and values: the wishes of all shapes repeat them
def _distances(values: tuple[Value, ...], wanted: Value) -> np.ndarray:
    """The distance of each value from the wanted one: steps between numbers, 0 or 1 between words."""
    if isinstance(wanted, str) or any(isinstance(value, str) for value in values):
        return np.array([float(value != wanted) for value in values])
    numbers = np.array(values, dtype=float)
    between = np.searchsorted(np.sort(numbers), [numbers, np.full(len(numbers), wanted)])
    ties = np.abs(numbers - wanted) / (1e6 * (1 + np.abs(numbers).max()))
    return np.asarray(np.abs(between[0] - between[1]) + ties)


def _feature_table(values: tuple[Value, ...]) -> np.ndarray:
    """Features by code, each on 0 ... 1; (values, features). A parameter of one value has none.

    Sizes count by their ratio, so numbers above 0 stand by their logarithm, others by their rank. If some are
    no powers of two, two features tell how often two divides each, and whether it is such a power: warps,
    vectors and banks go by these (note 0084)."""
    num = len(values)
    if num < 2:
        return np.zeros((num, 0))
    if num > 2 and any(isinstance(value, str) for value in values):
        return np.asarray(np.eye(num) / np.sqrt(2.0))  # any two words are one apart
    numbers = [value for value in values if not isinstance(value, str)]
    if num == 2 or not 0 < min(numbers) <= max(numbers) < 2**63:
        return np.asarray(np.linspace(0.0, 1.0, num)[:, np.newaxis])
    columns = [np.log2(numbers)]
    if all(isinstance(value, int) for value in numbers):
        whole = np.array(numbers, dtype=np.int64)
        twos = whole & -whole  # the largest power of two that divides each
        if (twos < whole).any():
            columns += [np.minimum(np.log2(twos), _MOST_TWOS), (twos == whole).astype(float)]
    table = np.column_stack([column for column in columns if np.ptp(column) > 0])
    return np.asarray((table - table.min(axis=0)) / np.ptp(table, axis=0))

"""benchmarks/any_search.py: what it knows of a matrix is what the matrix holds."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import any_search

from autotune.kernel.relatives import relatives
from autotune.target_finder import matrices


@pytest.fixture(scope="module")
def grid() -> any_search.LayoutTimes:
    return any_search.LayoutTimes.of(matrices()[0])


def test_all_kernels_lose_nothing_and_none_loses_the_most(grid: any_search.LayoutTimes) -> None:
    every = np.arange(len(grid.configs))
    assert (grid.losses(every) == 0).all()
    assert (grid.losses([]) == np.log(any_search.WORST)).all()
    for column in range(0, len(grid.columns), 7):
        fastest = int(np.argmin(grid.times_us[:, column]))
        assert grid.reached([grid.configs[fastest]], [column]) == pytest.approx(1)
        assert grid.times_us[fastest, column] == grid.found.best_us()[grid.columns[column]]


def test_best_kernels_are_a_searchs_own_kernels_best_first(grid: any_search.LayoutTimes) -> None:
    limits, num = grid.found.limits, 0
    for column, gemm in enumerate(grid.columns):
        found = any_search.best_kernels(grid, column)
        rows = [grid.configs.index(config) for config in found]
        times = grid.times_us[rows, column]
        assert (grid.origins[rows] == column).all() and (np.sort(times) == times).all()
        derived = {r for config in found for r in relatives(config, gemm.layout, limits) if r != config}
        assert not derived & set(found)
        num += len(found)
    assert len(grid.configs) / 2 < num <= len(grid.configs)

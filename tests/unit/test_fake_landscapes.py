"""benchmarks/fake_landscapes.py: what a landscape is worth at a point, and what a search of it tells."""

from __future__ import annotations

import sys
from pathlib import Path

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.search_policy import SearchPolicy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fake_landscapes as fake  # after the line that finds it

BY_FEATURE = ([1, -1, -1], [2, -1, -1], [0, -2, -2], [0.5, -2.0, -2.0], [0.0, 1.0, 3.0])
FLAT = ([-1], [-1], [-2], [-2.0], [2.0])
LANDSCAPE = fake.Landscape(Gemm(64, 64, 64), [7, 9], [BY_FEATURE, FLAT])


def test_a_landscape_is_the_mean_of_its_trees() -> None:
    assert LANDSCAPE.log_time([0.5, 9.0]) == 1.5
    assert LANDSCAPE.log_time([0.6, 0.0]) == 2.5


def test_a_search_tells_its_best_after_each_mark_and_is_repeated_by_its_seed() -> None:
    job = fake.FakeSearch(LANDSCAPE, KNOWN["h200"], SearchPolicy(), 3, (1, 40))
    (first, last), ask_ms = fake.search(job)
    assert first in (1.5, 2.5)
    assert last == 1.5
    assert ask_ms > 0
    assert fake.search(job)[0] == [first, last]

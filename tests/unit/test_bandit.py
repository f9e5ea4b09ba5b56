"""Which region has its turn: the promising before the slow, the little known before the well known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.propose.bandit import next_region
from autotune.search_policy import SearchPolicy

RESULTS = st.lists(st.tuples(st.integers(0, 5), st.floats(1.0, 1e6)), min_size=1, max_size=40)


def _next(results, under_way=()):
    regions, times = zip(*results, strict=True)
    return next_region(np.array(regions), np.log(times), SearchPolicy().bandit_hope, under_way)


@given(RESULTS, st.lists(st.integers(0, 7), max_size=30))
def test_a_region_that_was_met_has_the_turn(results, under_way):
    assert _next(results, under_way) in {region for region, _ in results}


@given(RESULTS, st.floats(1e-3, 1e3))
def test_the_unit_of_times_does_not_matter(results, scale):
    times = {time for _, time in results}
    if len(times) > 1 and min(b / a for a in times for b in times if b > a) < 1 + 1e-6:
        return  # as good as equal: rounding decides
    assert _next([(region, time * scale) for region, time in results]) == _next(results)


def test_of_two_as_fast_the_less_tried_one_has_its_turn():
    assert _next([(0, 10.0), (0, 12.0), (1, 10.0)]) == 1
    assert _next([(0, 10.0), (1, 10.0), (1, 11.0)]) == 0


def test_a_slower_tile_has_its_turn_once_the_best_is_well_known_and_then_they_share():
    well_known = [(0, 26.5)] + [(0, 27.0)] * 19
    assert _next([(0, 26.5), (1, 29.0)]) == 0
    assert _next([*well_known, (1, 29.0)]) == 1
    assert _next([*well_known, (1, 36.0)]) == 0
    turns: list[int] = []
    for _ in range(400):
        turns.append(_next([*well_known, (1, 29.0)], turns))
    assert 0 < turns.count(1) < turns.count(0)


def test_one_that_cannot_catch_up_never_has_a_turn():
    assert all(_next([(0, 10.0), (1, 14.0)], [0] * num) == 0 for num in range(200))


def test_points_under_way_count_as_trials():
    """Else the same region would be asked for again and again before the first answer comes in."""
    assert _next([(0, 10.0), (1, 11.0)]) == 0
    assert _next([(0, 10.0), (1, 11.0)], [0] * 9) == 1
    assert _next([(0, 10.0), (1, 11.0)], [0] * 9 + [1] * 9) == 0

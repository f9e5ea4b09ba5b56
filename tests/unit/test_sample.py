"""The configs of a recorded space: the same for the same arguments, none twice, of the parts promised."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest
from fake_target import product_space
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cli.recorder import KIN_SHARE, TRIED_SHARE, Source, sample, whole
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.rules import broken_rules
from autotune.target import point_key

H200 = KNOWN["h200"]
ONE, TWO = Gemm(64, 64, 64), Gemm(32, 32, 32)
SPACE = product_space(6, 6, 4, words=3)


def _all_points(space=SPACE) -> list[dict]:
    return [space.point(number) for number in range(len(space))]


def _even(point) -> list[Gemm]:
    """TWO allows only points whose `a` is 1 or 2."""
    return [ONE, TWO] if point["a"] <= 2 else [ONE]


def _sources(num_tried: int) -> list[Source]:
    points = _all_points()
    return [Source(ONE, SPACE, points[:num_tried]), Source(TWO, SPACE, points[-num_tried or len(points) :])]


@given(st.integers(1, 300), st.integers(0, 60), st.integers(0, 5))
def test_a_sample_is_as_large_as_requested_and_holds_nothing_twice(size, num_tried, seed) -> None:
    points = sample(_sources(num_tried), size, seed, _even)
    keys = [point_key(point) for point in points]
    assert len(set(keys)) == len(keys) == min(size, len(SPACE))
    assert all(SPACE.find(point) is not None for point in points)
    assert points == sample(_sources(num_tried), size, seed, _even)


def test_the_seed_decides() -> None:
    one, other = (sample(_sources(10), 60, seed, _even) for seed in (1, 2))
    assert set(map(point_key, one)) != set(map(point_key, other))


def test_what_was_tried_comes_first_and_the_problems_take_turns() -> None:
    points = sample(_sources(10), 100, 0, _even)
    everything = _all_points()
    assert points[:6] == [p for pair in zip(everything[:3], everything[-10:-7], strict=True) for p in pair]
    assert all(point in points for point in everything[:10] + everything[-10:])


def test_of_too_many_tried_the_fastest_are_kept() -> None:
    points = sample([Source(ONE, SPACE, _all_points())], 50, 0, lambda point: [ONE])
    num_tried = round(TRIED_SHARE * 50)
    assert points[:num_tried] == _all_points()[:num_tried]
    assert points[num_tried : num_tried + 5] != _all_points()[num_tried : num_tried + 5]


def test_relatives_of_the_best_follow() -> None:
    """They differ in one parameter, or mix several: none is as far as random points mostly are."""
    best = SPACE.point(100)
    points = sample([Source(ONE, SPACE, [best])], 60, 0, lambda point: [ONE])
    num_kin = round(KIN_SHARE * 60)
    changed = [sum(point[name] != best[name] for name in best) for point in points[1:]]
    assert changed[:num_kin].count(1) > 0
    assert fmean(changed[:num_kin]) < fmean(changed[num_kin:])


def test_a_problem_that_allows_little_draws_more_but_not_all() -> None:
    only = [SPACE.point(n) for n in range(len(SPACE)) if SPACE.point(n)["a"] <= 2]
    points = sample([Source(ONE, SPACE), Source(TWO, SPACE)], 40, 0, _even)
    assert len(points) == 40
    assert 0 < sum(point in only for point in points) < 40


def test_a_whole_space_is_every_point_of_every_problem() -> None:
    points = whole([Source(ONE, SPACE), Source(TWO, product_space(6, 6, 4, words=4))], 3)
    assert len(points) == len(product_space(6, 6, 4, words=4))
    assert points != whole([Source(ONE, SPACE), Source(TWO, product_space(6, 6, 4, words=4))], 4)


@pytest.fixture(scope="module")
def real() -> list[Source]:
    return [Source(gemm, feasible_set(H200, gemm)) for gemm in (Gemm(512, 512, 512), Gemm(513, 511, 64))]


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 100))
def test_of_our_kernel_every_config_is_legal_for_some_problem(real, seed) -> None:
    def allows(point) -> list[Gemm]:
        config = Config.from_dict(point)
        return [source.gemm for source in real if not broken_rules(config, H200, source.gemm)]

    tried = [Source(s.gemm, s.space, [s.space.point(seed + i) for i in range(8)]) for s in real]
    points = sample(tried, 60, seed, allows)
    assert len(points) == 60
    assert all(allows(point) for point in points)
    legal = Counter(gemm for point in points for gemm in allows(point))
    assert min(legal[source.gemm] for source in real) >= 15  # the ragged one allows no vectors

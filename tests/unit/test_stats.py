"""Statistics against enumeration, simulation and known values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts import stats
from autotune.facts.stats import Patience

times = st.floats(0.01, 1e6)


@given(st.lists(times, min_size=1, max_size=40))
def test_the_interval_of_a_median_holds_it(samples):
    low, high = stats.median_interval(samples)
    assert min(samples) <= low <= stats.median(samples) <= high <= max(samples)


@given(st.lists(times, min_size=1, max_size=40, unique=True))
def test_more_confidence_never_narrows_an_interval(samples):
    narrow, wide = stats.median_interval(samples, 0.5), stats.median_interval(samples, 0.99)
    assert wide[0] <= narrow[0] and narrow[1] <= wide[1]


def test_the_interval_is_the_tabled_one():
    # Binomial(10, 1/2): P(X <= 1) = 0.0107, P(X <= 2) = 0.0547: the second and the ninth of ten.
    assert stats.median_interval(range(1, 11)) == (2, 9)
    assert stats.median_interval([5.0]) == (5.0, 5.0)


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        low, high = stats.median_interval(rng.lognormal(size=15))
        covered += low <= 1.0 <= high
    assert covered / 2000 >= 0.94  # the true coverage at 15 samples is 0.965


def test_a_long_list_of_samples_is_no_trouble():
    low, high = stats.median_interval(np.linspace(1, 2, 5000))
    assert 1.48 < low < 1.5 < high < 1.52


@pytest.mark.parametrize("function", [stats.median, stats.median_interval])
def test_nothing_has_no_median(function):
    with pytest.raises(ValueError, match="no samples"):
        function([])


@given(st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=9))
def test_signed_ranks_are_exact(differences):
    kept = [d for d in differences if d]
    if not kept:
        assert stats.slower_p_value(differences) == 1.0
        return
    sizes = sorted(abs(d) for d in kept)
    rank = {s: np.mean([i + 1 for i, other in enumerate(sizes) if other == s]) for s in sizes}
    lost = sum(rank[abs(d)] for d in kept if d < 0)
    ranks = [rank[abs(d)] for d in kept]
    signs = itertools.product((False, True), repeat=len(kept))
    as_low = [sum(itertools.compress(ranks, sign)) <= lost + 1e-9 for sign in signs]
    assert stats.slower_p_value(differences) == pytest.approx(np.mean(as_low))


def test_many_differences_use_the_normal_approximation():
    differences = np.random.default_rng(0).normal(0.2, 1, size=stats.EXACT_ROUNDS + 1)
    approximate = stats.slower_p_value(differences)
    assert approximate == pytest.approx(stats.slower_p_value(differences[:-1]), abs=0.05)
    assert stats.slower_p_value(-differences) == pytest.approx(1 - approximate, abs=0.02)


def _rounds(levels, rounds, seed, noise=0.005):
    """Times that drift together by up to 30 %; shape (candidates, rounds)."""
    rng = np.random.default_rng(seed)
    drift = 1 + 0.3 * rng.random(rounds)
    return np.array(levels)[:, None] * drift * (1 + noise * rng.standard_normal((len(levels), rounds)))


def test_rounds_tell_apart_what_drift_would_hide():
    comparison = stats.compare(_rounds([100, 101, 104], rounds=15, seed=3))
    assert comparison.order == (0, 1, 2)
    assert comparison.tied == {0}
    assert comparison.ratios == pytest.approx((1.0, 1.01, 1.04), abs=0.005)


@pytest.mark.every(2)
@pytest.mark.parametrize("num", [2, 8])
def test_equals_are_thrown_out_no_more_often_than_stated_over_all_looks(num):
    comparisons = stats.num_hypotheses(num, num_looks=4)
    wrong = 0
    for seed in range(300):
        rounds = _rounds([100] * num, rounds=60, seed=seed)
        looks = [stats.compare(rounds[:, :n], 0.05, comparisons).tied for n in (15, 30, 45, 60)]
        wrong += any(len(tied) < num for tied in looks)
    assert wrong / 300 <= 0.05


def test_a_difference_of_half_the_noise_is_found_within_sixty_rounds():
    comparisons = stats.num_hypotheses(8, num_looks=4)
    rounds = [_rounds([100, *[100.5] * 7], rounds=60, seed=seed, noise=0.005) for seed in range(40)]
    found = [stats.compare(r, 0.05, comparisons).tied == {0} for r in rounds]
    assert sum(found) >= 30


@given(st.integers(2, 40), st.floats(-0.02, 0.02), st.integers(0, 1000))
def test_what_is_called_equivalent_is(rounds, off, seed):
    one, other = _rounds([100 * (1 + off), 100], rounds, seed, noise=0.0005)
    if stats.is_equivalent(one, other, margin=0.005):
        assert abs(off) < 0.006 and rounds > 7
    if abs(off) < 0.003 and rounds >= 12:
        assert stats.is_equivalent(one, other, margin=0.005)
    assert stats.is_equivalent(one, other, 0.005) == stats.is_equivalent(other, one, 0.005)


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 1000))
def test_a_comparison_ranks_everyone_once(num, rounds, seed):
    comparison = stats.compare(_rounds([100 + i for i in range(num)], rounds, seed))
    assert sorted(comparison.order) == list(range(num))
    assert comparison.best in comparison.tied
    assert comparison.ratios[comparison.best] == 1.0


def test_two_rounds_decide_nothing():
    assert stats.compare([[1.0, 1.0], [2.0, 2.0]]).tied == {0, 1}


@pytest.mark.parametrize("rounds", [[], [[]], [1.0, 2.0]])
def test_no_rounds_are_refused(rounds):
    with pytest.raises(ValueError, match="comparison needs"):
        stats.compare(rounds)


@pytest.mark.parametrize(
    ("samples", "incumbent", "answer"),
    [
        ([120.0], 100.0, True),
        ([120.0, 109.0], 100.0, False),
        ([109.0], 100.0, False),
        ([], 100.0, False),
        ([1e9], None, False),
    ],
)
def test_too_slow_is_whose_fastest_sample_is_far_above(samples, incumbent, answer):
    assert stats.is_too_slow(samples, incumbent) is answer


def test_small_gains_add_up():
    creeping = [100 * 0.998**i for i in range(10)]
    assert stats.num_since_gain(creeping, gain=0.005) < 3
    assert stats.num_since_gain([100.0, *[99.9] * 7], gain=0.005) == 7
    assert stats.num_since_gain([None, None], gain=0.005) == 2
    assert stats.num_since_gain([], gain=0.005) == 0


def test_patience_ends_where_its_rule_says():
    patience = Patience(gain=0.01, horizon=10, risk=0.1, min_trials=20)
    # 10 / (s + 1 + 10) < 0.1 from s = 90 on
    assert patience.chance(89) == pytest.approx(0.1)
    assert not patience.is_over([100.0, *[100.0] * 89])
    assert patience.is_over([100.0, *[100.0] * 90])
    assert not patience.is_over([100.0] * 19)
    assert not patience.is_over([*[100.0] * 300, 90.0])


@given(st.integers(0, 10_000))
def test_hope_fades_and_never_vanishes(since):
    assert 0 < Patience().chance(since + 1) < Patience().chance(since) < 1


def test_an_approximation_of_one_is_finite():
    assert math.isfinite(stats.slower_p_value([1.0] * 200))


def test_the_interval_of_a_mean_ratio_is_students():
    """Tabled quantiles, of one pair of ratios more than there are degrees of freedom."""
    for degrees, quantile in ((1, 12.7062), (2, 4.30265), (5, 2.57058), (29, 2.04523), (120, 1.97993)):
        logs = np.linspace(-1, 1, degrees + 1)
        found = stats.mean_ratio(np.exp(logs), np.ones(degrees + 1))
        half = quantile * logs.std(ddof=1) / math.sqrt(degrees + 1)
        assert math.log(found.high) == pytest.approx(half, rel=1e-5)
        assert found.mean == pytest.approx(1) and found.low == pytest.approx(1 / found.high)
    with pytest.raises(ValueError, match="two pairs"):
        stats.mean_ratio([1.0], [1.0])

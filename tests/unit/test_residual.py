"""What the model misses is learned where it was measured, and forgotten far from there."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autotune.perf_model import residual

SIZES = np.array([(2**i, 2**j, 2**depth) for i in (4, 8, 12) for j in (4, 8, 12) for depth in (6, 12)])
PLACES = residual.place(*SIZES.T)


def learned(log: float, known: list[int]) -> residual.Residuals:
    logs = np.full((2, len(SIZES)), np.nan)
    logs[0, known] = log
    return residual.learn(PLACES, logs)


@given(st.floats(-1, 1), st.sets(st.integers(0, len(SIZES) - 1), min_size=1))
def test_a_kernel_is_corrected_where_it_was_timed_and_no_other_is(log: float, known: set[int]) -> None:
    found = learned(log, sorted(known))
    for at in known:
        factor, other = residual.factors(found, residual.place(*SIZES[at]))
        assert 0 <= np.log(factor) / log <= 1.2 if abs(log) > 1e-6 else abs(np.log(factor)) < 1e-5
        assert other == 1
        if abs(log) > 0.01:
            assert np.log(factor) / log > 0.6


@given(st.floats(0.01, 1), st.integers(0, len(SIZES) - 1), st.floats(0.1, 10))
def test_the_less_sure_a_time_is_the_less_it_corrects(log: float, at: int, uncertainty: float) -> None:
    logs = np.full((2, len(SIZES)), np.nan)
    logs[:, at] = log
    uncertainties = np.full(logs.shape, np.nan)
    uncertainties[:, at] = uncertainty, 0
    unsure, sure = np.log(
        residual.factors(residual.learn(PLACES, logs, uncertainties), residual.place(*SIZES[at]))
    )
    assert 0 < unsure < sure
    assert np.isclose(unsure * (1 + residual.NOISE + uncertainty), sure * (1 + residual.NOISE))


def test_far_from_all_that_was_timed_nothing_is_corrected() -> None:
    found = learned(0.5, [0])
    assert residual.factors(found, residual.place(2**30, 2**30, 2**30))[0] < 1.001


def test_what_nothing_is_learned_of_is_left_as_it_is() -> None:
    assert (residual.factors(residual.none(3), residual.place(10, 20, 30)) == 1).all()
    assert (
        residual.factors(residual.learn(PLACES, np.full((2, len(SIZES)), np.nan)), residual.place(1, 2, 3))
        == 1
    ).all()


def test_an_inverse_in_place_is_as_exact_as_numpys() -> None:
    extents = np.random.default_rng(0).integers(1, 8192, (3, 1100))
    places = residual.place(*extents)
    covariance = np.array([residual._covariance(places - at) for at in places])
    covariance[np.diag_indices(len(places))] += residual.NOISE
    found = residual.precision(places)
    assert np.abs(covariance @ found - np.eye(len(places))).max() < 1e-11
    assert np.array_equal(found, found.T)

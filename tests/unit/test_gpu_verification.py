"""The error bound, held against sums in float32; which tiles are checked; what a verdict says."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.facts import accuracy_class
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.gpu import verification
from autotune.gpu.verification import Verdict

H200, RTX_3090 = KNOWN["h200"], KNOWN["rtx-3090"]


def _normal(generator, *shape):
    return generator.standard_normal(shape, dtype=np.float32)


def _sum_one_by_one(products):
    total = np.zeros(products.shape[:-1], np.float32)
    for p in range(products.shape[-1]):
        total = (total + products[..., p]).astype(np.float32)  # a product in float64, rounded once: an FMA
    return total


def _sum_in_splits(products, splits):
    parts = [_sum_one_by_one(part) for part in np.array_split(products, splits, axis=-1)]
    return _sum_one_by_one(np.stack(parts, axis=-1))


def _ratio(result, products, k):
    exact, size = products.sum(axis=-1), np.abs(products).sum(axis=-1)
    return np.max(np.abs(result - exact) / (accuracy_class.gamma(k) * size))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 700), st.integers(1, 8), st.integers(0, 2**32))
def test_right_results_are_well_within_the_bound_in_any_order(k, splits, seed):
    generator = np.random.default_rng(seed)
    products = _normal(generator, 400, k).astype(np.float64) * _normal(generator, 400, k)
    for result in (
        _sum_one_by_one(products),
        _sum_one_by_one(products[:, ::-1]),
        _sum_in_splits(products, min(splits, k)),
        products.astype(np.float32).sum(axis=-1),  # rounded products, pairwise
    ):
        assert _ratio(result, products, k) < (1.0 if k < 24 else 0.5)


@pytest.mark.parametrize("k", [1, 2, 64, 1024, 20000])
def test_one_lost_term_breaks_the_bound(k):
    generator = np.random.default_rng(k)
    products = _normal(generator, 64, k).astype(np.float64) * _normal(generator, 64, k)
    lost = products.copy()
    lost[:, k // 2] = 0
    assert _ratio(_sum_in_splits(lost, 1 if k < 64 else 32), products, k) > 1


@pytest.mark.parametrize("k", [1, 16, 4096, 100_000])
def test_a_wrong_element_breaks_the_bound(k):
    generator = np.random.default_rng(k)
    products = _normal(generator, 2, k).astype(np.float64) * _normal(generator, 2, k)
    sums = products.sum(axis=-1).astype(np.float32)
    assert _ratio(sums[::-1], products, k) > 1


def test_the_bound_grows_with_k_only_while_that_is_certain():
    gammas = [accuracy_class.gamma(k) for k in range(100)]
    assert gammas == sorted(gammas)
    assert gammas[0] == 2 * 2.0**-24
    assert accuracy_class.gamma(10**9) == accuracy_class.ZERO_MEAN_FACTOR * 2.0**-24


@pytest.mark.every(3)
@pytest.mark.parametrize("k", [0, 1, 2, 7, 64, 1000, 20000])
def test_no_sum_of_absolute_values_exceeds_the_largest_magnitude(k):
    generator = np.random.default_rng(k)
    clipped = np.clip(_normal(generator, 2, 2000, k), -5.77, 5.77)
    assert np.abs(clipped[0] * clipped[1]).sum(axis=-1).max(initial=0) <= verification.largest_magnitude(k)


# ------------------------------------------------------------------------------------------------


@given(
    *(st.integers(1, 2000), st.integers(1, 2000), st.sampled_from([1, 1, 2, 50])),
    *(st.integers(16, 400), st.integers(0, 10)),
)
def test_chosen_tiles_are_distinct_within_budget_and_hold_the_corners(m, n, batch, budget, seed):
    """Those of the first product, and of the last."""
    gemm = Gemm(m, n, 8, batch=batch)
    tiles = verification.choose_tiles(gemm, budget, seed)
    rows, columns = -(-m // 64), -(-n // 64)
    of_one, count = rows * columns, rows * columns * batch
    assert verification.num_tiles(gemm) == count
    assert tiles == sorted(set(tiles))
    assert set(tiles) <= set(range(count))
    assert len(tiles) == min(budget, count) or len(tiles) > budget * 0.5
    for first in (0, count - of_one):
        corners = (0, columns - 1, of_one - columns, of_one - 1)
        assert {first + corner for corner in corners} <= set(tiles)
    assert tiles == verification.choose_tiles(gemm, budget, seed)


def test_chosen_tiles_hold_edges_and_interior():
    tiles = set(verification.choose_tiles(Gemm(6400, 6400, 8), 1000, 0))
    assert set(range(9900, 10000)) <= tiles  # the last row of 100 x 100 tiles
    assert set(range(99, 10000, 100)) <= tiles  # the last column
    assert sum(10 < t // 100 < 90 and 10 < t % 100 < 90 for t in tiles) > 200


def test_a_fast_gpu_checks_everything_and_a_slow_one_what_it_can():
    gemm = Gemm(8192, 8192, 8192)
    everything = (8192 // 64) ** 2
    assert verification.tile_budget(gemm, H200, 2**37) >= everything
    assert verification.LEAST_TILES <= verification.tile_budget(gemm, RTX_3090, 2**34) < everything
    assert verification.tile_budget(Gemm(4096, 4096, 4096), RTX_3090, 2**34) > 500
    assert verification.tile_budget(Gemm(64, 64, 10**8), RTX_3090, 2**34) == verification.LEAST_TILES


def test_products_in_the_middle_of_a_batch_are_checked_too():
    tiles = verification.choose_tiles(Gemm(128, 128, 8, batch=1000), 500, 0)
    products = {tile // 4 for tile in tiles}
    assert {0, 999} <= products
    assert len(products) > 250


def test_the_reference_of_a_batch_does_not_grow_with_its_padding():
    """A product of one element takes a whole tile of the reference."""
    tiles = verification.tile_budget(Gemm(1, 1, 1, batch=10**6), H200, 2**37)
    assert tiles * 64 * 64 * verification.REFERENCE_BYTES <= verification.MOST_BATCH_BYTES
    assert tiles > 20_000


def _packed(ratio, index):
    return struct.unpack("<I", struct.pack("<f", ratio))[0] << 32 | index


@given(st.floats(0, 2.0**100, width=32), st.integers(0, 2**32 - 1))
def test_a_packed_ratio_comes_back(ratio, index):
    assert verification.ratio_of(_packed(ratio, index)) == ratio


def test_an_infinite_ratio_is_the_largest_float():
    assert verification.ratio_of(_packed(float("inf"), 0)) == pytest.approx(3.4e38, rel=0.01)


def test_an_element_is_located_through_its_tile():
    gemm = Gemm(130, 200, 8)  # 3 x 4 tiles
    tiles = [0, 5, 11]
    assert verification.locate(gemm, tiles, _packed(2.0, 4096 + 64 * 3 + 9)) == (64 + 3, 64 + 9)
    assert verification.locate(gemm, tiles, _packed(2.0, 2 * 4096 + 65)) == (129, 193)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 9))
def test_all_tiles_are_all_elements(m, n, batch):
    gemm = Gemm(m, n, 1, batch=batch)
    everything = list(range(verification.num_tiles(gemm)))
    assert verification.num_elements(gemm, everything) == gemm.num_results
    assert verification.num_elements(gemm, everything[:1]) == min(m, 64) * min(n, 64)


def test_an_element_of_a_batch_is_located_in_its_product():
    gemm = Gemm(130, 200, 8, batch=5)  # 12 tiles each
    assert verification.locate(gemm, [0, 29, 59], _packed(2.0, 4096 + 64 * 3 + 9)) == (2, 64 + 3, 64 + 9)
    assert "C[2, 67, 73] is off" in Verdict(7.0, (2, 67, 73)).fault


def test_only_a_known_error_beyond_the_limit_is_inaccurate():
    assert "2.10 times cuBLAS's; the limit is 1.5 times" in verification.why_inaccurate(2.1, 1.5)
    for known, limit in ((1.5, 1.5), (0.2, 1.5), (None, 1.5), (9.0, None)):
        assert verification.why_inaccurate(known, limit) == ""


def test_a_verdict_names_the_gravest_fault_first():
    right = Verdict(0.3, (0, 0), cublas_ratio=0.2)
    assert right.fault == ""
    assert "C[3, 4] is off by 7 times" in Verdict(7.0, (3, 4)).fault
    assert "cuBLAS" in Verdict(0.5, (0, 0), cublas_ratio=1.5).fault
    assert "not written" in Verdict(9.0, (0, 0), num_nonfinite=2).fault
    corrupted = Verdict(9.0, (0, 0), num_nonfinite=2, num_corrupted=1, corrupted="behind C of set 0")
    assert "1 words written outside" in corrupted.fault
    assert Verdict(float("nan"), (0, 0)).fault

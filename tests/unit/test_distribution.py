"""Shapes that are drawn: of all layouts, ragged and round, the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import target_finder as targets
from autotune.facts.device import KNOWN
from autotune.facts.distribution import (
    DEPTHS,
    HEADS,
    KINDS,
    LIMITS_US,
    MOST_BYTES,
    ROUND,
    ROWS,
    SHIPPED_SEEDS,
    drawn_batches,
    drawn_calls,
    drawn_suite,
    signature_of_shape,
)
from autotune.facts.fitted import MOST_DRAWN
from autotune.facts.gemm import LAYOUTS, Gemm

H200 = KNOWN["h200"]
CALLS = {Gemm(1, 1, 1): 60, Gemm(2, 2, 2): 30, Gemm(3, 3, 3): 10}
ROOFLINE = (H200.fma_tflops, H200.bandwidth_gbs)


@given(st.integers(0, 80), st.integers(0, 20), st.integers(0, 1000))
def test_the_first_of_more_are_those_of_fewer(num: int, more: int, seed: int) -> None:
    few, many = drawn_suite(num, seed, *ROOFLINE), drawn_suite(num + more, seed, *ROOFLINE)
    assert len(many) == num + more == len(set(many))
    assert many[:num] == few


@given(st.integers(0, 1000))
def test_half_are_nn_and_half_of_each_layout_round(seed: int) -> None:
    found = drawn_suite(60, seed, *ROOFLINE)
    assert Counter(gemm.layout for gemm in found) == {x: 30 if x == "NN" else 10 for x in LAYOUTS}
    for gemm in found:
        assert min(gemm.m, gemm.n) >= 1 and max(gemm.m, gemm.n) <= MOST_DRAWN + ROUND
        assert DEPTHS[0] <= gemm.k <= DEPTHS[1] + ROUND
        assert LIMITS_US[0] <= gemm.limit_us(*ROOFLINE) <= LIMITS_US[1]
    is_round = [all(x < ROUND or x % ROUND == 0 for x in (gemm.m, gemm.n, gemm.k)) for gemm in found]
    assert 30 <= sum(is_round) <= 45


def test_batches_are_of_all_layouts_and_some_are_attentions() -> None:
    few, many = drawn_batches(60, 3, *ROOFLINE), drawn_batches(120, 3, *ROOFLINE)
    assert many[:60] == few and len(set(many)) == 120
    for layout in LAYOUTS:
        own = [gemm for gemm in many if gemm.layout == layout]
        assert len(own) == 30 and all(gemm.is_batched and gemm.num_bytes <= MOST_BYTES for gemm in own)
        some = own[2::3]
        assert all(min(HEADS) <= min(gemm.n, gemm.k) <= max(HEADS) for gemm in some)
        assert all(min(ROWS) <= gemm.m <= max(ROWS) for gemm in some)


def test_seeds_draw_other_shapes() -> None:
    assert not set(drawn_suite(20, 0, *ROOFLINE)) & set(drawn_suite(20, 1, *ROOFLINE))


def widths(gemm: Gemm) -> tuple[int, int, int]:
    """By how many floats, up to 4, the rows of A, B and C can be read."""
    return tuple(next(w for w in (4, 2, 1) if ld % w == 0) for ld in (gemm.lda, gemm.ldb, gemm.ldc))


def test_every_way_that_packed_rows_are_aligned_is_drawn() -> None:
    """Kernels ask no more of a leading dimension than how many floats at a time it lets them read."""
    found = drawn_suite(4000, 0, *ROOFLINE)
    for layout, num_ways in {"NN": 9, "NT": 9, "TN": 9, "TT": 27}.items():
        ways = Counter(widths(gemm) for gemm in found if gemm.layout == layout)
        assert len(ways) == num_ways
        assert 0.3 < ways[4, 4, 4] / ways.total() < 0.5
        unaligned = sum(count for way, count in ways.items() if 4 not in way)
        assert unaligned > 0.2 * ways.total()


@given(st.dictionaries(st.integers(1, 50), st.integers(1, 10**15)), st.integers(0, 60), st.integers(0, 1000))
def test_of_calls_the_first_of_more_are_those_of_fewer(counts: dict[int, int], num: int, seed: int) -> None:
    calls = {Gemm(m, 8, 8): count for m, count in counts.items()}
    found, every = drawn_calls(num, seed, calls), drawn_calls(len(calls), seed, calls)
    assert found == every[:num]
    assert set(every) == set(calls) and len(every) == len(calls)


def test_shapes_are_drawn_as_often_as_they_are_called() -> None:
    num_seeds = 3000
    firsts = Counter(drawn_calls(1, seed, CALLS)[0] for seed in range(num_seeds))
    for gemm, count in CALLS.items():
        assert abs(firsts[gemm] / num_seeds - count / 100) < 0.03  # three deviations
    pairs = Counter(drawn_calls(2, seed, CALLS) for seed in range(num_seeds))
    second = pairs[Gemm(1, 1, 1), Gemm(2, 2, 2)] / firsts[Gemm(1, 1, 1)]
    assert abs(second - 30 / 40) < 0.04


@pytest.mark.parametrize(
    ("shape", "number"),
    [("1x5000x300", 0), ("64x64x100000", 1), ("128x128x4096", 2), ("4096", 3), ("300x70x1000", 3)],
)
def test_kinds(shape: str, number: int) -> None:
    assert signature_of_shape(Gemm.parse(shape)) == KINDS[number]


@pytest.mark.parametrize(("gpu", "shipped"), [("h200", (0, 1, 2)), ("h100", (8,))])
def test_the_matrices_that_ship_were_drawn_by_seeds_that_no_search_draws_by(
    gpu: str, shipped: tuple[int, ...]
) -> None:
    limits = KNOWN[gpu]
    own = [matrix for matrix in targets.matrices() if matrix.limits.name == limits.name]
    columns = {gemm for matrix in own for _, gemm, _ in matrix.cells}
    for seed in shipped:
        assert seed < SHIPPED_SEEDS
        found = set(drawn_suite(240, seed, limits.fma_tflops, limits.bandwidth_gbs))
        assert len(found & columns) > 100
        columns -= found
    assert not columns

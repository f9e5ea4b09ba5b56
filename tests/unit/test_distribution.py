"""Shapes that are drawn: of all layouts, ragged and round, the same for the same seed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autotune.device import KNOWN
from autotune.distribution import DEPTHS, LIMITS_US, MOST, ROUND, drawn_suite
from autotune.gemm import LAYOUTS

H200 = KNOWN["h200"]
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
        assert min(gemm.m, gemm.n) >= 1 and max(gemm.m, gemm.n) <= MOST + ROUND
        assert DEPTHS[0] <= gemm.k <= DEPTHS[1] + ROUND
        assert LIMITS_US[0] <= gemm.limit_us(*ROOFLINE) <= LIMITS_US[1]
    is_round = [all(x < ROUND or x % ROUND == 0 for x in (gemm.m, gemm.n, gemm.k)) for gemm in found]
    assert 30 <= sum(is_round) <= 45


def test_seeds_draw_other_shapes() -> None:
    assert not set(drawn_suite(20, 0, *ROOFLINE)) & set(drawn_suite(20, 1, *ROOFLINE))

"""The time model: what further launches and partial sums are taken to cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import LIMITS, make_spec

from autotune.gemm import Gemm
from autotune.kernel.launch import LaunchSpec
from autotune.models.launches import Launches, Shapes, grids
from autotune.models.time_model import work

SHAPE = Gemm(256, 256, 4096)  # 16 tiles


def overhead_us(spec: LaunchSpec, gemm: Gemm = SHAPE) -> float:
    launches, shape = Launches.of([spec], [2]), Shapes.of(gemm)
    return float(work(launches, shape, grids(launches, shape), LIMITS).overhead_us[0])


def test_one_launch_costs_nothing_further() -> None:
    assert overhead_us(make_spec()) == 0


@pytest.mark.parametrize("overlaps", [False, True])
def test_each_further_launch_costs_the_same(overlaps: bool) -> None:
    plain = make_spec(overlaps=overlaps)
    one = overhead_us(replace(plain, packs_a=True))
    assert one > 0
    assert overhead_us(replace(plain, packs_a=True, packs_b=True)) == pytest.approx(2 * one)
    two_pass = replace(plain, reduction="two_pass", split_k=4)
    assert overhead_us(two_pass) == overhead_us(replace(two_pass, split_k=64)) == pytest.approx(one)
    assert overhead_us(replace(two_pass, packs_b=True)) == pytest.approx(2 * one)


def test_a_launch_that_may_begin_early_costs_less() -> None:
    packed = make_spec(packs_a=True, overlaps=False)
    assert overhead_us(replace(packed, overlaps=True)) < overhead_us(packed)


@given(split_k=st.integers(2, 128))
def test_a_last_block_waits_for_each_split(split_k: int) -> None:
    spec = make_spec(reduction="last_block", split_k=split_k)
    assert overhead_us(replace(spec, split_k=2 * split_k)) == pytest.approx(2 * overhead_us(spec))
    second_pass = overhead_us(replace(spec, reduction="two_pass", overlaps=True))
    assert (overhead_us(spec) < second_pass) == (split_k == 2)
    assert overhead_us(replace(spec, reduction="cluster")) < second_pass


def test_waves_that_come_out_even_leave_nothing_to_wait_for() -> None:
    ragged = make_spec(reduction="last_wave", split_k=4, wave=15)  # one tile of 16 is left
    assert overhead_us(ragged) == overhead_us(replace(ragged, reduction="last_block")) > 0
    assert overhead_us(replace(ragged, wave=16)) == 0

"""Times of configs that were not timed on a shape, from those that were; and what the model makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import FIGURES, LIMITS, make_kernel, make_spec, make_table

from autotune.export.kriging import Kriging
from autotune.gemm import Gemm
from autotune.kernel import families
from autotune.kernel.config import Config
from autotune.models.fit import Sample, fit
from autotune.runtime.selector import CAUTION, Call, Selector

SQUARE = Gemm(2048, 2048, 2048)
BASE = Config()
GROUPS = [replace(BASE, group=group, stages=stages) for group in (1, 2, 4, 8) for stages in (3, 4, 5)]
FAR = families.FEW_ROWS[0]
times_of = st.lists(st.floats(200, 900), min_size=2, max_size=len(GROUPS)).map(
    lambda times: dict(zip(GROUPS, times, strict=False))
)


def test_a_timed_config_has_its_time() -> None:
    times = {config: 300.0 + 5 * i for i, config in enumerate(GROUPS)}
    for config, (time_us, deviation) in zip(times, Kriging(SQUARE, times, LIMITS).times(GROUPS), strict=True):
        assert time_us == pytest.approx(times[config], rel=0.02)
        assert deviation < 0.04


@given(times_of, st.floats(0.1, 10))
def test_all_slower_by_a_factor_is_told_so(times: dict[Config, float], factor: float) -> None:
    asked = [*GROUPS, FAR]
    one = Kriging(SQUARE, times, LIMITS).times(asked)
    other = Kriging(SQUARE, {config: factor * time for config, time in times.items()}, LIMITS).times(asked)
    assert [t for t, _ in other] == pytest.approx([factor * t for t, _ in one], rel=1e-6)
    assert [d for _, d in other] == pytest.approx([d for _, d in one])


@given(times_of)
def test_what_is_unlike_all_that_was_timed_is_hardly_known(times: dict[Config, float]) -> None:
    near = replace(BASE, group=16)
    (_, at), (_, close), (_, far) = Kriging(SQUARE, times, LIMITS).times([GROUPS[0], near, FAR])
    assert at <= close < far <= 0.31


@given(times_of, st.permutations(range(len(GROUPS))))
def test_order_does_not_matter(times: dict[Config, float], order: list[int]) -> None:
    shuffled = {GROUPS[i]: times[GROUPS[i]] for i in order if GROUPS[i] in times}
    asked = [*GROUPS, FAR]
    one, other = (np.array(Kriging(SQUARE, t, LIMITS).times(asked)) for t in (times, shuffled))
    assert other == pytest.approx(one, rel=1e-6)


def test_a_slow_relative_makes_slow() -> None:
    """Where copies through registers were timed twice as slow, one that was not timed is taken to be slow."""
    slow = [replace(c, copy_a="register", copy_b="register", stages=2, bursts=1) for c in GROUPS[::3]]
    times = dict.fromkeys(GROUPS, 300.0) | dict.fromkeys(slow, 600.0)
    asked = [replace(BASE, group=16), replace(slow[0], group=16)]
    (fast_us, _), (slow_us, _) = Kriging(SQUARE, times, LIMITS).times(asked)
    assert slow_us > 1.5 * fast_us


# What the model makes of it


def test_the_less_a_time_is_worth_the_less_it_moves_the_figures() -> None:
    spec, gemms = make_spec(), [Gemm(size, size, size) for size in (1024, 2048, 3072, 4096)]
    true = [Sample(spec, g, 1.2 * g.limit_us(LIMITS.fma_tflops, LIMITS.bandwidth_gbs)) for g in gemms]
    wrong = replace(true[1], time_us=3 * true[1].time_us)
    alone = fit(true, 4, LIMITS)
    moved = [fit([*true, replace(wrong, deviation=d)], 4, LIMITS).step_us for d in (0.05, 0.3, 3.0)]
    off = [abs(step_us / alone.step_us - 1) for step_us in moved]
    assert off == sorted(off, reverse=True) and off[-1] < 0.01


def test_inferred_times_are_not_counted_as_measured_and_are_not_trusted_alike() -> None:
    spec, gemms = make_spec(), [Gemm(size, size, size) for size in (1024, 2048, 4096)]
    samples = [Sample(spec, g, 1.2 * g.limit_us(LIMITS.fma_tflops, LIMITS.bandwidth_gbs)) for g in gemms]
    known, inferred = fit(samples, 4, LIMITS), fit([replace(s, deviation=0.2) for s in samples], 4, LIMITS)
    assert (known.num_samples, inferred.num_samples) == (3, 0)
    assert inferred.relative_error > known.relative_error + 0.1


def test_of_two_kernels_the_better_known_is_picked_and_its_expected_time_is_told() -> None:
    sure = make_kernel("sure", make_spec(), FIGURES)
    step_us = FIGURES.step_us * (1 - 0.5 * CAUTION * 0.3)
    unsure = make_kernel("unsure", make_spec(), replace(FIGURES, step_us=step_us, relative_error=0.3))
    call = Call.packed(Gemm(2000, 2000, 2000))
    both = Selector(make_table(sure, unsure)).pick(call)
    alone = Selector(make_table(sure)).pick(call)
    assert (both.kernel_id, both.expected_us) == ("sure", alone.expected_us)
    known = replace(unsure, model=replace(FIGURES, step_us=step_us))
    assert Selector(make_table(sure, known)).pick(call).kernel_id == "unsure"

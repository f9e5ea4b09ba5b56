"""The decisions of timing: how many launches, when to stop, whom to give up."""

from __future__ import annotations

import random
from functools import partial
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts import stats
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.gpu import timing

times = st.floats(0.5, 1e7)


@given(times, st.integers(1, 4096))
def test_a_batch_goes_through_every_set_equally_often(launch_us, num_sets):
    launches = timing.batch_launches(launch_us, num_sets)
    assert launches >= num_sets
    assert launches % num_sets == 0


@given(times, st.integers(1, 4096))
def test_a_batch_is_long_enough_but_no_longer_than_needed(launch_us, num_sets):
    launches = timing.batch_launches(launch_us, num_sets)
    kernel_us = max(launch_us - timing.LAUNCH_LATENCY_US, launch_us / 4, 0.5)
    if launches > num_sets:
        assert launches * kernel_us <= timing.BATCH_US * 1.5 + 1e-6
    assert (launches + num_sets) * kernel_us >= timing.BATCH_US * 0.5


def test_a_long_kernel_is_launched_once_per_batch():
    assert timing.batch_launches(20_000.0, 1) == 1


@given(times, times)
def test_nothing_near_the_cutoff_is_given_up(time_us, cutoff_us):
    if time_us <= cutoff_us:
        assert not stats.is_too_slow([time_us], cutoff_us)
        assert not timing.is_too_slow_at_probe(time_us + timing.MOST_LATENCY_US, cutoff_us)
    assert not timing.is_too_slow_at_probe(time_us, None)


def test_the_clearly_slow_are_given_up_at_once():
    assert timing.is_too_slow_at_probe(1000.0, 100.0)
    assert stats.is_too_slow([120.0], 100.0)


def _sample(draw, batch_us):
    """Runs the sampling loop on simulated samples; returns them."""
    samples = [draw()]
    while count := timing.more_samples(samples, batch_us):
        samples += [draw() for _ in range(count)]
    return samples


@given(st.floats(200.0, 1e6), st.integers(0, 2**32))
def test_sampling_ends_within_its_budget(batch_us, seed):
    generator = random.Random(seed)
    samples = _sample(lambda: generator.gauss(100.0, 20.0), batch_us)
    assert timing.MIN_SAMPLES <= len(samples) <= timing.MAX_SAMPLES
    assert len(samples) * batch_us <= max(timing.BUDGET_US, timing.MIN_SAMPLES * batch_us)


def test_a_quiet_kernel_needs_few_samples_and_a_noisy_one_more():
    generator = random.Random(1)
    quiet = _sample(lambda: generator.gauss(100.0, 0.05), 1500.0)
    noisy = _sample(lambda: generator.gauss(100.0, 5.0), 1500.0)
    assert len(quiet) < 8 < len(noisy)


def test_the_stated_error_of_the_median_is_about_right():
    generator = random.Random(3)
    runs = [[generator.gauss(100.0, 2.0) for _ in range(25)] for _ in range(400)]
    stated = median(timing.relative_error(run) for run in runs)
    medians = [median(run) for run in runs]
    true = (sum((m - 100.0) ** 2 for m in medians) / len(medians)) ** 0.5 / 100.0
    assert 0.7 < stated / true < 1.4


@given(st.floats(10.0, 1000.0), st.floats(0.005, 0.1), st.floats(0.0, 0.1))
def test_power_is_read_from_the_steps_of_a_counter(power_w, step_s, from_s):
    readings = [(i * 0.001, power_w * (i * 0.001 // step_s) * step_s) for i in range(600)]
    found = timing.mean_power_w(readings, from_s)
    assert found == pytest.approx(power_w, rel=0.03)


@pytest.mark.parametrize(
    "readings",
    [[], [(0.0, None)] * 9, [(i / 10, 5.0) for i in range(9)], [(i / 10, i // 4) for i in range(9)]],
)
def test_a_counter_that_hardly_moves_tells_no_power(readings):
    assert timing.mean_power_w(readings, 0.0) is None


@given(times, times, st.none() | times)
def test_what_is_impossible_is_suspicious_and_what_is_not_much_faster_is_not(time_us, floor_us, known_us):
    if timing.is_too_fast(time_us, floor_us):
        assert timing.is_suspicious(time_us, floor_us, known_us)
    if time_us >= floor_us and (known_us is None or time_us >= known_us / 2):
        assert not timing.is_suspicious(time_us, floor_us, known_us)


def test_memory_sets_a_floor_only_where_operands_come_from_memory():
    limits, gemm = KNOWN["h200"], Gemm(4096, 1, 4096)
    floor_us = partial(timing.floor_us, gemm, limits, tflops=limits.fma_tflops)
    cold = floor_us(CachePolicy.COLD, num_sets=10)
    warm = floor_us(CachePolicy.WARM, num_sets=1)
    assert warm == pytest.approx(gemm.flops / limits.fma_tflops / 1e6)
    assert cold == gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs) > 10 * warm
    assert floor_us(CachePolicy.COLD, num_sets=1) == warm  # all of it stays in L2


def test_rounds_are_permutations_and_repeat_with_their_seed():
    orders = timing.round_orders(5, 20, seed=7)
    assert all(sorted(order) == list(range(5)) for order in orders)
    assert len({tuple(order) for order in orders}) > 10
    assert orders == timing.round_orders(5, 20, seed=7)

"""What launches miss is learned for each kernel, drawn to kernels like it; what a shape misses, for all."""

from __future__ import annotations

import numpy as np

from autotune.perf_model import launch_errors, residual
from autotune.perf_model.launch_errors import LaunchErrors, TimedLaunches
from autotune.perf_model.model_figures import NUM_TERMS, Floats

NUM_KERNELS, NUM_SHAPES = 6, 80
RNG = np.random.default_rng(1)
PLACES = residual.place(*2 ** RNG.uniform(0, 12, (3, NUM_SHAPES)))
TRAITS = np.stack([np.ones(NUM_KERNELS), np.linspace(-1, 1, NUM_KERNELS)], axis=1)
TERMS = RNG.normal(0, 1, (NUM_TERMS, NUM_KERNELS * NUM_SHAPES))
TERMS[0], TERMS[1] = 1, 0
TRUE = np.zeros((NUM_KERNELS, NUM_TERMS))
TRUE[:, 5], TRUE[:, 20] = 0.1, 0.1 * TRAITS[:, 1]
SHAPE = np.tile(np.arange(NUM_SHAPES), NUM_KERNELS)
LEVEL = 0.1 * (PLACES[:, 0] - 6)


def learned(num_of_last: int, rows: Floats = TERMS) -> tuple[LaunchErrors, Floats]:
    """Where so many launches of the last kernel were timed."""
    kernel = np.repeat(np.arange(NUM_KERNELS), NUM_SHAPES)
    logs = (rows.T * TRUE[kernel]).sum(axis=1) + LEVEL[SHAPE]
    kept = slice(0, (NUM_KERNELS - 1) * NUM_SHAPES + num_of_last)
    begin = np.arange(NUM_KERNELS) * NUM_SHAPES
    known = TimedLaunches(begin, SHAPE[kept], rows[:, kept], logs[kept], np.ones(len(logs[kept])))
    return launch_errors.learn(known, TRAITS, PLACES)


def test_errors_of_launches_and_the_level_of_shapes_are_learned() -> None:
    found, left = learned(NUM_SHAPES)
    assert np.abs(found.weights[:, 2:] - TRUE[:, 2:]).max() < 0.04
    assert np.sqrt(np.mean(left**2)) < 0.06
    levels = np.log([residual.factors(found.level, place)[0] for place in PLACES])
    assert np.corrcoef(levels, LEVEL)[0, 1] > 0.97


def test_a_kernel_that_was_hardly_timed_errs_like_those_that_are_like_it() -> None:
    weights = learned(1)[0].weights
    assert weights[-1, 5] > 0.06
    assert weights[0, 20] < -0.06


def test_of_kernels_that_nobody_timed_nothing_is_corrected() -> None:
    found = launch_errors.none(3)
    assert (found.weights == 0).all() and residual.factors(found.level, PLACES[0]) == 1

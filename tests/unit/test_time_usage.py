"""What a shape has had of its target: candidates apart from idle moments, and what is under way with it."""

from __future__ import annotations

import pytest

from autotune.facts.measurement import Measurement, Outcome
from autotune.search.propose.origins import FILL, RANDOM, REUSE
from autotune.search.time_usage import TimeUsage

TRIAL = Measurement(Outcome.OK, time_us=5.0, compile_s=8.0, verify_s=0.25, measure_s=0.75)


def test_a_trial_takes_the_gpu_and_its_place_among_those_that_compile() -> None:
    usage = TimeUsage(num_places=4)
    assert (usage.expected_s(3), usage.gpu_s_per_trial) == (0.0, 0.0), "nothing is known yet"
    usage.add(RANDOM, TRIAL)
    assert usage.expected_s(0) == 1.0 + 8.0 / 4
    assert usage.expected_s(2) == 3 * 3.0, "what is under way is as dear as what is done"
    assert usage.gpu_s_per_trial == 1.0


def test_idle_moments_are_no_seconds_that_one_shape_had_before_another() -> None:
    usage = TimeUsage(num_places=4)
    usage.add(RANDOM, TRIAL)
    for _ in range(2):
        usage.add(REUSE, TRIAL)
    assert (usage.num_new, usage.num_reused) == (3, 2)
    assert usage.expected_s(1) == 2 * 3.0
    assert usage.expected_idle_s(2) == 4 * 1.0, "of the GPU alone: nothing is compiled"


def test_earlier_runs_count_but_for_their_idle_moments() -> None:
    usage = TimeUsage(num_places=4)
    for origin in (RANDOM, REUSE, FILL, RANDOM):
        usage.add_earlier(origin, TRIAL)
    assert usage.expected_s(5) == pytest.approx(6.0)
    assert (usage.num_new, usage.expected_idle_s(5)) == (0, 0.0)

"""What a shape has had of its target: candidates apart from idle moments, and what is under way with it."""

from __future__ import annotations

import pytest

from autotune.facts.measurement import Measurement, Outcome
from autotune.search.accounts import Accounts
from autotune.search.propose.origins import FILL, RANDOM, REUSE

TRIAL = Measurement(Outcome.OK, time_us=5.0, compile_s=8.0, verify_s=0.25, measure_s=0.75)


def test_a_trial_takes_the_gpu_and_its_place_among_those_that_compile() -> None:
    accounts = Accounts(num_places=4)
    assert (accounts.expected_s(3), accounts.gpu_s_per_trial) == (0.0, 0.0), "nothing is known yet"
    accounts.add(RANDOM, TRIAL)
    assert accounts.expected_s(0) == 1.0 + 8.0 / 4
    assert accounts.expected_s(2) == 3 * 3.0, "what is under way is as dear as what is done"
    assert accounts.gpu_s_per_trial == 1.0


def test_idle_moments_are_no_seconds_that_one_shape_had_before_another() -> None:
    accounts = Accounts(num_places=4)
    accounts.add(RANDOM, TRIAL)
    for _ in range(2):
        accounts.add(REUSE, TRIAL)
    assert (accounts.num_new, accounts.num_reused) == (3, 2)
    assert accounts.expected_s(1) == 2 * 3.0
    assert accounts.expected_idle_s(2) == 4 * 1.0, "of the GPU alone: nothing is compiled"


def test_earlier_runs_count_but_for_their_idle_moments() -> None:
    accounts = Accounts(num_places=4)
    for origin in (RANDOM, REUSE, FILL, RANDOM):
        accounts.add_earlier(origin, TRIAL)
    assert accounts.expected_s(5) == pytest.approx(6.0)
    assert (accounts.num_new, accounts.expected_idle_s(5)) == (0, 0.0)

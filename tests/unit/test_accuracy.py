"""A length of sums from which on all fails: found where there is one, imagined nowhere, acted upon."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.device import known_limits
from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import FeasibleSet, feasible_set
from autotune.search.propose.proposer import Proposer
from autotune.search.propose.samplers import make_proposer
from autotune.search.propose.sum_limit import LEAST_FAILED, least_failing
from autotune.search.propose.traits import Traits, _longest_sums, traits_of

H200 = known_limits("h200")
GEMM = Gemm(64, 64, 100000)
LIMIT = 2000


@given(st.lists(st.integers(1, 40), min_size=1), st.integers(1, 41))
def test_a_length_that_separates_is_found_once_enough_failed(lengths, limit):
    sums = np.array(lengths, dtype=float)
    failed = sums >= limit
    found = least_failing(sums, failed)
    if failed.sum() < LEAST_FAILED or failed.all():
        assert found == math.inf
    else:
        assert found == sums[failed].min()


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=60))
def test_most_of_what_is_given_up_had_failed_and_something_is_left(text):
    sums, failed = np.array([s for s, _ in text], dtype=float), np.array([f for _, f in text], dtype=bool)
    found = least_failing(sums, failed)
    if math.isfinite(found):
        assert failed[sums >= found].mean() >= 0.8
        assert (~failed[sums < found]).any()


@pytest.mark.parametrize("num_ok", [0, 40])
def test_failures_of_every_length_are_no_reason(num_ok):
    sums = np.tile([8.0, 16.0, 32.0, 64.0], 20)
    assert least_failing(sums, np.arange(80) // 4 >= num_ok // 4) == math.inf


@pytest.mark.parametrize(
    ("change", "longest"),
    [
        ({}, 4096),
        ({"slice_k": 2}, 2048),
        ({"slice_k": 2, "flush_k": 256}, 256),
        ({"reduction": "two_pass", "split_k": 4}, 1024),
        ({"reduction": "last_wave", "split_k": 4}, 4096),  # 2,048 tiles, 528 at a time: most are whole
    ],
)
def test_longest_sums_by_hand(change, longest):
    values = {**Config().to_dict(), **change}
    columns = SimpleNamespace(**{name: np.array([value]) for name, value in values.items()})
    assert _longest_sums(columns, Gemm(4096, 4096, 4096), H200).tolist() == [longest]


def test_a_last_wave_without_a_whole_one_is_split():
    values = {**Config().to_dict(), "reduction": "last_wave", "split_k": 4}
    columns = SimpleNamespace(**{name: np.array([value]) for name, value in values.items()})
    assert _longest_sums(columns, Gemm(512, 512, 4096), H200).tolist() == [1024]


def _search(sampler: str, traits: Traits, space: FeasibleSet, num: int) -> tuple[Proposer, np.ndarray]:
    """Whether each of so many points failed, in a space where long sums do."""
    proposer, failed = make_proposer(space, sampler, 1, traits), []
    for _ in range(num):
        number = proposer.ask().number
        codes = np.array([space.codes(number)])
        failed.append(bool(traits.longest_sums(codes)[0] >= LIMIT))
        proposer.tell(number, None if failed[-1] else 1.0 + codes.sum())
    return proposer, np.array(failed)


def test_long_sums_are_given_up_by_the_model_and_not_by_the_yardstick():
    space = feasible_set(H200, GEMM)
    traits = traits_of(space, GEMM, H200)
    assert traits is not None
    _, by_chance = _search("random", traits, space, 60)
    _, ours = _search("autotune", traits, space, 60)
    assert by_chance[30:].sum() > 5
    assert ours[30:].sum() == 0


def test_an_offer_that_is_bound_to_fail_is_passed_over_and_one_that_was_picked_is_not():
    space = feasible_set(H200, GEMM)
    traits = traits_of(space, GEMM, H200)
    assert traits is not None
    proposer, _ = _search("autotune", traits, space, 40)
    numbers = np.random.default_rng(3).integers(len(space), size=500).tolist()
    long = [n for n in numbers if traits.longest_sums(np.array([space.codes(n)]))[0] >= 2 * LIMIT]
    assert proposer.offer(long[0], "seed")
    assert proposer.ask().number != long[0]
    assert [p.number for p in proposer.take([long[1]], "reuse")] == [long[1]]

"""Attempts: when one is stuck, and what the next one knows."""

from __future__ import annotations

import itertools
import math
from collections import deque

import pytest
from fake_target import product_space
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.facts.stats import Patience
from autotune.search.propose.attempt import Attempt, best_us
from autotune.search.propose.bayesian import Model
from autotune.search.propose.proposer import Proposer

SPACE = product_space(12, 12, 8, words=3)
STUCK = next(n for n in range(10_000) if Patience().chance(n) < Patience.risk)  # trials without a gain


def test_an_attempt_is_stuck_after_results_of_its_own_without_a_gain():
    attempt = Attempt(None, dict.fromkeys(range(2 * STUCK), 2.0))
    assert not attempt.is_stuck  # what it was given does not count
    assert attempt.learn({9000: 1.0})
    for number in range(STUCK):
        assert not attempt.is_stuck
        assert not attempt.learn({10_000 + number: None if number % 2 else 1.5})
    assert attempt.is_stuck
    assert attempt.learn({9001: 0.9}) and not attempt.is_stuck


def test_a_gain_too_small_to_count_is_still_the_best():
    attempt = Attempt(None, {})
    assert attempt.learn({0: 1.0})
    for number in range(1, STUCK + 1):
        assert attempt.learn({number: 1.0 - 1e-6 * number})
    assert attempt.is_stuck


def test_what_it_recalls_counts_once_it_has_made_some_trials():
    attempt = Attempt(None, {})
    attempt.recall(dict.fromkeys(range(1000, 1000 + 2 * STUCK), 2.0))
    for number in range(Patience.min_trials):
        assert not attempt.is_stuck
        attempt.learn({2000 + number: 3.0})
    assert attempt.is_stuck
    attempt.recall({1: 1.9})
    assert attempt.results[1] == 1.9 and not attempt.is_stuck


def test_corrections_reach_what_an_attempt_knows():
    attempt = Attempt(None, {1: 2.0})
    attempt.correct(1, 3.0)
    attempt.correct(2, 1.0)
    assert attempt.results == {1: 3.0}
    assert best_us({1: None}) == math.inf and best_us(attempt.results) == 3.0


@pytest.fixture
def known(monkeypatch) -> list[dict[int, float | None]]:
    """What the models know, whenever one plans."""
    notes, own = [], Model.propose

    def propose(self, results, pending, seen, wanted=1):
        notes.append(dict(results))
        return own(self, results, pending, seen, wanted)

    monkeypatch.setattr(Model, "propose", propose)
    return notes


def _flat(proposer: Proposer, num: int, under_way: int = 1) -> list[int]:
    """Ask for this many points, each of which takes as long; the points in the order of their results."""
    open_, done = deque(), []
    for _ in range(num):
        open_.append(proposer.ask().number)
        if len(open_) == under_way:
            done.append(open_.popleft())
            proposer.tell(done[-1], 1.0)
    return done


@given(seed=st.integers(0, 1000), under_way=st.integers(1, 12))
@settings(max_examples=2, deadline=None)
def test_no_point_is_requested_for_twice_whatever_an_attempt_knows(seed, under_way):
    proposer = Proposer(SPACE, seed=seed)
    requested = _flat(proposer, 2 * STUCK + 60, under_way)
    assert len(set(requested)) == len(requested)


def test_the_next_attempt_knows_what_others_named_and_what_it_meets(known):
    proposer = Proposer(SPACE, seed=3)
    named = [5, 400, 777]
    assert all(proposer.offer(number, "seed") for number in named[:2])
    done = _flat(proposer, STUCK)
    assert [proposal.number for proposal in proposer.take(named[2:], "reuse")] == named[2:]
    proposer.tell(named[2], 1.0)
    assert all(results.keys() <= set(done) for results in known)
    assert set(named[:2]) <= known[0].keys() and len(known[-1]) > 200  # the first knows all
    known.clear()
    later = _flat(proposer, 60)
    started = next(results for results in known if len(results) < 100)
    assert started.keys() >= set(named)
    assert set(later[-30:-15]) <= known[-1].keys()
    assert known[-1].keys() < {*done, *named, *later}  # and of what was tried before only what it met


def test_a_point_that_was_tried_before_costs_nothing(known):
    """Where hardly a point is left, an attempt meets what was tried and goes on to what was not."""
    space = product_space(6, 6, 4, words=4)
    proposer = Proposer(space, seed=1)
    requested = _flat(proposer, len(space))
    assert sorted(requested) == list(range(len(space))) and len(space) > STUCK + 50
    assert any(len(after) < len(before) for before, after in itertools.pairwise(known))


def test_what_a_database_told_is_of_the_first_attempt(known):
    """Starting points that were tried in an earlier run are known to every attempt."""
    proposer = Proposer(SPACE, seed=0)
    proposer.load((number, 1.0) for number in range(STUCK + 10))
    assert not proposer.offer(7, "seed")
    requested = _flat(proposer, 20)
    assert {7, *requested[:14]} == known[0].keys()


def test_a_correction_holds_in_later_attempts(known):
    proposer = Proposer(SPACE, seed=0)
    proposer.offer(7, "seed")
    _flat(proposer, STUCK)
    proposer.correct(7, 1.25)
    assert known[-1][7] == 1.0
    _flat(proposer, 20)
    assert known[-1][7] == 1.25 and len(known[-1]) < 50

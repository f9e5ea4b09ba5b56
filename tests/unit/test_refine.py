"""What idle seconds of a GPU decide: the sequential test, contests, their place in a search and the store."""

from __future__ import annotations

import itertools
import zlib
from concurrent.futures import Future

import numpy as np
import pytest
from fake_target import FakeTarget, bowl_us, product_space
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cli.search_ending import ledger_text
from autotune.facts import stats
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.search import Options, StopReason, study_of, tune
from autotune.search.compare import ranking
from autotune.search.compare.ranking import Ranking
from autotune.search.progress import Ledger, TrialDone
from autotune.search_policy import SearchPolicy
from autotune.store import ComparisonRecord
from autotune.target import Baseline, Refining, Rounds, point_key

GEMM = Gemm(64, 64, 64)
POLICY = SearchPolicy()


# ---- the sequential test


@given(st.integers(0, 60), st.integers(0, 60))
def test_evidence_is_a_fair_bet_on_a_fair_coin(num_for, num_against):
    after = stats.evidence(num_for + 1, num_against), stats.evidence(num_for, num_against + 1)
    assert sum(after) / 2 == pytest.approx(stats.evidence(num_for, num_against))
    assert after[0] > stats.evidence(num_for, num_against) > after[1]


@given(st.integers(0, 12), st.integers(0, 12))
def test_evidence_is_the_mean_over_chances_above_a_half(num_for, num_against):
    chances = (np.arange(20_000) + 0.5) / 40_000 + 0.5
    bets = (2 * chances) ** num_for * (2 * (1 - chances)) ** num_against
    assert stats.evidence(num_for, num_against) == pytest.approx(bets.mean(), rel=1e-5)


def test_two_that_are_alike_are_seldom_told_apart_however_often_one_looks():
    rng = np.random.default_rng(0)
    num_wrong, num_runs = 0, 400
    for _ in range(num_runs):
        first, second = rng.normal(size=(2, 60)).tolist()
        num_wrong += any(stats.faster_of(first[:r], second[:r], 0.05) is not None for r in range(61))
    assert num_wrong / num_runs <= 0.05


@given(st.floats(0.5, 100.0), st.integers(0, 2**32))
def test_what_is_faster_in_every_round_is_found_soon_whatever_the_drift(gap, seed):
    slow = np.random.default_rng(seed).uniform(100.0, 1000.0, size=11)
    fast = slow - gap
    assert stats.faster_of(slow[:10].tolist(), fast[:10].tolist(), POLICY.duel_error) is None
    assert stats.faster_of(slow.tolist(), fast.tolist(), POLICY.duel_error) == 1
    assert stats.faster_of(fast.tolist(), slow.tolist(), POLICY.duel_error) == 0


@given(st.floats(1e-4, 0.5))
def test_fewer_rounds_than_decide_name_nobody(error_rate):
    fewest = stats.min_rounds(error_rate)
    assert stats.faster_of([1.0] * fewest, [2.0] * fewest, error_rate) == 0
    assert stats.faster_of([1.0] * (fewest - 1), [2.0] * (fewest - 1), error_rate) is None
    assert stats.min_rounds(POLICY.duel_error) == 11


def test_rounds_without_a_difference_say_nothing():
    assert stats.faster_of([1.0] * 99, [1.0] * 99, 0.5) is None
    assert stats.evidence(0, 0) == 1.0


# ---- a ranking


def _rounds(times_us, num, rng, noise=0.001):
    """Two that are timed in the same rounds of a GPU that drifts."""
    drift = rng.uniform(0.9, 1.1, size=num)
    return [tuple((t * drift * rng.normal(1, noise, size=num)).tolist()) for t in times_us]


def _decide(entered: Ranking, truth: dict[str, float], rng, num_most=10_000) -> list[ranking.PairComparison]:
    """Fight until nothing is left to decide."""
    over = []
    for _ in range(num_most):
        comparison = entered.next_comparison()
        if comparison is None:
            return over
        entered.take(comparison, *_rounds([truth[e.key] for e in comparison.pair], 6, rng))
        over += [comparison] if comparison.is_over else []
    raise AssertionError("duels without an end")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.integers(0, 2**32))
def test_comparisons_find_the_fastest_of_those_that_trials_could_not_tell_apart(steps, seed):
    rng = np.random.default_rng(seed)
    truth = {str(i): 100.0 + 0.2 * step for i, step in enumerate(steps)}
    entered = Ranking(POLICY)
    for key, time_us in truth.items():
        entered.enter(key, {}, time_us * rng.uniform(0.995, 1.005))
    over = _decide(entered, truth, rng)
    incumbent = entered.incumbent
    assert incumbent is not None and not incumbent.has_lost
    # the truly fastest or one that ties with it; a wrong verdict, one in a hundred comparisons, costs little
    assert truth[incumbent.key] <= min(truth.values()) * 1.01
    for comparison in over:
        assert comparison.num_rounds <= POLICY.most_rounds + 6
        assert comparison.winner is not None or comparison.num_rounds >= POLICY.most_rounds


def test_a_lucky_trial_is_found_out_and_its_time_put_right():
    entered = Ranking(POLICY)
    truth = {"good": 100.0, "lucky": 102.0, "far": 110.0}
    assert entered.enter("good", {}, 100.0)
    assert entered.enter("lucky", {}, 99.0)
    assert not entered.enter("far", {}, 110.0)
    over = _decide(entered, truth, np.random.default_rng(0))
    assert [{e.key for e in comparison.pair} for comparison in over] == [{"good", "lucky"}]
    assert entered.incumbent.key == "good"
    has_lost, time_us = entered.rank("lucky", 99.0)
    assert has_lost
    assert time_us / entered.incumbent.time_us == pytest.approx(1.02, rel=0.002)
    assert entered.rank("far", 110.0) == (False, 110.0)
    assert entered.rank("of another search", 5.0) == (False, 5.0)


def test_a_load_that_makes_a_kernel_slower_neither_decides_nor_corrects():
    """In a fiftieth of the real comparisons one was slower by 2 to 8 % in all rounds of a batch, never in
    two."""
    entered, rng = Ranking(POLICY), np.random.default_rng(0)
    entered.enter("best", {}, 100.0)
    entered.enter("other", {}, 101.0)
    comparison = entered.next_comparison()
    for slower in (1.07, 1.0, 1.0, 1.0):  # of the better one's loads
        assert entered.incumbent.key == "best"
        entered.take(comparison, *_rounds([100.0 * slower, 101.0], 6, rng))
    while not comparison.is_over:
        entered.take(comparison, *_rounds([100.0, 101.0], 6, rng))
    assert entered.incumbent.key == "best" and comparison.winner == 0
    assert comparison.ratio == pytest.approx(1.01, rel=0.003)


def test_an_undecided_comparison_is_not_fought_by_two_at_once():
    entered = Ranking(POLICY)
    for number in range(4):
        entered.enter(str(number), {}, 100.0 + number / 10)
    under_way = []
    while (comparison := entered.next_comparison(under_way)) is not None:
        under_way.append(comparison)
    pairs = [{e.key for e in comparison.pair} for comparison in under_way]
    assert pairs == [{"0", "1"}, {"0", "2"}, {"0", "3"}]
    entered.is_closed = True
    assert entered.next_comparison() is None


def test_verdicts_that_contradict_each_other_leave_a_incumbent():
    """Queued together, three may beat each other in a ring."""
    entered = Ranking(POLICY)
    for number in range(3):
        entered.enter(str(number), {}, 100.0)
    faster, slower = (1.0,) * 20, (2.0,) * 20
    pairs = [("0", "1"), ("1", "2"), ("2", "0")]
    for pair in pairs:
        entered.restore(ComparisonRecord(pair, (faster, slower), 0))
    assert entered.incumbent is not None and not entered.incumbent.has_lost


# ---- in a search


class Duelling(FakeTarget):
    """A target that lies in trials, by up to a percent, and tells the truth in comparisons."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.fought: list[tuple[dict, dict]] = []
        self.is_deadly = False
        self.num_rounds = 0
        self._rng = np.random.default_rng(1)

    def measure(self, gemm, point) -> Measurement:
        if self._outcome(point) is not Outcome.OK:
            return super().measure(gemm, point)
        luck = zlib.crc32(point_key(point).encode()) % 7 - 3
        time_us = bowl_us(point) * (1 + 0.01 * luck / 3)
        return Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,), verify_s=0.1, measure_s=0.1)

    def compare_pair(self, gemm, points, rounds, shuffle):
        self.fought.append(tuple(map(dict, points)))
        self.num_rounds += rounds
        future: Future = Future()
        times = [bowl_us(point) for point in points]
        samples = ((), ()) if self.is_deadly else tuple(_rounds(times, rounds, self._rng))
        future.set_result(Rounds(samples, Baseline(None), seconds=0.01 * rounds))
        return future


def test_a_search_refines_and_still_ends_with_as_many_trials(store):
    target = Duelling(product_space(6, 6, 4, words=3))
    assert isinstance(target, Refining) and not isinstance(FakeTarget(), Refining)
    result = tune(target, store, [GEMM], Options(trials=60))
    assert (result.reason, result.num_new) == (StopReason.TRIALS, 60)
    assert target.fought
    assert result.ledger.refine_s == pytest.approx(0.01 * target.num_rounds)
    comparisons = store.comparisons(study_of(store, target, GEMM))
    assert comparisons
    for comparison in comparisons:
        first, second = comparison.samples_us
        assert len(first) == len(second) > 0
        assert comparison.winner == stats.faster_of(first, second, POLICY.duel_error)
    assert len({frozenset(comparison.keys) for comparison in comparisons}) == len(comparisons), (
        "a duel that is over stays over"
    )


def test_the_best_is_what_comparisons_found_and_resuming_knows_it(store):
    target, notes = Duelling(product_space(6, 6, 4, words=3)), []

    def on_event(event):
        if isinstance(event, TrialDone):
            notes.append(event.best)

    tune(target, store, [GEMM], Options(trials=100), on_event)
    trials = store.trials(study_of(store, target, GEMM))
    fastest_us = min(bowl_us(trial.point) for trial in trials)
    assert bowl_us(notes[-1].point) <= fastest_us * 1.005
    target.fought.clear()
    tune(target, store, [GEMM], Options(trials=101), on_event)
    assert bowl_us(notes[-1].point) <= fastest_us * 1.005
    known = {frozenset(comparison.keys) for comparison in store.comparisons(study_of(store, target, GEMM))}
    assert len(known) == len(store.comparisons(study_of(store, target, GEMM))), "no duel is fought again"


def test_a_comparison_that_brings_the_worker_down_ends_refining_not_the_search(store):
    target = Duelling(product_space(6, 6, 4, words=3))
    target.is_deadly = True
    result = tune(target, store, [GEMM], Options(trials=40))
    assert result.num_new == 40
    assert len(target.fought) <= POLICY.ahead_s / POLICY.batch_s
    assert result.ledger.refine_s == 0
    assert store.comparisons(study_of(store, target, GEMM)) == []


def test_the_ledger_tells_the_share_of_the_gpu(store):
    result = tune(Duelling(), store, [GEMM], Options(trials=30))
    notes = result.ledger.to_dict()
    busy_s = sum(notes[name] for name in ("problems_s", "verify_s", "measure_s", "refine_s"))
    assert notes["gpu_share"] == pytest.approx(busy_s / notes["search_s"])
    assert notes["gpu_idle_s"] == pytest.approx(max(0.0, notes["search_s"] - busy_s))


def test_problems_that_this_search_has_prepared_are_work_of_the_gpu(store):
    class Prepared(FakeTarget):
        prepared_s = 100.0  # of earlier searches

        def baseline(self, gemm):
            self.prepared_s += 0.25
            return super().baseline(gemm)

    ledger = tune(Prepared(), store, [GEMM, Gemm(8, 8, 8)], Options(trials=5)).ledger
    assert ledger.problems_s == pytest.approx(0.5)
    assert ledger.gpu_busy_s == pytest.approx(0.5 + ledger.verify_s + ledger.measure_s)


# ---- in the store


def test_comparisons_come_back_as_they_were_stored(store):
    target = FakeTarget()
    study, other = study_of(store, target, GEMM), study_of(store, target, Gemm(8, 8, 8))
    for key in "ab":
        store.add_trial(study, key, {"a": key}, Measurement(Outcome.OK, time_us=1.0), "seed")
    records = [
        ComparisonRecord(keys, ((1.0, 2.0), (1.5, 2.5)), winner)
        for keys, winner in itertools.product([("a", "b"), ("b", "a")], [0, 1, None])
    ]
    for record in records:
        store.add_comparison(study, record)
    assert store.comparisons(study) == records
    assert store.comparisons(other) == []


# ---- in the summary


def test_the_summary_says_where_the_seconds_went():
    ledger = Ledger(compile_s=400.0, verify_s=1.0, measure_s=5.0, refine_s=12.0, store_s=2.0, search_s=30.0)
    notes = ledger_text(ledger.to_dict())
    assert "GPU busy 60.0% of 30.0 s" in notes
    assert "12.0 s timing the best against each other" in notes
    assert "12.0 s idle" in notes
    assert "400.0 s; storing: 2.0 s" in notes
    assert "GPU busy - of 0.0 s" in ledger_text(Ledger().to_dict())

"""The final: decided or declared a tie, disturbances and energy kept, in a fresh process."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from fake_target import ENVIRONMENT, FakeTarget, bowl_us, product_space

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import ENERGY_S, Discarded
from autotune.search import Options, study_of, tune
from autotune.search.compare import final
from autotune.search_policy import SearchPolicy
from autotune.target import Baseline, Rounds, point_key

POLICY = SearchPolicy()
LOAD_ROUNDS = POLICY.most_rounds // (final.NUM_LOOKS * final.NUM_LOADS)
LOOK_ROUNDS = LOAD_ROUNDS * final.NUM_LOADS
GEMM, OTHER = Gemm(64, 64, 64), Gemm(128, 64, 64)


@pytest.fixture
def records(store):
    """A target, and trials of its points with these numbers, fastest first."""

    def make(*numbers):
        target = FakeTarget(product_space(6, 6))
        study = study_of(store, target, GEMM)
        for number in numbers:
            point = target.space(GEMM).point(number)
            store.add_trial(study, point_key(point), point, target.measure(GEMM, point), "seed")
        return target, store.best(study, 8)

    return make


def _noisy(target, noise):
    """Rounds of this relative noise around the target's times."""
    rng = np.random.default_rng(3)

    def compare(gemm, points, rounds):
        target.num_compared += 1
        times = [target._time_us(p) * (1 + noise * rng.standard_normal(rounds)) for p in points]
        return Rounds(tuple(tuple(map(float, row)) for row in times), Baseline(110.0, (110.0,) * rounds))

    target.compare = compare


class Clocked(FakeTarget):
    """As a GPU: each shape is prepared in a fresh process, and finals take longer than trials let expect.
    Kernels of every fifth shape take ten times as long."""

    def __init__(self) -> None:
        super().__init__(product_space(8, 8, 8, words=3))
        self.environment = replace(ENVIRONMENT, recorded_on="")
        self.num_points: list[int] = []
        self._prepared: set[Gemm] = set()

    def submit(self, gemm, point, cutoff_us):
        found = self.measure(gemm, point)
        found = replace(found, compile_s=0.0, verify_s=0.003, measure_s=0.006 * self._slow(gemm))
        self._now += 0.6 + 0.01 * self._slow(gemm)
        self.submitted.append((gemm, dict(point)))
        future = Future()
        future.set_result(found)
        return future

    def _slow(self, gemm):
        return 1 if gemm.m // 64 % 5 else 10

    def compare(self, gemm, points, rounds):
        self._now += 0.0 if gemm in self._prepared else 0.1
        self._now += 1.3 * (0.003 * len(points) + (rounds + 1) * (len(points) + 1) * 0.002 * self._slow(gemm))
        self._prepared.add(gemm)
        self.num_points.append(len(points))
        return super().compare(gemm, points, rounds)

    def joules(self, gemm, points):
        self._now += len(points) * (ENERGY_S + 0.01)
        return super().joules(gemm, points)

    def renew(self):
        super().renew()
        self._now += POLICY.renew_s


@pytest.mark.parametrize(("seconds", "least"), [(9, 0), (24, 6), (80, 12)])
def test_finals_end_within_the_seconds_and_tell_what_they_leave_out(store, seconds, least):
    target, gemms = Clocked(), [Gemm(64 * number, 64, 64) for number in range(1, 13)]
    found = tune(target, store, gemms, Options(seconds=seconds))
    finals = [shape.gemm for shape in found.shapes if shape.final is not None]
    assert found.elapsed_s == target.now() <= 1.02 * seconds
    assert len(finals) >= least and not set(finals) & set(found.without_final)
    assert len(finals) + len(found.without_final) + len(found.not_started) == len(gemms)
    assert target.num_renewed == (seconds == 80)  # nor is a process begun that takes the seconds of finals
    if seconds == 80:
        assert target.num_points[0] == POLICY.num_finalists and found.elapsed_s > 0.9 * seconds


@pytest.mark.parametrize(("seconds", "num_renewed"), [(5, 0), (12, 0), (30, 1)])
def test_a_single_shape_has_its_final_in_the_worker_at_hand_if_there_is_no_time_for_another(
    store, seconds, num_renewed
):
    target = Clocked()
    found = tune(target, store, [GEMM], Options(seconds=seconds))
    assert found.shapes[0].final is not None and not found.without_final
    assert target.num_renewed == num_renewed and found.elapsed_s <= 1.02 * seconds


def test_a_single_shape_has_its_whole_final(store):
    target = Clocked()
    found = tune(target, store, [GEMM], Options(seconds=30))
    assert found.ledger.search_s > 24 and found.elapsed_s <= 30.3 and not found.without_final
    assert target.num_points[0] == POLICY.num_finalists and found.shapes[0].final is not None


def test_the_final_ranks_by_interleaved_rounds(records):
    target, finalists = records(*range(8))
    race = final.race(target, GEMM, finalists[::-1], POLICY)
    times_us = [bowl_us(e.point) for e in race.entries]
    assert times_us == sorted(times_us) and len(times_us) == 8
    assert [e.rank for e in race.entries] == list(range(1, 9))
    assert race.num_tied == 1 and race.entries[0].is_tied
    assert (target.num_compared, target.num_weighed) == (2, 0)  # decided at one look, no energy to compare
    assert len(race.baseline.samples_us) == LOOK_ROUNDS


def test_equals_are_declared_tied_as_soon_as_they_are_known_to_be_equal(records):
    target, finalists = records(0, 1, 2)
    target._time_us = lambda point: 100.0 if point["a"] == 1 else 120.0
    race = final.race(target, GEMM, finalists, POLICY)
    tied = [e for e in race.entries if e.is_tied]
    assert {e.key for e in tied} == {e.key for e in race.entries if e.point["a"] == 1} and len(tied) > 1
    assert target.num_compared == 2
    assert [e.joules for e in tied] == [100.0 * 1e-4] * len(tied)
    assert {e.joules for e in race.entries if not e.is_tied} <= {None}


def test_what_noise_hides_is_tied_after_the_last_round(records):
    target, finalists = records(0, 1, 2)
    target._time_us = lambda point: 100.0
    _noisy(target, 0.05)
    race = final.race(target, GEMM, finalists, POLICY)
    assert race.num_tied == 3
    assert {len(e.samples_us) for e in race.entries} == {final.NUM_LOOKS * LOOK_ROUNDS}


def test_the_slower_drop_out_while_the_close_ones_go_on(records):
    target, finalists = records(0, 1, 2)
    base = {t.key: us for t, us in zip(finalists, (100.0, 100.4, 130.0), strict=True)}
    target._time_us = lambda point: base[point_key(point)]
    _noisy(target, 0.01)
    race = final.race(target, GEMM, finalists, POLICY)
    rounds = {e.key: len(e.samples_us) for e in race.entries}
    assert rounds[finalists[2].key] == LOOK_ROUNDS < rounds[finalists[0].key]
    assert race.entries[-1].key == finalists[2].key


def test_a_load_that_makes_a_kernel_slower_does_not_drop_it(records):
    """In all rounds after one load a kernel may be slower by several percent (decision 0064)."""
    target, finalists = records(0, 1, 2)
    base = {t.key: us for t, us in zip(finalists, (100.0, 102.0, 103.0), strict=True)}
    target._time_us = lambda point: base[point_key(point)] * (1.05 if slow_load(point) else 1.0)
    _noisy(target, 0.002)

    def slow_load(point):
        return target.num_compared == 1 and point_key(point) == finalists[0].key

    race = final.race(target, GEMM, finalists, POLICY)
    assert [e.key for e in race.entries] == [t.key for t in finalists]


def test_a_finalist_that_fails_now_is_out(records):
    target, finalists = records(0, 1, 2)
    honest = target.compare

    def compare(gemm, points, rounds):
        found = honest(gemm, points, rounds)
        pairs = zip(points, found.samples_us, strict=True)
        return replace(found, samples_us=tuple(() if p == finalists[0].point else s for p, s in pairs))

    target.compare = compare
    race = final.race(target, GEMM, finalists, POLICY)
    assert [e.key for e in race.entries] == [t.key for t in finalists[1:]]
    requested = []

    def fail_all(gemm, points, rounds):
        requested.append(len(points))
        return Rounds(((),) * len(points), Baseline(None))

    target.compare = fail_all
    assert final.race(target, GEMM, finalists, POLICY) is None
    assert requested == [3]  # nobody is left to load again


def test_a_final_can_be_cut_short(records):
    target, finalists = records(0, 1)
    target._time_us = lambda point: 100.0
    race = final.race(target, GEMM, finalists, POLICY, should_stop=lambda: True)
    assert (target.num_compared, target.num_weighed, race.num_tied) == (2, 0, 2)


def test_a_final_without_seconds_looks_once_and_is_a_result(records):
    target, trials = records(20, 21)
    _noisy(target, 0.3)
    found = final.race(target, GEMM, trials, POLICY, left_s=lambda: -1.0)
    assert found is not None and target.num_compared == final.NUM_LOADS


def test_disturbed_rounds_are_kept_and_told(records, store):
    target, finalists = records(0, 1)
    honest, left_out = target.compare, Discarded((500.0,), ("neighbour",))

    def compare(gemm, points, rounds):
        found = honest(gemm, points, rounds)
        return replace(found, marks=("sw_power_cap",), discarded=((left_out,),) * len(points))

    target.compare = compare
    race = final.race(target, GEMM, finalists, POLICY)
    assert race.marks == ("sw_power_cap",)
    study = study_of(store, target, GEMM)
    store.set_final(study, race.entries, race.baseline, race.marks)
    kept = store.final(study)
    assert kept.marks == race.marks
    assert kept.entries == race.entries
    assert set(kept.entries[0].discarded) == {left_out}


def test_finals_run_in_one_fresh_process_and_none_is_started_for_nothing(store):
    target = FakeTarget()
    tune(target, store, [GEMM, OTHER], Options(trials=20))
    assert target.num_renewed == 1
    tune(target, store, [GEMM, OTHER], Options(trials=20))
    assert target.num_renewed == 1  # nothing is new, nothing is raced

"""The final: decided or declared a tie, disturbances and energy kept, in a fresh process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_target import FakeTarget, bowl_us, product_space

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import ENERGY_S, Discarded
from autotune.search import Options, study_of, tune
from autotune.search.compare import final
from autotune.search.compare.final_results import Finals
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


@dataclass
class Clock:
    """What is left of the seconds granted."""

    left_s: float | None

    def __call__(self) -> float | None:
        return self.left_s


@pytest.mark.parametrize(
    ("left_s", "measured"),
    [(None, [True] * 4), (40.0, [True] * 4), (8.0, [False, True, False, True]), (-5.0, [False] * 4)],
)
def test_finals_share_what_is_left_and_leave_out_energy_first(monkeypatch, left_s, measured):
    """Four finals of 0.5 s with six tied each, whose energy takes 2.4 s."""
    clock, found = Clock(left_s), []

    def race(target, gemm, finalists, policy, should_stop, on_failure, has_seconds):
        weighs = has_seconds(6 * ENERGY_S)
        found.append(weighs)
        if clock.left_s is not None:
            clock.left_s -= 0.5 + (2.4 if weighs else 0)

    monkeypatch.setattr(final, "race", race)
    finals = Finals(SimpleNamespace(renew=list), None, POLICY, lambda event: None, lambda: False, clock)
    monkeypatch.setattr(finals, "_finalists", lambda shape: ["a", "b"])
    finals.run([SimpleNamespace(gemm=GEMM)] * 4)
    assert found == measured


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
    found = final.race(target, GEMM, trials, POLICY, has_seconds=lambda seconds: False)
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

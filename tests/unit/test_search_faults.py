"""Faults that a whole search meets: what is recorded, what goes on, and what is never run again."""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from fake_target import FakeTarget, product_space

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Failure, Outcome
from autotune.files.errors import EnvironmentProblem, StoreError
from autotune.report import numbers
from autotune.search import Options, study_of, tune
from autotune.search.progress import TrialDone
from autotune.store import Store, repository
from autotune.target import point_key

GEMM, OTHER = Gemm(64, 64, 64), Gemm(128, 64, 64)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "trials.db") as opened:
        yield opened


def keys_of(target, gemm=GEMM):
    return {point_key(point) for requested, point in target.submitted if requested == gemm}


# ---- workers brought down


class Treacherous(FakeTarget):
    """The config that is fastest alone fails in the final."""

    failure = Failure(Outcome.FAULTED, "the GPU worker died: CUDA_ERROR_ILLEGAL_ADDRESS (700)")

    def compare(self, gemm, points, num_rounds):
        self.by_key = [*getattr(self, "by_key", []), [point_key(point) for point in points]]
        worst = min(range(len(points)), key=lambda i: self._time_us(points[i]))
        if self._time_us(points[worst]) > self.best_us:
            return super().compare(gemm, points, num_rounds)
        rest = [point for i, point in enumerate(points) if i != worst]
        rounds = super().compare(gemm, rest, num_rounds)
        samples = list(rounds.samples_us)
        samples.insert(worst, ())
        return replace(rounds, samples_us=tuple(samples), discarded=(), failures={worst: self.failure})


def test_a_finalist_that_brings_the_worker_down_is_recorded_and_never_raced_again(store):
    target = Treacherous(product_space(4, 4))
    target.best_us = min(target._time_us(target._space.point(i)) for i in range(len(target._space)))
    result = tune(target, store, [GEMM], Options(trials=1000))
    study = study_of(store, target, GEMM)
    (failed,) = store.trials(study, is_failed=True)
    assert (failed.measurement.outcome, failed.measurement.reason) == (Outcome.FAULTED, target.failure.reason)
    assert failed.measurement.time_us is None and failed.measurement.samples_us
    assert failed.key not in {entry.key for entry in result.shapes[0].final.entries}
    assert result.shapes[0].best.key != failed.key
    assert sum(failed.key in by_key for by_key in target.by_key) == 1
    again = FakeTarget(product_space(4, 4))
    tune(again, store, [GEMM], Options(trials=1000))
    assert failed.key not in keys_of(again)


def test_memory_that_does_not_suffice_for_all_finalists_condemns_none(store):
    target = Treacherous(product_space(4, 4))
    target.best_us, target.failure = 1e9, Failure(Outcome.OUT_OF_MEMORY, "partial sums need 9 GiB")
    tune(target, store, [GEMM], Options(trials=1000))
    assert store.trials(study_of(store, target, GEMM), is_failed=True) == []


@pytest.mark.parametrize("outcome", [Outcome.FAULTED, Outcome.TIMED_OUT, Outcome.COMPILE_CRASHED])
def test_what_killed_on_one_shape_is_not_run_on_another_by_a_later_search(store, outcome):
    def ends(point):
        return outcome if point["a"] == 2 else Outcome.OK

    first = FakeTarget(product_space(4, 4), outcome=ends)
    tune(first, store, [GEMM])
    crash_points = {trial.key for trial in store.trials(study_of(store, first, GEMM), is_failed=True)}
    assert crash_points
    second = FakeTarget(product_space(4, 4))
    result = tune(second, store, [OTHER])
    assert keys_of(second, OTHER) == keys_of(first) - crash_points
    assert result.shapes[0].num_failed == 0


# ---- the machine


def test_what_the_machine_lacks_ends_the_search_with_all_that_was_measured(store):
    class Poor(FakeTarget):
        def submit(self, gemm, point, cutoff_us):
            if len(self.submitted) < 7:
                return super().submit(gemm, point, cutoff_us)
            future: Future = Future()
            future.set_exception(EnvironmentProblem("operand sets need 900 GiB of GPU memory"))
            return future

    with pytest.raises(EnvironmentProblem, match="900 GiB"):
        tune(Poor(capacity=3), store, [GEMM], Options(trials=30))
    assert tune(FakeTarget(), store, [GEMM], Options(trials=30)).num_new == 23


# ---- the database


def test_a_database_that_stays_locked_ends_the_search_and_costs_the_trial_in_flight(tmp_path):
    path = tmp_path / "trials.db"
    other = sqlite3.connect(path, isolation_level=None)

    def lock(event):
        if isinstance(event, TrialDone) and event.num_done == 5:
            other.execute("BEGIN IMMEDIATE")

    with Store.open(path, timeout_s=0.2) as store:
        with pytest.raises(StoreError, match=r"trials\.db is locked by .*then run this again"):
            tune(FakeTarget(), store, [GEMM], Options(trials=20), lock)
        other.execute("ROLLBACK")
        result = tune(FakeTarget(), store, [GEMM], Options(trials=20))
    other.close()
    assert (result.num_new, result.shapes[0].num_trials) == (15, 20)


def test_a_reader_in_the_middle_of_a_long_look_stops_no_search(tmp_path):
    path = tmp_path / "trials.db"
    with Store.open(path, timeout_s=0.2) as store:
        tune(FakeTarget(), store, [GEMM], Options(trials=5))
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM trial").fetchone() == (5,)
        assert tune(FakeTarget(), store, [GEMM], Options(trials=25)).num_new == 20
        assert reader.execute("SELECT count(*) FROM trial").fetchone() == (5,)
        reader.close()


# ---- the system's clock


def test_a_clock_that_is_set_changes_no_search(tmp_path, monkeypatch):
    """By a day back and forth between trials: dates are told, durations and orders never come of them."""
    jumps = [timedelta(days=day) for day in (0, -1, 3, -400, 0.5)]
    calls: list[int] = []

    def jumping() -> datetime:
        calls.append(0)
        return datetime(2026, 11, 21, tzinfo=UTC) + jumps[len(calls) % len(jumps)]

    runs = []
    for name in ("steady", "jumping"):
        if name == "jumping":
            monkeypatch.setattr(repository, "utc_now", jumping)
        target = FakeTarget()
        with Store.open(tmp_path / f"{name}.db") as store:
            result = tune(target, store, [GEMM], Options(trials=12))
            result = tune(target, store, [GEMM], Options(seconds=20))
            study = study_of(store, target, GEMM)
            trials = store.trials(study)
            assert store.latest_studies(target.environment) == [study]
            elapsed = numbers.elapsed_s(trials, is_recorded=False)
            known = [(trial.key, trial.measurement) for trial in trials]
            runs.append((known, result.elapsed_s, store.final(study).entries))
    assert len(calls) > 20
    assert runs[0] == runs[1]
    assert elapsed == sorted(elapsed) and elapsed[0] >= 0

"""The numbers of a report against statements of them made otherwise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from study_cases import GEMM, RECORDED, STARTED, at_s, failed, ok_in, study_of

from autotune.facts.accuracy_class import FP32, STRICT
from autotune.facts.device import KNOWN
from autotune.facts.measurement import Measurement, Outcome
from autotune.kernel.config import Config, brief
from autotune.kernel.templates import limit_us, source_of, tflops
from autotune.report import numbers
from autotune.report.documents import labels, what_follows
from autotune.report.importance import MIN_TRIALS, explained_share, importance
from autotune.store import Final, FinalEntry
from autotune.target import Baseline

# -------------------------------------------------------------------------------- importance


@given(st.lists(st.tuples(st.floats(1.0, 1e6), st.integers(0, 4)), min_size=2, max_size=60))
@example([(163.0, 0), (163.0, 0), (163.0, 1)])  # alike; in one unit the mean of their logs is rounded away
@example([(163.0, 0), (163.0, 0), (163.0 + 1e-12, 1)])  # alike but for rounding
def test_a_share_is_a_share_and_does_not_depend_on_names_or_units(trials: list[tuple[float, int]]) -> None:
    times, values = [time for time, _ in trials], [value for _, value in trials]
    logs = np.log(times)
    share = explained_share(values, logs)
    assert 0.0 <= share <= 1.0
    renamed = explained_share([f"word {value}" for value in values], logs)
    in_other_units = explained_share(values, np.log(np.array(times) * 1000))
    assert renamed == share
    assert in_other_units == pytest.approx(share, abs=1e-6)


@given(st.lists(st.sampled_from("abc"), min_size=8, max_size=40).filter(lambda v: len(set(v)) > 1))
def test_a_parameter_that_alone_decides_explains_all(values: list[str]) -> None:
    logs = np.array([{"a": 0.0, "b": 1.0, "c": 3.0}[value] for value in values])
    assert explained_share(values, logs) == pytest.approx(1.0)


def test_chance_explains_nothing_however_many_values_there_are() -> None:
    """The plain share of the variance between 10 values of 40 trials is a quarter by chance alone."""
    rng = np.random.default_rng(0)
    shares = [explained_share(rng.integers(0, 10, 40).tolist(), rng.normal(size=40)) for _ in range(300)]
    assert np.mean(shares) < 0.06


def test_the_share_of_two_independent_parameters_is_what_made_the_times() -> None:
    rng = np.random.default_rng(1)
    points = [{"big": int(b), "small": int(s), "none": int(z), "fixed": 1}
              for b, s, z in rng.integers(0, 2, (4000, 3))]  # fmt: skip
    logs = [2.0 * p["big"] + 1.0 * p["small"] for p in points]  # variances 4 : 1
    found = importance(points, np.exp(logs).tolist())
    assert [parameter.name for parameter in found] == ["big", "small", "none"]
    assert [parameter.share for parameter in found] == pytest.approx([0.8, 0.2, 0.0], abs=0.03)


def test_the_values_of_a_parameter_stand_in_their_order_with_their_trials() -> None:
    points = [{"a": (16, 4, 8)[i % 3], "w": "xy"[i % 2]} for i in range(MIN_TRIALS + 1)]
    times = [100.0 + i for i in range(len(points))]
    by_name = {parameter.name: parameter.values for parameter in importance(points, times)}
    assert [v.value for v in by_name["a"]] == [4, 8, 16]
    assert [v.value for v in by_name["w"]] == ["x", "y"]
    assert sum(v.num_trials for v in by_name["a"]) == len(points)
    assert (by_name["a"][2].best_us, by_name["a"][0].best_us) == (100.0, 101.0)
    assert by_name["w"][1].median_us == np.median(times[1::2])
    assert importance(points[: MIN_TRIALS - 1], times[: MIN_TRIALS - 1]) == ()


def test_no_trials_or_equal_times_are_explained_by_nothing() -> None:
    assert explained_share([], np.array([])) == 0.0
    assert explained_share([1, 2], np.array([0.0, 1.0])) == 0.0, "as many values as trials"
    assert explained_share([1, 1, 2, 2], np.ones(4)) == 0.0


# ----------------------------------------------------------------------------------- labels


def test_labels_tell_apart_what_shares_a_description() -> None:
    points = [Config(**values).to_dict() for values in ({}, {"pad": 1}, {"pad": 1, "vec_c": 1}, {"bm": 32})]
    first, *_, last = map(brief, points)
    told = ("pad=4 vec_c=4", "pad=1 vec_c=4", "pad=1 vec_c=1")
    assert labels(points) == [*(f"{first} {one}" for one in told), last]


# ----------------------------------------------------------------------------------- history


@given(st.lists(st.one_of(st.none(), st.floats(1.0, 1e3)), max_size=30))
def test_the_best_so_far_is_the_running_minimum(times: list[float | None]) -> None:
    trials = [at_s(i, failed() if t is None else ok_in(t), i) for i, t in enumerate(times)]
    study = study_of(trials)
    running, expected = math.inf, []
    for number, time_us in enumerate(times, 1):
        if time_us is not None and time_us < running:
            running = time_us
            expected.append((number, time_us))
    assert [(step.number, step.time_us) for step in study.best_so_far] == expected
    assert (study.num_trials, study.num_failed) == (len(times), times.count(None))
    assert len(study.timed) == len(times) - times.count(None)


def test_pauses_between_runs_are_not_searching_time() -> None:
    seconds = (0.0, 0.5, 2.0, 86_402.0, 86_403.0, 86_402.5)  # a day off, and a clock set back
    trials = [at_s(i, ok_in(10.0), s) for i, s in enumerate(seconds)]
    assert numbers.elapsed_s(trials, is_recorded=False) == pytest.approx([0.0, 0.5, 2.0, 2.0, 3.0, 3.0])


def test_a_recording_counts_what_it_recorded_not_how_fast_it_was_replayed() -> None:
    spent = ok_in(10.0, compile_s=0.5, verify_s=0.1, measure_s=0.4)
    trials = [at_s(i, spent, i * 1e-3) for i in range(4)]
    study = study_of(trials, environment=RECORDED)
    assert [trial.elapsed_s for trial in study.timed] == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_the_ledger_adds_up_what_trials_took() -> None:
    trials = [
        at_s(0, ok_in(10.0, compile_s=2.0, verify_s=0.1, measure_s=0.3), 0.0),
        at_s(1, ok_in(12.0, compile_s=0.0, verify_s=0.1, measure_s=0.1, is_cut_short=True), 1.0),
        at_s(2, Measurement(Outcome.COMPILE_FAILED, "no", compile_s=1.0), 2.0),
    ]
    study = study_of(trials)
    ledger = study.ledger
    assert (ledger.compile_s, ledger.verify_s, ledger.measure_s) == pytest.approx((3.0, 0.2, 0.4))
    assert (ledger.num_compiled, study.num_cut_short, ledger.elapsed_s) == (2, 1, 2.0)
    assert ledger.gpu_share == pytest.approx(0.3)
    assert study_of(trials[:1]).ledger.gpu_share is None, "one trial takes no time from trial to trial"


def test_the_final_is_told_before_trials_and_its_cublas_before_an_older_one() -> None:
    entries = tuple(FinalEntry(f"a={n}", {"a": n}, n, n < 3, 40.0 + n, (40.0 + n,)) for n in (1, 2, 3))
    final = Final(entries, Baseline(44.0), STARTED)
    study = study_of([at_s(1, ok_in(40.5)), at_s(2, ok_in(39.0))], final=final)
    assert (study.best_us, study.best_point, study.cublas_us) == (41.0, {"a": 1}, 44.0)
    without = study_of([at_s(1, ok_in(40.5)), at_s(2, ok_in(39.0))])
    assert (without.best_us, without.best_point, without.cublas_us) == (39.0, {"a": 2}, 50.0)
    limit_us = GEMM.limit_us(KNOWN["h200"].fma_tflops, KNOWN["h200"].bandwidth_gbs)
    assert without.share_of_limit == limit_us / 39.0
    assert without.cublas_share_of_limit == limit_us / 50.0
    assert without.speedup == 50.0 / 39.0
    unknown = study_of([at_s(1, ok_in(40.5))], limits=None, cublas_us=None)
    assert (unknown.limit_us, unknown.share_of_limit, unknown.speedup) == (None, None, None)


def test_the_limit_is_that_of_the_units_that_a_class_multiplies_with() -> None:
    limits, strict = KNOWN["h200"], study_of([at_s(1, ok_in(39.0))])
    other = replace(strict.records, study=replace(strict.study, source_hash=source_of(FP32)))
    fast = numbers.StudyNumbers(other)
    for study, accuracy in ((strict, STRICT), (fast, FP32)):
        assert study.limit_us == limit_us(GEMM, limits, accuracy)
        assert what_follows(study)["peak_tflops"] == tflops(accuracy, limits)
    assert fast.limit_us < 0.4 * strict.limit_us


def test_failures_that_differ_in_numbers_only_are_one_group() -> None:
    reasons = ("96 bytes spilled", "128 bytes spilled", "C[3] is 1.5e-3, not 2.0", "C[9] is nan, not 2.0")
    trials = [at_s(i, Measurement(Outcome.SPILLED, reason)) for i, reason in enumerate(reasons)]
    trials.append(at_s(9, Measurement(Outcome.WRONG_RESULT, "96 bytes spilled")))
    groups = numbers.failure_groups(trials)
    assert [(g.outcome, g.count) for g in groups] == [
        (Outcome.SPILLED, 2), (Outcome.SPILLED, 1), (Outcome.SPILLED, 1), (Outcome.WRONG_RESULT, 1),
    ]  # fmt: skip
    assert (groups[0].reason, groups[0].key) == ("128 bytes spilled", "a=1"), "of the newest"

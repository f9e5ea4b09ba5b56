"""The pipeline on a fake target: every way to fail, any order of answers, resuming, stopping, dying."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from fake_target import ENVIRONMENT, FAILURES, FakeTarget, bowl_us, fails_by_turns, product_space
from hypothesis import given, settings
from hypothesis import strategies as st
from kills import default_signals

from autotune.facts.device import known_limits
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.facts.stats import Patience
from autotune.files.errors import DeviceLost, UsageError
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import Factor, FeasibleSet, feasible_set
from autotune.search import Options, StopReason, study_of, tune
from autotune.search.progress import FinalDone, ShapeStarted, Stopping, TrialDone
from autotune.search.propose.origins import FILL, MODELLED, SEED
from autotune.search.propose.samplers import SAMPLERS, missing_package
from autotune.search.propose.seeds import seeds
from autotune.search.shape import ShapeSearch
from autotune.search_policy import SearchPolicy
from autotune.store import Store
from autotune.target import point_key

GEMM, OTHER = Gemm(64, 64, 64), Gemm(128, 64, 64)
SCRIPT = Path(__file__).with_name("search_script.py")


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "trials.db") as opened:
        yield opened


@pytest.fixture
def claims(store):
    with store.claims() as claims:
        yield claims


def _keys(target) -> list[str]:
    return [point_key(point) for _, point in target.submitted]


def test_every_kind_of_failure_is_stored_once_and_never_wins(store):
    target = FakeTarget(outcome=fails_by_turns)
    result = tune(target, store, [GEMM], Options(trials=1000))
    assert result.reason is StopReason.EXHAUSTED
    study = study_of(store, target, GEMM)
    failed = store.trials(study, is_failed=True)
    assert {t.measurement.outcome for t in failed} == set(FAILURES)
    assert all(t.measurement.reason == f"because of {t.measurement.outcome}" for t in failed)
    assert sorted(_keys(target)) == sorted({t.key for t in store.trials(study)})
    (shape,) = result.shapes
    assert shape.num_failed == len(failed)
    ok = [t.measurement.time_us for t in store.trials(study) if t.measurement.is_ok]
    assert shape.best.measurement.time_us == min(ok)
    assert shape.final.winner.key == shape.best.key


def test_a_batch_is_searched_beside_the_product_that_it_repeats(store):
    """Each is a study of its own, told by its name."""
    gemms = [GEMM, replace(GEMM, batch=8), replace(GEMM, batch=8, shares_b=True)]
    target = FakeTarget(time_us=lambda point: bowl_us(point))
    result = tune(target, store, gemms, Options(trials=20))
    assert [str(shape.gemm) for shape in result.shapes] == [
        "64x64x64:NN",
        "64x64x64b8:NN",
        "64x64x64b8:NN:shared-b",
    ]
    studies = [study_of(store, target, gemm) for gemm in gemms]
    assert len({study.id for study in studies}) == 3
    assert [len(store.trials(study)) for study in studies] == [20, 20, 20]
    assert {gemm for gemm, _ in target.submitted} == set(gemms)
    assert [str(summary.study.gemm) for summary in store.studies()] == [str(gemm) for gemm in gemms]


def test_a_space_where_all_fail_ends_without_a_winner(store):
    target = FakeTarget(product_space(4, 4), outcome=lambda point: Outcome.FAULTED)
    result = tune(target, store, [GEMM])
    assert result.reason is StopReason.EXHAUSTED
    assert (result.shapes[0].best, result.shapes[0].final) == (None, None)
    assert target.num_compared == 0


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if not missing_package(name)])
def test_resuming_asks_nothing_twice_and_ends_with_as_many(store, sampler):
    target = FakeTarget(outcome=fails_by_turns)
    first = tune(target, store, [GEMM], Options(trials=25, sampler=sampler))
    second = tune(target, store, [GEMM], Options(trials=60, sampler=sampler))
    third = tune(target, store, [GEMM], Options(trials=60, sampler=sampler))
    assert [r.num_new for r in (first, second, third)] == [25, 35, 0]
    assert len(set(_keys(target))) == len(target.submitted) == 60
    assert third.shapes[0].num_trials == 60
    assert third.shapes[0].final == second.shapes[0].final  # nothing new: not raced again


@pytest.mark.stress
@settings(max_examples=8)
@given(capacity=st.integers(1, 6), seed=st.integers(0, 100))
def test_answers_in_any_order_are_all_kept(tmp_path_factory, capacity, seed):
    target = FakeTarget(capacity=capacity, is_backwards=True, outcome=fails_by_turns)
    with Store.open(tmp_path_factory.mktemp("db") / "trials.db") as store:
        result = tune(target, store, [GEMM], Options(trials=18, seed=seed))
        stored = store.trials(study_of(store, target, GEMM))
        assert result.num_new == len(stored) == 18
        assert sorted(t.key for t in stored) == sorted(_keys(target))
        for trial in stored:
            assert trial.measurement.outcome is fails_by_turns(trial.point)


def test_the_same_seed_searches_the_same_way(tmp_path):
    runs = []
    for name in ("a.db", "b.db"):
        target = FakeTarget(outcome=fails_by_turns)
        with Store.open(tmp_path / name) as store:
            tune(target, store, [GEMM], Options(trials=50, seed=3))
        runs.append(_keys(target))
    assert runs[0] == runs[1]


# ---- order of storing and telling


def test_a_trial_is_stored_before_anyone_hears_of_it(store):
    target, notes = FakeTarget(), []
    study = study_of(store, target, GEMM)

    def on_event(event):
        if isinstance(event, TrialDone):
            notes.append(event)
            assert event.key in store.keys(study)
            assert len(store.keys(study)) == event.num_total == event.num_done == len(notes)

    tune(target, store, [GEMM], Options(trials=10), on_event)
    assert len(notes) == 10
    bests = [event.best.time_us for event in notes]
    assert bests == sorted(bests, reverse=True)
    assert [e.is_best for e in notes] == [a != b for a, b in itertools.pairwise([None, *bests])]


def test_trials_are_stored_while_the_search_is_busy(store):
    """Killed in a long ask, a search must not lose all that was measured meanwhile."""
    target = FakeTarget(capacity=4, is_backwards=True)
    study, seen = study_of(store, target, GEMM), []

    def on_event(event):
        if isinstance(event, TrialDone) and not seen:
            deadline = time.monotonic() + 10
            while len(store.keys(study)) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append(len(store.keys(study)))

    tune(target, store, [GEMM], Options(trials=12), on_event)
    assert seen == [4]


def test_a_callback_that_raises_loses_nothing(store):
    target = FakeTarget()

    def on_event(event):
        if isinstance(event, TrialDone) and event.num_done == 5:
            raise RuntimeError("the terminal is gone")

    with pytest.raises(RuntimeError, match="the terminal is gone"):
        tune(target, store, [GEMM], Options(trials=10), on_event)
    assert tune(target, store, [GEMM], Options(trials=10)).num_new == 5
    assert len(set(_keys(target))) == 10


def test_what_another_search_stored_meanwhile_is_no_error(store):
    class Raced(FakeTarget):
        def submit(self, gemm, point, cutoff_us):
            if len(self.submitted) % 3 == 0:
                measured = self.measure(gemm, point)
                store.add_trial(study_of(store, self, gemm), point_key(point), point, measured, "other")
            return super().submit(gemm, point, cutoff_us)

    target = Raced()
    tune(target, store, [GEMM], Options(trials=12))
    stored = store.trials(study_of(store, target, GEMM))
    assert len(stored) == 12 and sum(trial.origin == "other" for trial in stored) == 4


def test_a_lost_device_keeps_what_was_measured(store):
    class Dying(FakeTarget):
        def submit(self, gemm, point, cutoff_us):
            if len(self.submitted) < 7:
                return super().submit(gemm, point, cutoff_us)
            future: Future = Future()
            future.set_exception(DeviceLost("the worker died four times"))
            return future

    target = Dying(capacity=3)
    with pytest.raises(DeviceLost):
        tune(target, store, [GEMM], Options(trials=30))
    assert len(store.trials(study_of(store, target, GEMM))) == 7
    assert tune(FakeTarget(), store, [GEMM], Options(trials=30)).num_new == 23


# ---- when it stops


def test_seconds_count_on_the_clock_of_the_target(store):
    target = FakeTarget()  # a second per trial
    result = tune(target, store, [GEMM], Options(seconds=150))
    assert result.reason is StopReason.SECONDS
    assert result.num_new == 120  # a fifth is kept for the final, which takes longer by these trials
    assert result.shapes[0].final is not None


def test_it_stops_by_itself_when_nothing_better_is_likely(store):
    patience = Patience(horizon=2, min_trials=40)
    result = tune(FakeTarget(), store, [GEMM], Options(patience=patience))
    assert result.reason is StopReason.PATIENCE
    assert 40 <= result.num_new < 100
    again = tune(FakeTarget(), store, [GEMM], Options(patience=patience))
    assert (again.num_new, again.reason) == (0, StopReason.PATIENCE)
    timed = tune(FakeTarget(), store, [GEMM], Options(patience=patience, seconds=1e6, insists=False))
    assert (timed.num_new, timed.reason) == (0, StopReason.PATIENCE)
    insisting = tune(FakeTarget(), store, [GEMM], Options(patience=patience, seconds=1e6))
    assert insisting.num_new and insisting.reason is not StopReason.PATIENCE


@pytest.mark.parametrize(
    ("gemms", "options"),
    [
        ([], {}),
        ([GEMM], {"trials": 0}),
        ([GEMM], {"seconds": 0.0}),
        ([GEMM], {"sampler": "?"}),
    ],
)
def test_what_cannot_be_searched_is_refused(store, gemms, options):
    with pytest.raises(UsageError):
        tune(FakeTarget(), store, gemms, Options(**options))


@pytest.mark.parametrize("recorded_on", ["", "2026-01-01"])
def test_a_final_on_a_recording_ranks_by_what_was_recorded(store, recorded_on):
    """Rounds there draw from the samples of the trials, which decide: else a search names one winner, and
    what reads its final another."""

    class Misleading(FakeTarget):
        def __init__(self):
            super().__init__()
            self.environment = replace(ENVIRONMENT, recorded_on=recorded_on)

        def compare(self, gemm, points, rounds):
            found = super().compare(gemm, points, rounds)
            first = tuple(us * (1.5 if len(points) == 8 else 1) for us in found.samples_us[0])
            return replace(found, samples_us=(first, *found.samples_us[1:]))

    (shape,) = tune(Misleading(), store, [GEMM], Options(trials=60)).shapes
    winner = shape.final.winner
    assert shape.verdict.point == winner.point and shape.verdict.time_us == winner.time_us
    if recorded_on:
        assert (winner.key, winner.time_us) == (shape.best.key, shape.best.measurement.time_us)
        assert shape.final.tied[0] == winner and [e.rank for e in shape.final.entries] == list(range(1, 9))
        assert shape.final.baseline.time_us == shape.cublas_us
    else:
        assert winner.key != shape.best.key


# ---- several shapes


def test_a_suite_shares_the_time_fairly_and_lends_its_best(store):
    class Uneven(FakeTarget):
        def measure(self, gemm, point):
            is_first = gemm == GEMM
            time_us = bowl_us(point) + 5.0 * (point["word"] == "w0") * is_first
            return Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,),
                               verify_s=0.1, measure_s=0.9 if is_first else 0.2)  # fmt: skip

    target = Uneven()
    result = tune(target, store, [GEMM, OTHER, GEMM], Options(trials=60, seconds=1e9))
    assert [s.gemm for s in result.shapes] == [GEMM, OTHER]
    assert [s.num_new for s in result.shapes] == [60, 60]
    spent = {GEMM: 0.0, OTHER: 0.0}
    for gemm, _ in target.submitted[:60]:  # until the cheaper shape has its trials
        spent[gemm] += 1.0 if gemm == GEMM else 0.3
    assert spent[GEMM] == pytest.approx(spent[OTHER], abs=1.5)
    trials = [t for gemm in (GEMM, OTHER) for t in store.trials(study_of(store, target, gemm))]
    assert "transfer" in {t.origin for t in trials}


def test_a_shape_that_comes_later_has_the_time_that_the_others_had_before(store):
    target = FakeTarget(product_space(8, 8, 8, words=3))  # a second per trial
    tune(target, store, [GEMM], Options(trials=40))
    more = tune(target, store, [GEMM, OTHER], Options(seconds=50))
    assert {shape.gemm: shape.num_new for shape in more.shapes}[GEMM] <= 3
    even = tune(target, store, [GEMM, OTHER], Options(seconds=50))
    assert abs(even.shapes[0].num_trials - even.shapes[1].num_trials) <= 3


def test_what_was_found_on_other_shapes_is_no_trial_unless_it_is_the_best(store):
    """A search that was over goes on where such a kernel is better than what it found."""
    space, patience = product_space(8, 8, 8, words=3), Patience(horizon=2, min_trials=40)
    target, options = FakeTarget(space), Options(patience=patience)
    first = tune(target, store, [GEMM], options)
    study = first.shapes[0].study
    known = store.keys(study)
    points = [space.point(number) for number in range(len(space))]
    new = [point for point in points if point_key(point) not in known][:60]

    def fill(some, time_us):
        found = Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,))
        store.add_trials(study, {point_key(point): (point, found) for point in some}, FILL)

    fill(new[:-1], 500.0)
    assert tune(target, store, [GEMM], options).num_new == 0
    more = tune(target, store, [GEMM], Options(trials=first.num_new + 7))
    assert more.num_new == 7
    fill(new[-1:], 20.0)
    assert tune(target, store, [GEMM], options).num_new > 10


def test_seeds_come_first(store):
    gemm, limits = Gemm(512, 512, 512), known_limits("h200")
    space = feasible_set(limits, gemm)
    starts = [Config.from_dict(space.point(number)) for number in range(0, len(space), len(space) // 200)]
    numbers = list(seeds(space, starts))
    target = FakeTarget(space, time_us=lambda point: 100.0 + point["bm"] + point["stages"])
    options = Options(trials=60, starts=lambda gemm: starts, policy=SearchPolicy(num_seeds=5))
    tune(target, store, [gemm], options)
    trials = store.trials(study_of(store, target, gemm))
    found = [(trial.origin, space.find(dict(trial.point))) for trial in trials]
    assert found[:5] == [(SEED, number) for number in numbers[:5]]
    assert SEED not in [origin for origin, _ in found[5:]]


def test_the_end_of_the_seconds_goes_to_steps_from_the_best(store):
    target = FakeTarget(product_space(8, 8, 8, words=3))
    tune(target, store, [GEMM], Options(seconds=40))
    origins = [trial.origin for trial in store.trials(study_of(store, target, GEMM))]
    first = origins.index("polish")
    assert 0.8 * len(origins) < first and set(MODELLED) & set(origins[:first])
    assert set(origins[first:]) <= {"polish", *MODELLED}
    assert not any(one.should_polish([], 10.0) for one in (Options(trials=10, seconds=1.0), Options()))


def test_a_search_without_a_limit_ends_once_no_step_from_the_best_is_a_gain(store):
    """Steps come when nothing better is likely; after a gain, a search goes on until that is so again."""
    space = product_space(8, 8, 8, words=9)

    def time_us(point) -> float:  # one word is better, where all else is best: no model can tell
        off = sum(point[name] != value for name, value in {"a": 4, "b": 8, "c": 8}.items())
        return 100.0 + 5 * off - 10 * (point["word"] == "w3" and not off)

    patience = Patience(horizon=2, min_trials=60)
    target = FakeTarget(space, time_us=time_us)
    result = tune(target, store, [GEMM], Options(patience=patience))
    trials = store.trials(study_of(store, target, GEMM))
    origins = [trial.origin for trial in trials]
    times_us = [trial.measurement.time_us for trial in trials]
    first = origins.index("polish")
    assert first >= 60 and patience.is_over(times_us[:first]) and not patience.is_over(times_us[: first - 1])
    assert result.reason is StopReason.PATIENCE and min(times_us) == 90.0
    best = min(trials, key=lambda trial: trial.measurement.time_us).point
    tried = {point_key(trial.point) for trial in trials}
    assert all(point_key({**best, "word": f"w{word}"}) in tried for word in range(9))


@pytest.mark.parametrize("second_us", [100.3, 101.5])
def test_steps_are_tried_from_every_tile_that_is_as_good(store, claims, second_us):
    """Two hills in blocks of their own: one is the best, the other as good as that, or not quite."""

    def time_us(point) -> float:
        hills = ((100.0, {"a": 4, "b": 8, "c": 8}), (second_us, {"a": 64, "b": 8, "c": 8}))
        off = (base + 40 * sum(point[k] != v for k, v in hill.items()) for base, hill in hills)
        return min(off) + int(point["word"][1:])

    space = product_space(8, 8, 8, words=9)
    target = FakeTarget(space, time_us=time_us)
    shape = ShapeSearch(target, store, claims, GEMM, space)
    tops = {base: {"a": a, "b": 8, "c": 8, "word": "w0"} for base, a in ((100.0, 4), (second_us, 64))}
    requests = [ask for _ in range(20) for ask in shape.points.ask()]
    for point in tops.values():
        shape.lend(point_key(point), point)
        requests += shape.points.ask()
    while requests:
        for ask in requests:
            measurement = target.measure(GEMM, ask.point)
            shape.keep(ask, measurement)
            shape.tell(ask, measurement)
        requests = shape.points.polish(2)
    is_as_good = second_us < 100.5
    assert shape.points.is_polished
    comparison = shape.findings.ranking.next_comparison([])
    shape.refine(comparison, (100.0,) * 60, (90.0,) * 60)
    assert not shape.points.is_polished, "another is the best now, and may have steps"
    for base, point in tops.items():
        steps = [{**point, "word": f"w{word}"} for word in range(1, 9)]
        untried = [step for step in steps if shape.lend(point_key(step), step)]
        assert not untried if base == 100.0 or is_as_good else untried


@pytest.mark.stress
def test_a_shape_that_could_not_begin_in_time_is_told(store):
    class Slow(FakeTarget):
        def __init__(self) -> None:
            super().__init__(product_space(8, 8, 8))
            self.environment = replace(ENVIRONMENT, recorded_on="")
            self.is_over = threading.Event()

        def space(self, gemm, order=None):
            assert gemm == GEMM or self.is_over.wait(2)
            return super().space(gemm)

    target = Slow()
    try:
        result = tune(target, store, [GEMM, OTHER], Options(trials=None, seconds=0.2))
    finally:
        target.is_over.set()
    assert [shape.gemm for shape in result.shapes] == [GEMM] and result.not_started == (OTHER,)
    assert tune(target, store, [GEMM, OTHER], Options(trials=300)).not_started == ()


def test_few_seconds_are_divided_among_all_shapes_of_a_suite(store):
    """As on a GPU, cuBLAS is timed when the points before it are done: shapes that had begun used to fill all
    places, and most others never began."""

    class OneGpu(FakeTarget):
        def __init__(self) -> None:
            super().__init__(capacity=20)
            self.environment = replace(ENVIRONMENT, recorded_on="")
            self.thread = ThreadPoolExecutor(1)

        def baseline(self, gemm):
            return self.thread.submit(super().baseline, gemm).result()

        def submit(self, *args):
            return self.thread.submit(lambda: super(OneGpu, self).submit(*args).result())

    gemms, target = [Gemm(64 * number, 64, 64) for number in range(1, 13)], OneGpu()
    result = tune(target, store, gemms, Options(seconds=120))
    target.thread.shutdown()
    nums = {str(shape.gemm): shape.num_trials for shape in result.shapes}
    assert not result.not_started and len(nums) == len(gemms)
    assert min(nums.values()) >= 4 and max(nums.values()) <= 30, nums


def test_the_first_shape_is_searched_while_other_spaces_are_enumerated(store):
    class Enumerating(FakeTarget):
        def __init__(self) -> None:
            super().__init__()
            self.environment = replace(ENVIRONMENT, recorded_on="")
            self.is_ready = threading.Event()

        def space(self, gemm, order=None):
            if gemm == OTHER:
                assert self.is_ready.wait(30)
            return super().space(gemm)

        def submit(self, gemm, point, cutoff_us):
            if len(self.submitted) == 7:
                self.is_ready.set()
            return super().submit(gemm, point, cutoff_us)

    target = Enumerating()
    result = tune(target, store, [GEMM, OTHER], Options(trials=30))
    assert [gemm for gemm, _ in target.submitted[:8]] == [GEMM] * 8
    assert [s.num_new for s in result.shapes] == [30, 30]


def test_shapes_begin_one_at_a_time_as_their_spaces_come(store):
    """What is slow to enumerate holds nobody up, and the target has work between two shapes."""

    class Enumerating(FakeTarget):
        def __init__(self) -> None:
            super().__init__()
            self.environment = replace(ENVIRONMENT, recorded_on="")
            self.others_are_begun = threading.Event()

        def space(self, gemm, order=None):
            assert gemm != OTHER or self.others_are_begun.wait(30)
            return super().space(gemm)

    first, *others = gemms = [Gemm(64 * i, 64, 64) for i in (1, 3, 4, 5, 6)]
    target, notes = Enumerating(), []

    def on_event(event):
        if isinstance(event, ShapeStarted | TrialDone):
            notes.append(event)
        if {e.gemm for e in notes} == set(gemms):
            target.others_are_begun.set()

    result = tune(target, store, [first, OTHER, *others], Options(trials=20), on_event)
    started = [event.gemm for event in notes if isinstance(event, ShapeStarted)]
    assert started == [first, *others, OTHER]
    assert [shape.num_new for shape in result.shapes] == [20] * 6
    assert not any(
        isinstance(a, ShapeStarted) and isinstance(b, ShapeStarted) for a, b in itertools.pairwise(notes)
    )


@pytest.mark.parametrize("recorded_on", ["", "2026-01-01"])
def test_a_space_that_cannot_be_enumerated_ends_the_search_with_what_is_wrong(store, recorded_on):
    class Refusing(FakeTarget):
        def space(self, gemm, order=None):
            if gemm == OTHER:
                raise UsageError("too many to enumerate")
            return super().space(gemm)

    target = Refusing()
    target.environment = replace(ENVIRONMENT, recorded_on=recorded_on)
    with pytest.raises(UsageError, match="too many to enumerate"):
        tune(target, store, [GEMM, OTHER], Options(trials=30))
    trials = store.trials(study_of(store, target, GEMM))
    assert sorted(t.key for t in trials) == sorted(_keys(target))


def test_an_empty_space_is_refused(store):
    factor = product_space(2).factors[0]
    empty = FeasibleSet((Factor(factor.names, factor.values, factor.codes[:0]),))
    with pytest.raises(UsageError, match="no config can run 64x64x64:NN"):
        tune(FakeTarget(empty), store, [GEMM])


def test_a_new_shape_starts_from_the_best_of_those_before(store):
    tune(FakeTarget(), store, [GEMM], Options(trials=50))
    target = FakeTarget()
    best = store.best(study_of(store, target, GEMM), 3)
    tune(target, store, [OTHER], Options(trials=6))
    assert set(_keys(target)[:3]) == {t.key for t in best}
    origins = [t.origin for t in store.trials(study_of(store, target, OTHER))]
    assert origins[:4] == ["transfer", "transfer", "transfer", "random"]


@pytest.mark.parametrize("change", [{"driver_version": "590.1"}, {"gpu_uuid": "GPU-2"}])
def test_a_new_driver_and_another_gpu_of_the_kind_start_from_the_best_of_this_shape(store, change):
    tune(FakeTarget(), store, [GEMM], Options(trials=50))
    target = FakeTarget()
    target.environment = replace(ENVIRONMENT, **change)
    best = store.best(study_of(store, FakeTarget(), GEMM), 8)
    tune(target, store, [GEMM], Options(trials=12))
    assert {t.key for t in best} == set(_keys(target)[:8])


def test_events_tell_of_every_step(store):
    events = []
    tune(FakeTarget(), store, [GEMM], Options(trials=4), events.append)
    assert isinstance(events[0], ShapeStarted) and events[0].cublas_us == 110.0
    assert isinstance(events[-1], FinalDone)
    assert events[-1].best.speedup == pytest.approx(110 / events[-1].best.time_us, rel=0.2)
    trial = [e for e in events if isinstance(e, TrialDone)][-1]
    assert trial.left_s == 0 and trial.trials_per_s > 0
    assert not [e for e in events if isinstance(e, Stopping)]


# ---- keys


def test_the_key_of_our_kernel_is_that_of_the_config():
    config = Config(bm=96)
    shuffled = dict(reversed(config.to_dict().items()))
    assert point_key(shuffled) == config.key
    assert point_key({"MWG": 16, "SA": "x"}) == "MWG=16,SA=x"


# ---- signals


def _start(db: Path, trials: int, kind: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(db), str(trials), kind], stdout=subprocess.PIPE, text=True,
        preexec_fn=default_signals,
    )  # fmt: skip
    assert process.stdout.readline() == "started\n"
    return process


def _stored(db: Path) -> list[str]:
    with Store.open(db) as store:
        return [t.key for t in store.trials(study_of(store, FakeTarget(), GEMM))]


@pytest.mark.every(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_the_search_with_everything_stored(tmp_path, number):
    db = tmp_path / "trials.db"
    process = _start(db, 200, "slow")
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    result = json.loads(output.splitlines()[-1])
    assert result["reason"] == "interrupted"
    assert 3 <= result["num_new"] < 200
    assert _stored(db) == result["told"]
    with Store.open(db) as store:
        target = FakeTarget(product_space(8, 8, 8))
        resumed = tune(target, store, [GEMM], Options(trials=result["num_new"] + 5))
    assert resumed.num_new == 5


def test_the_second_signal_ends_it_at_once(tmp_path):
    process = _start(tmp_path / "trials.db", 200, "stuck")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)


def test_killed_searches_lose_no_more_than_what_was_under_way(tmp_path):
    db = tmp_path / "trials.db"
    for _ in range(3):
        process = _start(db, 200, "slow")
        process.kill()
        process.communicate(timeout=60)
        before = _stored(db)
        assert len(before) == len(set(before)) >= 3
    target = FakeTarget(product_space(8, 8, 8))
    with Store.open(db) as store:
        tune(target, store, [GEMM], Options(trials=len(before) + 10))
    assert len(target.submitted) == 10
    assert not set(_keys(target)) & set(before)

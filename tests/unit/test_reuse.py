"""Kernels that are compiled already, tried on other shapes and in other splits while the GPU is idle."""

from __future__ import annotations

import zlib
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from fake_target import FakeTarget
from known_tiles import LARGE, MEDIUM

from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Measurement, Outcome
from autotune.kernel.config import PARAMETERS, Config
from autotune.kernel.feasible_set import Factor, FeasibleSet
from autotune.recording.recorded_space import cubin_key
from autotune.search import Options, StopReason, study_of, tune
from autotune.search.points import Points
from autotune.search.progress import TrialDone
from autotune.search.propose.origins import REUSE
from autotune.search.run.reuse import Kernels
from autotune.search_policy import SearchPolicy
from autotune.target import Reusing, point_key

PATIENT = SearchPolicy(most_trial_s=2.0)  # of the simulated clock
GEMMS = (Gemm(512, 512, 512), Gemm(256, 256, 256))
SPLITS = (("none", 1), ("two_pass", 2), ("two_pass", 4), ("two_pass", 8), ("cluster", 2), ("cluster", 4))


def config_space() -> FeasibleSet:
    """Some known tiles in every number of stages, each with every way to split k."""
    launch = ("reduction", "split_k")
    names = tuple(p.name for p in PARAMETERS if p.name not in launch)
    values = {p.name: p.values for p in PARAMETERS}
    tiles = [{**tile.to_dict(), "stages": n} for tile in (*LARGE, *MEDIUM) for n in values["stages"]]
    core = np.unique([[values[n].index(tile[n]) for n in names] for tile in tiles], axis=0)
    ways = [[values[n].index(word) for n, word in zip(launch, way, strict=True)] for way in SPLITS]
    return FeasibleSet(
        tuple(
            Factor(of, tuple(values[n] for n in of), np.array(codes, dtype=np.uint8))
            for of, codes in ((names, core), (launch, ways))
        )
    )


def time_us(point) -> float:
    return 50.0 + zlib.crc32(point_key(point).encode()) % 1000 / 10


class Compiling(FakeTarget):
    """Answers come at once, on a clock that only compiling moves. Knows which kernels were compiled."""

    def __init__(self, **kwargs) -> None:
        super().__init__(config_space(), capacity=2, time_us=time_us, **kwargs)
        self.compiled: set = set()
        self.reused: list[tuple[Gemm, dict]] = []
        self.has_cache = True

    def submit(self, gemm, point, cutoff_us):
        self.compiled.add(cubin_key(point, gemm))
        return super().submit(gemm, point, cutoff_us)

    def kernel_family(self, gemm):
        return gemm.layout

    def submit_compiled(self, gemm, point, cutoff_us):
        assert cubin_key(point, gemm) in self.compiled, "nobody compiled this one"
        self.reused.append((gemm, dict(point)))
        measurement, future = self.measure(gemm, point), Future[Measurement]()
        if not self.has_cache:
            measurement = Measurement(Outcome.OK, time_us=60.0, samples_us=(60.0,), compile_s=0.3)
        future.set_result(measurement)
        return future


def _trials(store, target):
    return {gemm: store.trials(study_of(store, target, gemm)) for gemm in GEMMS}


def test_idle_seconds_try_compiled_kernels_on_other_shapes_and_in_other_splits(store):
    target = Compiling()
    assert isinstance(target, Reusing) and not isinstance(FakeTarget(), Reusing)
    result = tune(target, store, GEMMS, Options(seconds=160, policy=PATIENT))
    assert result.reason is StopReason.SECONDS
    trials = _trials(store, target)
    origins = Counter(trial.origin for of_shape in trials.values() for trial in of_shape)
    assert origins[REUSE] == len(target.reused) > 20
    assert result.num_new == sum(map(len, trials.values()))
    requested = {gemm: {point_key(p) for g, p in target.submitted if g == gemm} for gemm in GEMMS}
    for gemm, of_shape in trials.items():
        keys = [trial.key for trial in of_shape]
        assert len(keys) == len(set(keys)), "no point is tried twice"
        assert any(cubin_key(p, gemm) for g, p in target.reused if g == gemm)
        reused = {point_key(p) for g, p in target.reused if g == gemm}
        assert reused | requested[gemm] == set(keys) and not reused & requested[gemm]


def test_what_does_best_for_one_shape_is_tried_on_its_kin_at_once(store):
    target, best = Compiling(), {}

    def on_event(event):
        if isinstance(event, TrialDone) and event.is_best:
            best[event.gemm] = event.key

    tune(target, store, GEMMS, Options(seconds=60, policy=PATIENT), on_event)
    tried = {gemm: {trial.key for trial in of_shape} for gemm, of_shape in _trials(store, target).items()}
    for gemm, other in (GEMMS, GEMMS[::-1]):
        assert best[gemm] in tried[other]


def test_a_number_of_trials_is_spent_on_the_best_there_are(store):
    target = Compiling()
    assert tune(target, store, GEMMS, Options(trials=40, seconds=1e6, policy=PATIENT)).num_new == 80
    assert target.reused == []


def test_a_cache_that_keeps_nothing_ends_it(store):
    target = Compiling()
    target.has_cache = False
    tune(target, store, GEMMS, Options(seconds=60, policy=PATIENT))
    assert 0 < len(target.reused) <= PATIENT.ahead_s / PATIENT.batch_s


@pytest.mark.every(3)
@pytest.mark.parametrize("harm", [Outcome.FAULTED, Outcome.TIMED_OUT, Outcome.WRONG_RESULT])
def test_what_does_harm_somewhere_is_tried_nowhere_else(store, harm):
    def outcome(point):
        return harm if point["stages"] == 3 else Outcome.OK

    target = Compiling(outcome=outcome)
    tune(target, store, GEMMS, Options(seconds=160, policy=PATIENT))
    assert target.reused
    faults = [cubin_key(p, g) for g, p in target.submitted if p["stages"] == 3]
    assert faults and not any(point["stages"] == 3 for _, point in target.reused)


def test_shapes_whose_trials_take_long_wait_for_their_turn(store):
    policy = replace(PATIENT, most_trial_s=0.5)  # a simulated trial takes a second
    target = Compiling()
    tune(target, store, GEMMS, Options(seconds=60, policy=policy))
    assert target.reused == []


@pytest.mark.parametrize(("trial_s", "sizes"), [(0.01, {15}), (1.0, {1}), (0.045, {14})])
def test_as_many_are_queued_as_keep_the_gpu_busy_for_the_longest_ask(store, monkeypatch, trial_s, sizes):
    """Each answer comes at once here, so that every batch begins with an empty queue: 0.6 s of work."""
    requested, pick = set(), Points.pick

    def spy(points, codes, size):
        requested.add(size)
        return pick(points, codes, size)

    class Timed(Compiling):
        def measure(self, gemm, point):
            return replace(super().measure(gemm, point), verify_s=0.0, measure_s=trial_s)

    monkeypatch.setattr(Points, "pick", spy)
    tune(Timed(), store, GEMMS, Options(seconds=60 * trial_s, policy=PATIENT))
    assert requested == sizes


def test_kernels_are_drawn_once_each_and_those_that_led_among_many():
    rng = np.random.default_rng(0)
    kernels, space = Kernels(), config_space()
    for stages in (1, 2, 3):
        kernel = Config(stages=stages).kernel
        kernels.add(kernel, space.codes(stages), has_led=stages == 2)
        kernels.add(kernel, space.codes(stages), has_led=False)
    drawn = kernels.draw(rng, 300).tolist()
    assert [drawn.count(space.codes(n).tolist()) for n in (1, 2, 3)] == [1, 2, 1]
    kernels.ban(Config(stages=2).kernel)
    kernels.add(Config(stages=2).kernel, space.codes(2), has_led=True)
    assert space.codes(2).tolist() not in kernels.draw(rng, 300).tolist()
    assert kernels.draw(rng, 300).shape == (len(kernels), len(space.names)) == (2, len(PARAMETERS))
    assert Kernels().draw(rng, 300).shape == (0, len(PARAMETERS))

"""What is launched to time a kernel, on a simulated driver: the clocks of host and GPU are simulated."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts import stats
from autotune.facts.measurement import LATENT_US, GpuState
from autotune.gpu import timing
from autotune.gpu.timer import Timer

NUM_SETS = 16
LOADING_US = 60.0  # by which the first launch of a kernel takes longer
START_US = 4.0  # from the host's call to the kernel's start, on an idle GPU
PROMPT = 10  # calls between two that are delayed, at least: no timing is right if every call may be


class FakeDriver:
    """Launches take `kernel_us` on the GPU. A launch takes the host `call_us`, another call half of that; now
    and then a call takes up to `delay_us` more. Graphs are replayed without the host."""

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=0)

    def __init__(self, kernel_us: float, delay_us: float = 0.0, seed: int = 0, call_us: float = 6.0) -> None:
        self.kernel_us, self.delay_us, self.call_us = kernel_us, delay_us, call_us
        self._random = random.Random(seed)
        self._host_us = self._gpu_us = 0.0
        self._captured: int | None = None
        self._is_loaded = False
        self._num_prompt = 0  # calls since one was delayed
        self.num_launches = 0
        self.busy_us = 0.0  # of the GPU

    def _call(self, share: float = 0.5) -> None:
        self._host_us += share * self.call_us
        self._num_prompt += 1
        if self._num_prompt > PROMPT and self._random.random() < 0.5:
            self._num_prompt = 0
            self._host_us += self._random.uniform(0.0, self.delay_us)

    def _run(self, work_us: float) -> None:
        self._gpu_us = max(self._gpu_us, self._host_us + START_US) + work_us
        self.busy_us += work_us

    def enqueue(self, _: Any) -> None:
        self._call(1.0)
        if self._captured is not None:
            self._captured += 1
            return
        self.num_launches += 1
        self._run(self.kernel_us + (0.0 if self._is_loaded else LOADING_US))
        self._is_loaded = True

    # ---- of the driver

    def cuEventCreate(self, _: int) -> tuple[int, list[float]]:
        return 0, [0.0]

    def cuEventRecord(self, event: list[float], _: Any) -> tuple[int]:
        self._call()
        event[0] = max(self._gpu_us, self._host_us)
        return (0,)

    def cuEventSynchronize(self, _: Any) -> tuple[int]:
        self._host_us = max(self._host_us, self._gpu_us)
        self._call()
        return (0,)

    def cuEventElapsedTime(self, begin: list[float], end: list[float]) -> tuple[int, float]:
        return 0, (end[0] - begin[0]) / 1e3

    def cuStreamBeginCapture(self, *_: Any) -> tuple[int]:
        self._captured = 0
        return (0,)

    def cuStreamEndCapture(self, _: Any) -> tuple[int, int]:
        captured, self._captured = self._captured or 0, None
        return 0, captured

    def cuGraphInstantiate(self, graph: int, _: int) -> tuple[int, int]:
        return 0, graph

    def cuGraphDestroy(self, _: Any) -> tuple[int]:
        return (0,)

    def cuGraphUpload(self, *_: Any) -> tuple[int]:
        return (0,)

    def cuGraphExecDestroy(self, _: Any) -> tuple[int]:
        return (0,)

    def cuGraphLaunch(self, graph: int, _: Any) -> tuple[int]:
        self._call()
        self._run(graph * self.kernel_us)
        self.num_launches += graph
        return (0,)


def _watch(driver: FakeDriver) -> tuple[Timer, list[Any], Callable[[Any], None]]:
    sets: list[Any] = list(range(NUM_SETS))
    return Timer(driver, None, GpuState), sets, driver.enqueue


@given(
    kernel_us=st.floats(2.0, 20.0),
    cutoff=st.floats(0.95, 1.5),
    call_us=st.floats(3.0, 16.0),
    seed=st.integers(0, 1000),
)
def test_a_short_kernel_is_not_given_up_because_the_host_was_busy(
    kernel_us: float, cutoff: float, call_us: float, seed: int
) -> None:
    driver = FakeDriver(kernel_us, 150.0, seed, call_us)
    clock, sets, enqueue = _watch(driver)
    first_us = clock.time_once(lambda: enqueue(sets[0]))
    assert first_us > LOADING_US
    for timed in (
        clock.time(enqueue, sets, first_us, cutoff * kernel_us),
        clock.probe(enqueue, sets, cutoff * kernel_us),
    ):
        assert not timed.is_cut_short
        assert timed.time_us == pytest.approx(kernel_us, rel=0.05)


@pytest.mark.parametrize("first_us", [74.0, 190.0, 1274.0, 2500.0])
@pytest.mark.parametrize("num_sets", [1, NUM_SETS])
@pytest.mark.parametrize("kernel_us", [3.0, 8.0, 40.0])
def test_what_the_first_launch_took_decides_nothing(kernel_us: float, num_sets: int, first_us: float) -> None:
    driver = FakeDriver(kernel_us)
    clock, sets, enqueue = _watch(driver)
    clock.time_once(lambda: enqueue(sets[0]))
    before = driver.num_launches
    timed = clock.time(enqueue, sets[:num_sets], first_us, kernel_us)
    assert not timed.is_cut_short
    assert timed.time_us == pytest.approx(kernel_us, rel=0.02)
    # A batch lasts as long as it should: one that warms up, one that leads in, and at most as much to look.
    replays = len(timed.samples_us) + 2
    batch_us = (driver.num_launches - before) * kernel_us / replays
    assert 0.5 * timing.BATCH_US < batch_us < 1.5 * timing.BATCH_US


@given(
    kernel_us=st.floats(2.0, 40.0),
    slower=st.floats(1.1, 8.0),
    delay_us=st.floats(0.0, 150.0),
    seed=st.integers(0, 1000),
)
def test_a_short_kernel_that_is_slower_costs_little_and_counts_with_its_own_time(
    kernel_us: float, slower: float, delay_us: float, seed: int
) -> None:
    """Not with that of a launch: a model learns from it."""
    driver = FakeDriver(kernel_us, delay_us, seed)
    clock, sets, enqueue = _watch(driver)
    timed = clock.time(enqueue, sets, 150.0, kernel_us / (slower * stats.TOO_SLOW))
    assert timed.is_cut_short
    assert driver.busy_us < 4 * timing.BATCH_US
    most_us = 1.05 * kernel_us
    if timed.time_us > most_us:  # not timed in a batch: clearly slower, and told with some latency
        assert driver.num_launches <= 1 + 1 + timing.PROBE_SAMPLES
        assert kernel_us > 2 * kernel_us / (slower * stats.TOO_SLOW)


@given(kernel_us=st.floats(100.0, 1e6), share=st.floats(0.01, 0.3), seed=st.integers(0, 1000))
def test_a_kernel_that_is_far_too_slow_is_launched_a_few_times(
    kernel_us: float, share: float, seed: int
) -> None:
    driver = FakeDriver(kernel_us, delay_us=20.0, seed=seed)
    clock, sets, enqueue = _watch(driver)
    first_us = clock.time_once(lambda: enqueue(sets[0]))
    timed = clock.time(enqueue, sets, first_us, share * kernel_us)
    assert timed.is_cut_short
    assert driver.num_launches <= (2 if kernel_us >= LATENT_US else 6)
    assert timed.time_us == pytest.approx(kernel_us + 10.0, abs=30.0)


def test_a_long_kernel_is_not_launched_more_often_than_it_is_timed() -> None:
    driver = FakeDriver(30_000.0)
    clock, sets, enqueue = _watch(driver)
    clock.time(enqueue, sets[:1], 30_010.0, 30_000.0)
    assert driver.num_launches == 2 + 3  # one warms up, four are samples

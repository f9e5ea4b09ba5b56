"""Times what is enqueued on a stream: graphs of launches, replayed between events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, pairwise
from typing import Any

from ..facts import stats
from ..facts.measurement import LATENT_US, GpuState
from . import timing
from .driver import check
from .memory import Enqueue, OperandSet
from .timing import Timing

_US_PER_MS = 1000.0
_ENERGY_BATCH_US = 10_000.0
_ENERGY_EVERY_S = 0.002  # the counter advances every 20 to 100 ms
_ENERGY_LEAD_IN = 0.25  # of the seconds


class LaunchGraph:
    """A graph of launches that go round the operand sets."""

    def __init__(
        self, driver: Any, stream: Any, enqueue: Enqueue, sets: Sequence[OperandSet], launches: int
    ) -> None:
        self._driver, self._stream = driver, stream
        self.launches = launches
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(driver.cuStreamBeginCapture, stream, mode)
        try:
            for number in range(launches):
                enqueue(sets[number % len(sets)])
        finally:
            graph = check(driver.cuStreamEndCapture, stream)
        self._exec = check(driver.cuGraphInstantiate, graph, 0)
        check(driver.cuGraphDestroy, graph)
        check(driver.cuGraphUpload, self._exec, stream)

    def replay(self) -> None:
        check(self._driver.cuGraphLaunch, self._exec, self._stream)

    def close(self) -> None:
        check(self._driver.cuGraphExecDestroy, self._exec)


class Timer:
    """Times on one stream. `watch` reads the GPU's state; it is asked while the GPU is busy."""

    def __init__(self, driver: Any, stream: Any, watch: Callable[[], GpuState]) -> None:
        self._driver, self._stream, self._watch = driver, stream, watch
        self._events: list[Any] = []
        self.state = GpuState()  # as last read; throttling as ever read during the last measurement

    def time_once(self, enqueue: Callable[[], None]) -> float:
        """One launch in us, its latency included. Waits for it."""
        return self.intervals_us([enqueue])[0]

    def time(
        self, enqueue: Enqueue, sets: Sequence[OperandSet], first_us: float, cutoff_us: float | None
    ) -> Timing:
        """Time launches that rotate among the sets. `first_us`: of the first one, which loaded the kernel."""
        self.state = GpuState()
        launch_us = first_us
        if first_us < timing.LONG_FIRST_US or timing.is_too_slow_at_probe(first_us, cutoff_us):
            launch_us = self._launch_us(enqueue, sets, sets[0], first_us, cutoff_us)
        if timing.is_too_slow_at_probe(launch_us, cutoff_us):
            self._look()
            return Timing((launch_us,), is_cut_short=True)
        if launch_us < LATENT_US:
            launches = timing.few_launches(launch_us, len(sets), cutoff_us)
        else:
            launches = timing.batch_launches(launch_us, len(sets))
        with closing(self._batch(enqueue, sets, launches)) as batch:
            seen_us = self._seen_us(batch)
            if stats.is_too_slow([seen_us], cutoff_us):
                return Timing((seen_us,), is_cut_short=True)
            launches = timing.launches_in(timing.BATCH_US, seen_us, len(sets))
            if launches < 2 * batch.launches:
                return Timing(self._samples(batch, seen_us))
        with closing(self._batch(enqueue, sets, launches)) as batch:
            return Timing(self._samples(batch, self._seen_us(batch)))

    def probe(self, enqueue: Enqueue, sets: Sequence[OperandSet], cutoff_us: float | None) -> Timing:
        """A few short samples, after a launch that loads the kernel; fewer where it is clearly too slow."""
        first_us = self.time_once(partial(enqueue, sets[0]))
        if first_us >= timing.LONG_FIRST_US and timing.is_too_slow_at_first(first_us, cutoff_us):
            return Timing((first_us,), is_cut_short=True)
        launch_us = self._launch_us(enqueue, sets, sets[-1], first_us, cutoff_us)
        if timing.is_too_slow_at_probe(launch_us, cutoff_us):
            return Timing((launch_us,), is_cut_short=True)
        if launch_us >= timing.LONG_US:
            return Timing((launch_us, self.time_once(partial(enqueue, sets[0]))))
        launches = timing.few_launches(launch_us, len(sets), cutoff_us)
        with closing(self._batch(enqueue, sets, launches)) as batch:
            return Timing(tuple(self._probe_samples(batch)))

    def _launch_us(
        self,
        enqueue: Enqueue,
        sets: Sequence[OperandSet],
        second: OperandSet,
        first_us: float,
        cutoff_us: float | None,
    ) -> float:
        """What a launch takes in us, latency included, of a kernel whose first launch took so long: the least
        of that one and another, and of a few in a row if the kernel seems to be short and too slow. A single
        launch may wait for the host, on a busy machine for longer than short kernels run (decision 0067)."""
        launch_us = min(first_us, self.time_once(partial(enqueue, second)))
        if launch_us < LATENT_US and timing.is_too_slow_at_probe(launch_us, cutoff_us):
            in_a_row = [partial(enqueue, each) for each in islice(cycle(sets), 1 + timing.PROBE_SAMPLES)]
            launch_us = min(launch_us, *self._intervals_us(in_a_row)[1:])
        return launch_us

    def read(self, enqueue: Enqueue, sets: Sequence[OperandSet], launch_us: float) -> float:
        """One sample of work of about this duration, without changing `state`."""
        state = self.state
        with closing(self._batch(enqueue, sets, timing.batch_launches(launch_us, len(sets)))) as batch:
            try:
                return self._seen_us(batch)
            finally:
                self.state = state

    def race(
        self, candidates: Sequence[tuple[Enqueue, float]], sets: Sequence[OperandSet], rounds: int, seed: int
    ) -> list[tuple[float, ...]]:
        """Time candidates (a function that enqueues, the approximate time of a launch) interleaved. Sample r
        of each was taken in round r; all rounds are queued without a pause."""
        self.state = GpuState()
        with ExitStack() as stack:
            graphs = (
                self._batch(enqueue, sets, timing.batch_launches(time_us, len(sets)))
                for enqueue, time_us in candidates
            )
            batches = [stack.enter_context(closing(graph)) for graph in graphs]
            orders = timing.round_orders(len(batches), rounds + 1, seed)  # the first round warms up
            flat = [number for order in orders for number in order]
            times = self.intervals_us([batches[number].replay for number in flat])
            samples: list[list[float]] = [[] for _ in batches]
            for number, time_us in list(zip(flat, times, strict=True))[len(batches) :]:
                samples[number].append(time_us / batches[number].launches)
            return [tuple(s) for s in samples]

    def joules(
        self,
        enqueue: Enqueue,
        sets: Sequence[OperandSet],
        launch_us: float,
        seconds: float,
        read_energy_j: Callable[[], float | None],
    ) -> float | None:
        """Energy of one launch while it runs repeatedly for this many seconds; None if the counter cannot be
        read, or advanced too seldom. The first part, at the power of earlier work, is left out."""
        if read_energy_j() is None:
            return None
        launches = timing.launches_in(_ENERGY_BATCH_US, launch_us, len(sets))
        readings: list[tuple[float, float | None]] = []

        def read_until(end_s: float) -> None:
            while time.perf_counter() < end_s:
                readings.append((time.perf_counter(), read_energy_j()))
                time.sleep(_ENERGY_EVERY_S)

        with closing(self._batch(enqueue, sets, launches)) as batch:
            batch_us = self.intervals_us([batch.replay] * 2)[1]
            count = max(1, round(seconds * 1e6 / batch_us))
            started_s = time.perf_counter()
            for _ in range(count):
                batch.replay()
            read_until(started_s + 0.95 * count * batch_us / 1e6)
            check(self._driver.cuStreamSynchronize, self._stream)
        power_w = timing.mean_power_w(readings, started_s + _ENERGY_LEAD_IN * seconds)
        return None if power_w is None else power_w * batch_us / launches / 1e6

    def intervals_us(self, actions: Sequence[Callable[[], None]]) -> list[float]:
        """Enqueue actions back to back; the time of each in us. Waits for them all."""
        return self._intervals_us(actions, looks=len(actions) > 1)

    def _intervals_us(self, actions: Sequence[Callable[[], None]], *, looks: bool = False) -> list[float]:
        events = self._take_events(len(actions) + 1)
        check(self._driver.cuEventRecord, events[0], self._stream)
        for action, event in zip(actions, events[1:], strict=True):
            action()
            check(self._driver.cuEventRecord, event, self._stream)
        if looks:
            self._look()  # the GPU runs the work just queued
        check(self._driver.cuEventSynchronize, events[-1])
        return [
            float(check(self._driver.cuEventElapsedTime, begin, end)) * _US_PER_MS
            for begin, end in pairwise(events)
        ]

    def _look(self) -> None:
        """Read the GPU's state; throttle reasons accumulate until the next measurement begins."""
        seen = self._watch()
        reasons = {*self.state.throttle_reasons, *seen.throttle_reasons}
        self.state = replace(seen, throttle_reasons=tuple(sorted(reasons)))

    def _batch(self, enqueue: Enqueue, sets: Sequence[OperandSet], launches: int) -> LaunchGraph:
        return LaunchGraph(self._driver, self._stream, enqueue, sets, launches)

    def _seen_us(self, batch: LaunchGraph) -> float:
        """The mean time of a launch in a replay, after one that warms up. The host may have been late for a
        short one: then the least of several counts."""
        warm_us, seen_us = self.intervals_us([batch.replay] * 2)
        seen_us /= batch.launches
        return seen_us if warm_us >= timing.BATCH_US / 2 else min(seen_us, *self._probe_samples(batch))

    def _probe_samples(self, batch: LaunchGraph) -> list[float]:
        """The mean time of a launch in each of a few replays, after one that warms up."""
        times = self._intervals_us([batch.replay] * (1 + timing.PROBE_SAMPLES))[1:]
        return [time_us / batch.launches for time_us in times]

    def _samples(self, batch: LaunchGraph, first_us: float) -> tuple[float, ...]:
        """As many as it takes, the first among them."""
        samples, batch_us = [first_us], first_us * batch.launches
        while count := timing.more_samples(samples, batch_us):
            lead_in = int(batch_us < timing.LEAD_IN_BELOW_US)
            times = self.intervals_us([batch.replay] * (count + lead_in))[lead_in:]
            samples += [time_us / batch.launches for time_us in times]
        return tuple(samples)

    def _take_events(self, count: int) -> list[Any]:
        while len(self._events) < count:
            self._events.append(check(self._driver.cuEventCreate, 0))
        return self._events[:count]

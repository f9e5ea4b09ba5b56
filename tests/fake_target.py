"""A target without a GPU or a recording: times from a formula, failures on demand, answers in any order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from autotune.facts.device import KNOWN, Environment
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.kernel.feasible_set import Factor, FeasibleSet
from autotune.target import Baseline, Rounds

ENVIRONMENT = Environment("Fake GPU", "uuid", (9, 0), "1", "13.0", "13.4", "", "2026-01-01")
FAILURES = tuple(outcome for outcome in Outcome if outcome is not Outcome.OK)


def product_space(*sizes: int, words: int = 0) -> FeasibleSet:
    """A factor of numbers a, b, ... that keeps every row whose codes have an even sum, and one of words."""
    rows = [row for row in itertools.product(*map(range, sizes)) if sum(row) % 2 == 0]
    names = tuple("abcdefgh"[: len(sizes)])
    values = tuple(tuple(2**code for code in range(size)) for size in sizes)
    factors = [Factor(names, values, np.array(rows, dtype=np.uint8))]
    if words:
        codes = np.arange(words, dtype=np.uint8)[:, None]
        factors.append(Factor(("word",), (tuple(f"w{i}" for i in range(words)),), codes))
    return FeasibleSet(tuple(factors))


def bowl_us(point) -> float:
    """A time that grows with the distance from a = 4, b = 4, ...; never twice the same."""
    numbers = [value for value in point.values() if isinstance(value, int)]
    word = str(point.get("word", "w0"))
    off = sum((i + 1) * abs(np.log2(value) - 2) for i, value in enumerate(numbers))
    return 100.0 + 7.0 * off + int(word[1:])


class FakeTarget:
    """`outcome(point)` decides how a point ends. Answers come at once; with `is_backwards`, from a thread,
    the latest submission first, whenever `capacity` of them wait (or nothing came for a while)."""

    def __init__(
        self,
        space: FeasibleSet | None = None,
        *,
        capacity: int = 1,
        outcome: Callable[[dict], Outcome] = lambda point: Outcome.OK,
        time_us: Callable[[dict], float] = bowl_us,
        is_backwards: bool = False,
    ) -> None:
        self._space = product_space(6, 6, 4, words=3) if space is None else space
        self.capacity = capacity
        self.limits = KNOWN["h200"]
        self.environment = ENVIRONMENT
        self.policy = CachePolicy.COLD
        self.source_hash = "fake"
        self.max_error: float | None = None
        self.submitted: list[tuple[object, dict]] = []
        self.num_compared = self.num_weighed = self.num_renewed = 0
        self._outcome, self._time_us = outcome, time_us
        self._is_backwards = is_backwards
        self._waiting: list[tuple[Future, Measurement]] = []
        self._now = 0.0

    def space(self, gemm, order=None):
        return self._space

    def baseline(self, gemm):
        return Baseline(110.0, (109.0, 110.0, 111.0))

    def measure(self, gemm, point) -> Measurement:
        outcome = self._outcome(point)
        if outcome is not Outcome.OK:
            return Measurement(outcome, f"because of {outcome}", verify_s=0.5)
        time_us = self._time_us(point)
        samples = (time_us * 1.01, time_us, time_us * 0.99)
        return Measurement(Outcome.OK, time_us=time_us, samples_us=samples, verify_s=0.5, measure_s=0.5)

    def submit(self, gemm, point, cutoff_us):
        self.submitted.append((gemm, dict(point)))
        measurement = self.measure(gemm, point)
        self._now += measurement.verify_s + measurement.measure_s
        future: Future = Future()
        if not self._is_backwards:
            future.set_result(measurement)
            return future
        self._waiting.append((future, measurement))
        if len(self._waiting) == self.capacity:
            threading.Thread(target=_answer, args=(self._waiting[::-1],)).start()
            self._waiting = []
        else:  # the search may have no more to ask: nobody is to wait for ever
            threading.Timer(0.3, _answer, args=([(future, measurement)],)).start()
        return future

    def compare(self, gemm, points, rounds):
        self.num_compared += 1
        rng = np.random.default_rng(self.num_compared)
        drift = 1 + 0.2 * rng.random(rounds)  # of the whole GPU: the same for all in a round
        noise = 1 + 0.001 * rng.random((len(points), rounds))
        times = [self._time_us(point) * drift * noise[i] for i, point in enumerate(points)]
        samples = tuple(tuple(map(float, row)) for row in times)
        return Rounds(samples, Baseline(110.0, tuple(map(float, 110.0 * drift))))

    def joules(self, gemm, points):
        self.num_weighed += 1
        return tuple(self._time_us(point) * 1e-4 for point in points)

    def renew(self) -> None:
        self.num_renewed += 1

    def now(self) -> float:
        return self._now

    def close(self) -> None:
        pass


def _answer(waiting) -> None:
    for future, measurement in waiting:
        if not future.done():
            future.set_result(measurement)


def fails_by_turns(point) -> Outcome:
    """Every way to fail, each at some points; two thirds of the points are ok."""
    numbers = [value if isinstance(value, int) else int(value[1:]) for value in point.values()]
    number = sum(weight * value for weight, value in zip((7, 11, 29, 3), numbers, strict=True))
    return FAILURES[number // 3 % len(FAILURES)] if number % 3 == 0 else Outcome.OK

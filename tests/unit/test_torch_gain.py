"""What a program gains is measured while it runs: steps are found in its calls, and timed in turns."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.runtime.torch import torch_router
from autotune.runtime.torch.torch_router import (
    HASH_FACTOR,
    REPEATS,
    ProgramGain,
    Watch,
    longest_gap,
    period_of,
)

PLAIN_S, ROUTED_S = 0.0010, 0.0008  # of a call


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 30))
def test_the_period_is_the_shortest_that_all_items_repeat(step: list[int], num: int) -> None:
    items = (step * (num + 1))[:num]
    periods = [n for n in range(1, num) if all(a == b for a, b in zip(items, items[n:], strict=False))]
    shortest = next((n for n in periods if REPEATS * n <= num), None)
    assert period_of(items) == shortest


def test_a_step_ends_where_most_time_passes() -> None:
    times, now = [], 0.0
    for i in range(17):  # a pause before every call of number 2 of 5
        now += 3.0 if i % 5 == 2 else 1.0
        times.append(now)
    assert longest_gap(times, 5) == 2
    assert longest_gap([1.0, 2.0, 3.0], 1) == 0


class Program:
    """Makes calls as torch_router.cpp shows them, on a clock of its own."""

    def __init__(self) -> None:
        self.watch, self.now, self.waits = Watch(), 0.0, 0
        self.num = {True: 0, False: 0}  # of routed calls, and of plain ones
        self.random = random.Random(1)
        self.gain = ProgramGain(self.watch, self.wait, lambda: self.now)

    def wait(self) -> None:
        self.waits += 1

    def call(self, signature: int) -> None:
        is_routed = True
        if self.watch.see:
            self.watch.hash = self.watch.hash * HASH_FACTOR % (1 << 64) + signature
            self.watch.num_unseen -= 1
            if self.watch.num_unseen < 0:
                self.watch.see()
            is_routed = not self.watch.is_plain
        self.num[is_routed] += 1
        self.now += (ROUTED_S if is_routed else PLAIN_S) * self.random.uniform(0.99, 1.01)

    def run(self, calls: Iterable[int]) -> str:
        for signature in calls:
            self.call(signature)
        return self.gain.describe(100.0)


def training(num_steps: int, layers: int = 3) -> Sequence[int]:
    """Forward and backward through equal layers."""
    return [5, *[1] * layers, 2, *[3, 4] * layers] * num_steps


def test_a_program_of_equal_steps_is_measured() -> None:
    program = Program()
    message = program.run([9] * 11 + list(training(2000)))
    low, high = map(float, message.split("interval ")[1].split(",")[0].split(" to "))
    assert 1.24 < low <= 1.25 <= high < 1.26
    assert "a step of 11 products takes 11.0" in message and "pairs of stretches of 6 steps" in message
    assert "predicted: 1.100 ms" in message  # of 11 calls
    assert program.num[False] == pytest.approx(program.num[True], rel=0.05)


def test_a_step_that_holds_repeats_is_found_after_all() -> None:
    """As of texts that are continued by many equal tokens: stretches that the next text interrupts are not
    of equal steps."""
    text = [7, *[1, 2, 3] * 100]
    program = Program()
    message = program.run(text * 80)
    assert "a step of 301 products" in message and "1.25" in message


def test_steps_that_change_are_measured_by_kind() -> None:
    program = Program()
    message = program.run([*training(400), *[8, 6] * 3000])
    assert "a step of 11 products" in message and "a step of 2 products" in message


def test_the_same_step_found_again_goes_on() -> None:
    program = Program()
    message = program.run([*training(150), 99, 98, *training(500)])
    assert message.count("measured:") == 1 and "a step of 11 products" in message


def test_the_end_of_an_epoch_does_not_end_it() -> None:
    """Each ends with calls of its own, as of a last batch: steps are found again as soon as at first."""
    program, calls = Program(), list[int]()
    for epoch in range(20):
        calls += [*training(150), 1000 + epoch]
    message = program.run(calls)
    num_pairs = int(message.split(" in ")[1].split(" pairs")[0])
    assert message.count("measured: ") == 1 and "early" not in message and num_pairs > 8 * 20


def test_without_a_step_it_says_so() -> None:
    numbers = random.Random(3)
    program = Program()
    message = program.run([numbers.randrange(1 << 40) for _ in range(1000)])
    assert message == "not measured: of 1,000 products the last repeat no sequence of calls"
    assert Program().run([]) == "not measured: of 0 products the last repeat no sequence of calls"


def test_it_seeks_no_longer_than_a_limit(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch_router, "LAST_WINDOW", 128)
    program = Program()
    message = program.run(range(1000))
    assert "ended early: 128 products repeat no sequence" in message and not program.watch.see


def test_too_few_pairs_say_so() -> None:
    message = Program().run(training(60))
    assert (
        "not measured: of a step of 11 products" in message and "fewer than 6; let the program run" in message
    )


def test_a_capture_ends_it_and_the_rest_is_routed() -> None:
    program = Program()
    program.run(training(500))

    def refuse() -> None:
        raise RuntimeError("the program captures a graph")

    program.gain._wait = refuse
    before = program.num[False]
    message = program.run(training(100))
    assert "ended early: the program captures a graph" in message and "1.25" in message
    assert program.num[False] - before < 100 and not program.watch.is_plain


def test_threads_that_multiply_at_once_end_it() -> None:
    watch = Watch()
    is_waiting, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        is_waiting.set()
        may_end.wait(10)

    gain = ProgramGain(watch, wait)
    gain._is_found, gain._expected = True, 1  # so that the next call is waited at
    thread = threading.Thread(target=watch.see)
    thread.start()
    assert is_waiting.wait(10)
    watch.see()
    may_end.set()
    thread.join()
    assert "several threads multiply at the same time" in gain.describe(0.0) and not watch.see


def test_a_gain_is_told_with_what_was_predicted() -> None:
    cycle = torch_router.Cycle((1, 2), 0.01)
    cycle.plain_s, cycle.routed_s = [0.002] * 8, [0.001] * 8
    assert cycle.describe(50.0) == (
        "measured: 2.000 times as fast routed as plain, 95 % interval 2.000 to 2.000, in 8 pairs of "
        "stretches of 5 steps\n  a step of 2 products takes 2.000 ms plain, and routed 1.000 ms less (1.000 "
        "to 1.000); predicted: 0.100 ms of the GPU's time less"
    )

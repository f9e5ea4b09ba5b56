"""The one thread that watches the clock for all requests to a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from autotune.gpu.watchdog import Watchdog


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    made = Watchdog()
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]


def never() -> None:
    raise AssertionError("this was in time")


def test_what_takes_too_long_is_bitten_once(watchdog: Watchdog) -> None:
    bites, is_bitten = [], threading.Event()

    def on_timeout() -> None:
        bites.append(1)
        is_bitten.set()

    with watchdog.bounded(0.01, on_timeout):
        assert is_bitten.wait(10)
        time.sleep(0.05)
    assert bites == [1]


def test_what_ends_in_time_is_left_alone_and_one_thread_serves_all(watchdog: Watchdog) -> None:
    num_before = threading.active_count()
    for _ in range(100):
        with watchdog.bounded(0.05, never):
            assert threading.active_count() <= num_before + 1
    time.sleep(0.1)  # past all of those deadlines


@pytest.mark.parametrize("first_s", [0.01, 60.0])
def test_a_deadline_counts_whatever_was_watched_before(watchdog: Watchdog, first_s: float) -> None:
    """Sooner than the one it sleeps to, and after it has looked in vain and sleeps for good."""
    with watchdog.bounded(first_s, never if first_s > 1 else threading.Event().set):
        pass
    time.sleep(0.05)
    is_bitten = threading.Event()
    with watchdog.bounded(0.01, is_bitten.set):
        assert is_bitten.wait(10)


def test_an_error_within_calls_it_off(watchdog: Watchdog) -> None:
    with pytest.raises(KeyError), watchdog.bounded(0.05, never):
        raise KeyError
    time.sleep(0.1)


def test_closing_twice_or_unused_does_no_harm() -> None:
    unused = Watchdog()
    unused.close()
    unused.close()

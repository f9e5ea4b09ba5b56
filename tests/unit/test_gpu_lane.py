"""The queue before the GPU: order, work for idle moments, closing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.gpu.lane import Lane


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane()
    yield lane
    lane.close()


@given(st.lists(st.booleans(), max_size=12))
def test_all_that_was_asked_for_goes_before_what_can_wait(kinds: list[bool]) -> None:
    lane, is_free, order = Lane(), threading.Event(), []
    lane.submit(is_free.wait)
    futures = [
        (lane.submit_idle if is_idle else lane.submit)(order.append, (is_idle, number))
        for number, is_idle in enumerate(kinds)
    ]
    is_free.set()
    for future in futures:
        future.result(10)
    lane.close()
    assert [pair for pair in order if not pair[0]] == [p for p in enumerate_kinds(kinds) if not p[0]]
    assert [is_idle for is_idle, _ in order] == sorted(kinds)
    assert {pair for pair in order if pair[0]} == {p for p in enumerate_kinds(kinds) if p[0]}
    assert lane.num_waiting == 0


def enumerate_kinds(kinds: list[bool]) -> list[tuple[bool, int]]:
    return [(is_idle, number) for number, is_idle in enumerate(kinds)]


def test_what_comes_while_idle_work_waits_still_goes_first(lane: Lane) -> None:
    is_free, order = threading.Event(), []
    lane.submit(is_free.wait)
    idle = lane.submit_idle(order.append, "idle")
    # submitted by what runs, when the idle work's turn has come already
    lane.submit(lambda: [lane.submit(order.append, number) for number in range(3)])
    is_free.set()
    idle.result(10)
    assert order == [0, 1, 2, "idle"]


def test_errors_are_those_of_the_work(lane: Lane) -> None:
    def fail(error: Exception) -> None:
        raise error

    for submit in (lane.submit, lane.submit_idle):
        assert isinstance(submit(fail, KeyError("k")).exception(10), KeyError)


def test_cancelled_idle_work_does_not_run(lane: Lane) -> None:
    is_free, ran = threading.Event(), []
    lane.submit(is_free.wait)
    future = lane.submit_idle(ran.append, 1)
    assert future.cancel()
    is_free.set()
    lane.submit(int).result(10)
    assert not ran


def test_a_closed_lane_takes_nothing_and_cancels_what_could_wait() -> None:
    lane, is_free, ran = Lane(), threading.Event(), []
    lane.submit(is_free.wait)
    asked, idle = lane.submit(ran.append, "asked"), lane.submit_idle(ran.append, "idle")
    lane.drop_idle()
    is_free.set()
    lane.close()
    assert asked.done() and idle.cancelled()
    assert ran == ["asked"]
    with pytest.raises(RuntimeError):
        lane.submit(int)
    assert lane.num_waiting == 0
    assert lane.submit_idle(int).cancelled()

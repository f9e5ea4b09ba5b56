"""The queue before the GPU: order, work for idle moments, closing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.gpu.gpu_queue import GpuQueue


@pytest.fixture
def queue() -> Iterator[GpuQueue]:
    queue = GpuQueue()
    yield queue
    queue.close()


@given(st.lists(st.booleans(), max_size=12))
def test_all_that_was_requested_for_goes_before_what_can_wait(kinds: list[bool]) -> None:
    queue, is_free, order = GpuQueue(), threading.Event(), []
    queue.submit(is_free.wait)
    futures = [
        (queue.submit_idle if is_idle else queue.submit)(partial(order.append, (is_idle, number)))
        for number, is_idle in enumerate(kinds)
    ]
    is_free.set()
    for future in futures:
        future.result(10)
    queue.close()
    assert [pair for pair in order if not pair[0]] == [p for p in enumerate_kinds(kinds) if not p[0]]
    assert [is_idle for is_idle, _ in order] == sorted(kinds)
    assert {pair for pair in order if pair[0]} == {p for p in enumerate_kinds(kinds) if p[0]}


def enumerate_kinds(kinds: list[bool]) -> list[tuple[bool, int]]:
    return [(is_idle, number) for number, is_idle in enumerate(kinds)]


def test_what_comes_while_idle_work_waits_still_goes_first(queue: GpuQueue) -> None:
    is_free, order = threading.Event(), []
    queue.submit(is_free.wait)
    idle = queue.submit_idle(partial(order.append, "idle"))
    # submitted by what runs, when the idle work's turn has come already
    queue.submit(lambda: [queue.submit(order.append, number) for number in range(3)])
    is_free.set()
    idle.result(10)
    assert order == [0, 1, 2, "idle"]


def test_errors_are_those_of_the_work(queue: GpuQueue) -> None:
    def fail(error: Exception) -> None:
        raise error

    for submit in (queue.submit, queue.submit_idle):
        assert isinstance(submit(partial(fail, KeyError("k"))).exception(10), KeyError)


def test_cancelled_idle_work_does_not_run(queue: GpuQueue) -> None:
    is_free, ran = threading.Event(), []
    queue.submit(is_free.wait)
    future = queue.submit_idle(partial(ran.append, 1))
    assert future.cancel()
    is_free.set()
    queue.submit(int).result(10)
    assert not ran


def test_a_closed_queue_takes_nothing_and_cancels_what_could_wait() -> None:
    queue, is_free, ran = GpuQueue(), threading.Event(), []
    queue.submit(is_free.wait)
    requested, idle = queue.submit(ran.append, "asked"), queue.submit_idle(partial(ran.append, "idle"))
    queue.drop_idle()
    is_free.set()
    queue.close()
    assert requested.done() and idle.cancelled()
    assert ran == ["asked"]
    with pytest.raises(RuntimeError):
        queue.submit(int)
    assert queue.submit_idle(int).cancelled()


def test_a_future_that_somebody_waits_for_is_cancelled_by_closing(queue: GpuQueue) -> None:
    is_free, ran, futures = threading.Event(), [], [Future[None](), Future[None]()]
    queue.submit(is_free.wait)
    queue.submit_into(futures[0], partial(ran.append, 1))
    queue.drop_idle()
    is_free.set()
    queue.close()
    queue.submit_into(futures[1], partial(ran.append, 2))
    assert [future.cancelled() for future in futures] == [True, True] and not ran


def settled(queue: GpuQueue, work: Callable[[], int]) -> Future[int]:
    """As a target has its candidates settled."""
    future = Future[int]()
    queue.submit_into(future, work)
    return future


def test_the_next_is_measured_while_one_is_committed_and_no_more_than_that_one() -> None:
    queue, may_commit, started = GpuQueue(), threading.Event(), []
    second_begun, third_begun = threading.Event(), threading.Event()
    committed: list[int] = []

    def measure(number: int) -> int:
        started.append(number)
        {2: second_begun, 3: third_begun}.get(number, threading.Event()).set()
        return number

    def commit(done: Future[int]) -> None:
        assert may_commit.wait(10)
        committed.append(done.result())

    gate = threading.Event()
    queue.submit(gate.wait)
    futures = [
        settled(queue, partial(measure, 1)),
        queue.submit_idle(partial(measure, 2)),
        queue.submit_idle(partial(measure, 3)),
    ]
    for future in futures:
        future.add_done_callback(commit)
    gate.set()
    assert second_begun.wait(10)
    assert not third_begun.wait(0.1)
    assert started == [1, 2] and committed == []
    assert futures[0].done() and not futures[1].done(), "the second is told of before the first is stored"
    may_commit.set()
    assert futures[2].result(10) == 3
    queue.close()
    assert committed == started == [1, 2, 3], "in order, and drained by closing"


def test_an_error_waits_for_the_commit_of_what_was_measured_before(queue: GpuQueue) -> None:
    """Whoever hears that the GPU is lost finds all trials before stored."""
    may_commit, order = threading.Event(), []

    def fail() -> int:
        raise KeyError("lost")

    gate = threading.Event()
    queue.submit(gate.wait)
    first, second = settled(queue, int), settled(queue, fail)
    first.add_done_callback(lambda _: (may_commit.wait(10), order.append("stored")))
    second.add_done_callback(lambda _: order.append("lost"))
    gate.set()
    with pytest.raises(TimeoutError):
        second.result(0.1)
    may_commit.set()
    assert isinstance(second.exception(10), KeyError)
    queue.close()
    assert order == ["stored", "lost"]

"""The simulated clock: against bounds that hold for every pipeline, and schedules worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.recording.replay import SimulatedMachine

SECONDS = st.floats(0.0, 10.0)
CANDIDATES = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=40)


def _run(candidates, num_threads: int, depth: int) -> SimulatedMachine:
    pipeline = SimulatedMachine(num_threads, depth)
    for number, (compile_s, run_s) in enumerate(candidates):
        pipeline.submit(number, compile_s, run_s)
    return pipeline


@given(CANDIDATES, st.integers(1, 8), st.integers(1, 12))
def test_it_takes_at_least_what_compiling_and_running_take(candidates, num_threads, depth):
    done_s = _run(candidates, num_threads, depth).done_s
    compile_s, run_s = (sum(column) for column in zip(*candidates, strict=True))
    longest_s = max(map(sum, candidates))
    assert done_s >= max(run_s, compile_s / num_threads, longest_s) - 1e-9
    assert done_s <= compile_s + run_s + 1e-9


@given(CANDIDATES, st.integers(1, 8))
def test_one_at_a_time_is_the_sum(candidates, num_threads):
    assert _run(candidates, num_threads, 1).done_s == pytest.approx(sum(map(sum, candidates)))


@given(CANDIDATES, st.integers(1, 8), st.integers(1, 12))
def test_the_clock_never_runs_back_and_everyone_is_served_once(candidates, num_threads, depth):
    pipeline = SimulatedMachine(num_threads, depth)
    clock, clocks, done = 0.0, [], []
    for compile_s, run_s in candidates:
        while pipeline.is_full:
            done.append(pipeline.finish_next())
            assert pipeline.now_s >= clock
            clock = pipeline.now_s
        expected = pipeline.done_s
        pipeline.submit(len(clocks), compile_s, run_s)
        clocks.append(clock)
        assert pipeline.done_s >= max(expected, clock)
        assert pipeline.num_open <= depth
    end_s = pipeline.done_s
    while pipeline.num_open:
        done.append(pipeline.finish_next())
    assert sorted(done) == list(range(len(candidates)))
    assert pipeline.now_s == pipeline.done_s == pytest.approx(end_s)


def test_a_schedule_by_hand():
    """Two threads: 4 s and 1 s begin at once, the third at 1 s. The GPU takes them as they are ready."""
    pipeline = _run([(4.0, 1.0), (1.0, 1.0), (2.0, 3.0)], num_threads=2, depth=4)
    assert pipeline.done_s == 7.0
    assert [pipeline.finish_next(), pipeline.now_s] == [1, 2.0]
    assert [pipeline.finish_next(), pipeline.now_s] == [2, 6.0]
    assert [pipeline.finish_next(), pipeline.now_s] == [0, 7.0]


def test_a_kernel_is_compiled_once_and_waited_for_by_all_who_need_it():
    pipeline = SimulatedMachine(num_threads=2, depth=4)
    for kernel, compile_s in (("a", 4.0), ("a", 4.0), ("b", 1.0)):
        pipeline.submit(kernel, compile_s, 1.0)
    assert [pipeline.finish_next(), pipeline.now_s] == [2, 2.0]
    pipeline.submit("b", 1.0, 1.0)
    assert [pipeline.finish_next(), pipeline.now_s] == [3, 3.0]
    assert [pipeline.finish_next(), pipeline.now_s] == [0, 5.0]
    assert pipeline.done_s == 6.0


def test_other_work_comes_behind_all_that_is_open():
    pipeline = _run([(4.0, 1.0)], num_threads=1, depth=4)
    pipeline.occupy(10.0)
    assert pipeline.now_s == 15.0
    assert pipeline.submit("new", 2.0, 0.5) == 1
    assert pipeline.done_s == 17.5


def test_without_candidates_there_is_nothing_to_wait_for():
    with pytest.raises(IndexError):
        SimulatedMachine(2, 2).finish_next()
    assert SimulatedMachine(2, 2).done_s == 0.0

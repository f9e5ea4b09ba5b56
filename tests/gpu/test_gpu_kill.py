"""`kill -9` of a search on a GPU, and of its worker alone, at random moments.

Few kills: each run opens the GPU anew, which takes seconds. tests/cli/test_search_kill.py makes more, on a
recording; here it is to be seen that a GPU at work changes nothing of that, and is let go of.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from kills import Search, kill, workers_of

from autotune.facts.measurement import Outcome
from autotune.gpu.driver import GpuInfo
from autotune.gpu.nvml import Monitor

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(200)]

NUM_KILLS = 6
ANYWHERE_EVERY = 3  # of the runs one is killed wherever that is: loading, opening the GPU, resuming
START_S = 3.0  # about what a run takes until its first trial
MOST_ALIVE_S = 0.8  # after that
GONE_S = 30.0  # the driver tears a context down before its process is gone
NUM_WORKER_KILLS = 2
NUM_TRIALS = 60  # more than are told of before the last of these kills


@pytest.fixture
def search(tmp_path: Path) -> Search:
    cache = str(tmp_path / "cache")  # killed in the middle of a write, too
    return Search(tmp_path, "--gpu", "0", "--shape", "512", "--trials", "100000", AUTOTUNE_CACHE=cache)


def _wait_until_gone(coordinator: int, monitor: Monitor, num_before: int) -> None:
    """Its workers must end, and the GPU be left to those who were on it before."""
    deadline = time.monotonic() + GONE_S
    while workers_of(coordinator) or len(monitor.processes() or ()) > num_before:
        left = workers_of(coordinator), monitor.processes(), num_before
        assert time.monotonic() < deadline, f"workers, processes on the GPU, their number before: {left}"
        time.sleep(0.01)


def test_kills_lose_at_most_one_trial_each_and_leave_no_process(search: Search, gpu: GpuInfo) -> None:
    rng, monitor = random.Random(5), Monitor(gpu.uuid)
    num_neighbours = len(monitor.processes() or ())
    stored: list[str] = []
    num_workers = num_runs_with_trials = 0
    for number in range(NUM_KILLS):
        process = search.start()
        if number % ANYWHERE_EVERY == 0:
            time.sleep(rng.uniform(0, START_S))
        else:
            search.wait_until(process, lambda: search.noted("told"))
            time.sleep(rng.uniform(0, MOST_ALIVE_S))
        num_workers += len(workers_of(process.pid))
        kill(process)
        _wait_until_gone(process.pid, monitor, num_neighbours)
        before, stored = stored, search.stored()
        requested, measured, text = map(search.noted, ("asked", "measured", "told"))
        assert stored[: len(before)] == before
        assert not set(requested) & set(before)  # what is known is never asked again
        assert set(text) <= set(stored)  # what was told of is there
        assert set(stored[len(before) :]) <= set(measured)
        assert len(set(measured) - set(stored)) <= 1
        num_runs_with_trials += len(stored) > len(before)
    assert num_workers >= NUM_KILLS / 2  # else hardly a kill met a GPU at work
    assert num_runs_with_trials >= NUM_KILLS / 2
    facts = search.finish(search.start("--trials", str(len(stored) + 10)))
    assert facts["num_new"] == 10
    assert facts["num_trials"] == len(stored) + 10 == len(search.stored())


def test_a_killed_worker_costs_at_most_the_trial_that_it_ran(search: Search) -> None:
    rng = random.Random(7)
    process = search.start("--trials", str(NUM_TRIALS))
    try:
        for _ in range(NUM_WORKER_KILLS):
            wanted = len(search.noted("told")) + 5
            search.wait_until(process, lambda wanted=wanted: len(search.noted("told")) >= wanted)
            time.sleep(rng.uniform(0, 0.2))
            (worker,) = workers_of(process.pid)
            os.kill(worker, signal.SIGKILL)
            search.wait_until(process, lambda worker=worker: set(workers_of(process.pid)) - {worker})
    except BaseException:
        kill(process)
        raise
    facts = search.finish(process)
    assert facts["num_trials"] == facts["num_new"] == NUM_TRIALS == len(search.stored())
    with closing(sqlite3.connect(search.db)) as connection:
        failed = connection.execute("SELECT outcome, reason FROM trial WHERE outcome <> 'ok'").fetchall()
    faults = [reason for outcome, reason in failed if outcome == Outcome.FAULTED]
    assert len(faults) <= NUM_WORKER_KILLS
    assert all("the GPU worker died" in reason for reason in faults)
    assert facts["num_failed"] == len(failed)

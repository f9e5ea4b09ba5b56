"""The coordinator's side of the worker: every way a worker can fail costs one candidate, and no more."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Outcome
from autotune.files.errors import DeviceLost, EnvironmentProblem
from autotune.gpu import protocol
from autotune.gpu.client import WorkerClient
from autotune.gpu.protocol import KernelCode, Problem, RunTrial
from autotune.gpu.timing import Deadlines, trial_deadline_s
from autotune.kernel.launch import LaunchSpec, Variant
from autotune.target import Cell

FAKE = Path(__file__).with_name("fake_gpu_worker.py")
SPEC = LaunchSpec(64, 64, 8, 64, 0, 1, 1, 1, False, "none", 1, Variant())
PROBLEM = Problem(Gemm(64, 64, 64), CachePolicy.COLD)
OTHER = Problem(Gemm(32, 32, 32), CachePolicy.COLD)
START = protocol.Start("GPU-0", KNOWN["h200"], b"")


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def make(log):
    clients = []

    def make_client(mode="by name", **options):
        command = (sys.executable, str(FAKE), mode, str(log))
        clients.append(WorkerClient(START, command=command, **options))
        return clients[-1]

    yield make_client
    for client in clients:
        client.close()
    assert not [pid for pid in worker_pids(log) if is_alive(pid)]


def worker_pids(log):
    return (
        dict.fromkeys(int(line.split()[0]) for line in log.read_text().splitlines()) if log.exists() else {}
    )


def is_gone_soon(pid):
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


def requests(log):
    return [line.split(maxsplit=1)[1] for line in log.read_text().splitlines()]


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def trial(client, deed, deadline_s=30.0, problem=PROBLEM):
    return client.trial(RunTrial(problem, KernelCode(b"code", deed, SPEC), None), deadline_s)


def test_one_worker_serves_many_trials_and_prepares_once(make, log):
    client = make()
    results = [trial(client, "fine") for _ in range(5)]
    assert {r.outcome for r in results} == {Outcome.OK}
    assert results[0].samples_us == (12.0, 10.0, 11.0)
    assert len(worker_pids(log)) == 1
    assert requests(log) == ["Start", "Prepare", *["RunTrial"] * 5]


def test_another_problem_is_prepared_before_its_trial(make, log):
    client = make()
    trial(client, "fine")
    trial(client, "fine", problem=OTHER)
    assert requests(log) == ["Start", "Prepare", "RunTrial", "Prepare", "RunTrial"]


def test_a_problem_that_the_worker_holds_is_not_prepared_again_and_one_that_it_let_go_is(make, log):
    client, third = make("holds two"), Problem(Gemm(16, 16, 16), CachePolicy.COLD)
    for problem in (PROBLEM, OTHER, PROBLEM, OTHER, third, OTHER, PROBLEM):
        client.prepare(problem)
    assert requests(log) == ["Start", *["Prepare"] * 4], "two, the third, and the first again"


def test_nothing_is_held_after_a_comparison_or_a_race_that_went_wrong(make, log):
    client = make()
    wrong, fine = KernelCode(b"code", "wrong", SPEC), KernelCode(b"code", "fine", SPEC)
    assert client.compare_pair(protocol.RunComparison(PROBLEM, (wrong, fine), 3), 30.0).samples_us == ((), ())
    assert client.race(protocol.RunRace(PROBLEM, (wrong, fine), 3), 30.0).failures
    client.prepare(PROBLEM)
    assert requests(log) == ["Start", "Prepare", "RunComparison", "Prepare", "RunRace", "Prepare"]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("deed", "outcome", "words"),
    [
        ("crash", Outcome.FAULTED, "closed the pipe"),
        ("exit", Outcome.FAULTED, "last words of the worker"),
        ("hang", Outcome.TIMED_OUT, "hangs"),
        ("garble", Outcome.FAULTED, "no answer"),
        ("stop midway", Outcome.TIMED_OUT, "hangs"),
        ("sticky", Outcome.FAULTED, "ILLEGAL_ADDRESS"),
        ("bug", Outcome.FAULTED, "a bug"),
        ("babble", Outcome.FAULTED, "Prepared, not TrialResult"),
    ],
)
def test_a_fatal_candidate_costs_itself_and_the_next_one_is_fine(make, log, deed, outcome, words):
    client = make()
    first = trial(client, "fine")
    fatal = trial(client, deed, deadline_s=1.0)
    assert (first.outcome, fatal.outcome) == (Outcome.OK, outcome)
    assert words in fatal.reason
    assert trial(client, "fine").outcome is Outcome.OK
    assert len(worker_pids(log)) == 2
    assert requests(log)[-3:] == ["Start", "Prepare", "RunTrial"]


def test_a_wrong_result_keeps_the_worker_but_prepares_anew(make, log):
    client = make()
    assert trial(client, "wrong").outcome is Outcome.WRONG_RESULT
    assert trial(client, "fine").outcome is Outcome.OK
    assert requests(log) == ["Start", "Prepare", "RunTrial", "Prepare", "RunTrial"]
    assert len(worker_pids(log)) == 1


def test_the_whole_process_group_is_killed(make, log):
    client = make()
    assert trial(client, "hang with child", deadline_s=2.0).outcome is Outcome.TIMED_OUT
    (child,) = (int(r.split()[1]) for r in requests(log) if r.startswith("child"))
    assert is_gone_soon(child)


def test_a_worker_killed_while_idle_is_nobodys_fault(make, log):
    client = make()
    trial(client, "fine")
    (pid,) = worker_pids(log)
    os.kill(pid, signal.SIGKILL)
    assert is_gone_soon(pid)
    assert trial(client, "fine").outcome is Outcome.OK


def test_deaths_in_a_row_lose_the_device_and_each_is_recorded(make):
    client = make(max_deaths=3)
    outcomes = [trial(client, f"sticky#{number}").outcome for number in range(3)]
    assert outcomes == [Outcome.FAULTED] * 3
    with pytest.raises(DeviceLost, match=r"3 times in a row.*ILLEGAL_ADDRESS.*nvidia-smi"):
        trial(client, "fine")


def test_each_worker_is_told_by_its_own_last_words(make):
    client = make("exit")
    for _ in range(2):
        assert trial(client, "any").reason == "the GPU worker died: last words of the worker"
        client._crash_failures.clear()


def test_a_success_between_deaths_forgives_them(make):
    client = make(max_deaths=2)
    for number in range(3):
        assert trial(client, f"exit#{number}").outcome is Outcome.FAULTED
        assert trial(client, "fine").outcome is Outcome.OK


@pytest.mark.parametrize("mode", ["die at start", "die at prepare"])
def test_a_worker_that_never_gets_ready_loses_the_device(make, log, mode):
    with pytest.raises(DeviceLost, match="died 3 times in a row"):
        trial(make(mode, max_deaths=3), "fine")
    assert len(worker_pids(log)) == 3


def test_a_worker_without_a_place_for_its_words_is_what_the_machine_lacks(make, monkeypatch):
    def fail():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with pytest.raises(EnvironmentProblem, match=r"No usable temporary directory found.*TMPDIR"):
        make().start()


@pytest.mark.parametrize(
    "missing", [(tempfile, "TemporaryFile"), (socket, "socketpair"), (subprocess, "Popen")]
)
def test_a_worker_that_cannot_be_started_says_what_is_short(make, monkeypatch, missing):
    def fail(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(*missing, fail)
    with pytest.raises(
        EnvironmentProblem, match=r"worker .*too many files are open: .*; allow more \(ulimit"
    ):
        make().start()


def test_what_the_machine_lacks_is_raised_not_recorded(make):
    with pytest.raises(EnvironmentProblem, match="the GPU is gone"):
        trial(make("no gpu"), "fine")
    client = make()
    with pytest.raises(EnvironmentProblem, match="no memory"):
        trial(client, "no memory")
    assert trial(client, "fine").outcome is Outcome.OK


@pytest.mark.parametrize("deed", ["crash", "sticky", "hang"])
def test_what_brought_a_worker_down_is_never_run_again(make, log, deed):
    client = make()
    fatal = trial(client, deed, deadline_s=1.0)
    before = len(requests(log))
    again = trial(client, deed, problem=OTHER)
    assert again.outcome is fatal.outcome
    assert again.reason == f"not run, it brought a worker down: {fatal.reason}"
    assert len(requests(log)) == before
    assert trial(client, "fine", problem=OTHER).outcome is Outcome.OK


def test_another_kernel_of_the_same_cubin_is_not_blamed(make, log):
    client = make()
    first, second = (KernelCode(b"", "crash", SPEC, entry) for entry in ("sgemm_naive", "sgemm_coalesced"))
    client.trial(RunTrial(PROBLEM, first, None), 5.0)
    before = len(worker_pids(log))
    assert "not run" in client.trial(RunTrial(PROBLEM, first, None), 5.0).reason
    assert "not run" not in client.trial(RunTrial(PROBLEM, second, None), 5.0).reason
    assert len(worker_pids(log)) == before + 1


def test_a_finalist_that_kills_the_worker_is_found_and_left_out(make, log):
    client = make()
    good, bad = (KernelCode(b"", name, SPEC) for name in ("fine", "crash"))
    result = client.race(protocol.RunRace(PROBLEM, (good, good), 3), 30.0)
    assert (result.samples_us, result.failures) == (((1.0,) * 3,) * 2, {})
    result = client.race(protocol.RunRace(PROBLEM, (good, bad), 3), 30.0)
    assert result.samples_us == ((1.0,) * 3, ())
    assert result.failures[1].outcome is Outcome.FAULTED and "worker died" in result.failures[1].reason
    num_workers = len(worker_pids(log))
    assert client.race(protocol.RunRace(PROBLEM, (bad, good), 2), 30.0).samples_us == ((), (1.0,) * 2)
    assert client.race(protocol.RunRace(PROBLEM, (bad,), 2), 30.0).samples_us == ((),)
    assert len(worker_pids(log)) == num_workers  # known by now: not run again


def test_a_race_that_dies_though_each_alone_is_fine_is_run_again_once(make):
    client = make()
    three = tuple(KernelCode(b"", f"fine#{number}", SPEC) for number in range(3))
    with pytest.raises(DeviceLost, match="comparing 3 kernels failed twice"):
        client.race(protocol.RunRace(PROBLEM, three, 3), 30.0)
    assert client.race(protocol.RunRace(PROBLEM, three[:1], 2), 30.0).baseline_us == (2.0, 2.0)


def test_a_comparison_that_kills_the_worker_is_without_a_result_and_the_next_has_a_new_one(make, log):
    client = make()
    good, bad = (KernelCode(b"", name, SPEC) for name in ("fine", "crash"))
    found = client.compare_pair(protocol.RunComparison(PROBLEM, (good, good), 3, shuffle=4), 30.0)
    assert (found.samples_us, found.seconds) == (((5.0,) * 3, (2.0,) * 3), 0.25)
    for _ in range(2):
        assert client.compare_pair(protocol.RunComparison(PROBLEM, (good, bad), 3), 30.0) is None
    assert trial(client, "fine").outcome is Outcome.OK
    assert len(set(worker_pids(log))) == 3


def test_large_cubins_pass_through_the_pipe(make):
    client = make()
    big = KernelCode(bytes(range(256)) * 20_000, "fine", SPEC)
    assert client.trial(RunTrial(PROBLEM, big, None), 30.0).outcome is Outcome.OK


def test_the_deadline_follows_the_expected_time():
    assert trial_deadline_s(0.0) == 5.0
    assert trial_deadline_s(20_000.0) == pytest.approx(7.0)


def test_deadlines_grow_with_what_is_requested_for():
    limits, small, large = KNOWN["h200"], Gemm(64, 64, 64), Gemm(16384, 16384, 16384)
    deadlines = Deadlines(limits)
    limit_us = large.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    assert deadlines.trial_s(large, 20_000.0) == pytest.approx(7.0), "by the best known"
    assert deadlines.trial_s(large, None) == trial_deadline_s(10 * limit_us), "by ten times the roofline"
    cells = [Cell(large, None), Cell(large, None, 20_000.0)]
    assert deadlines.cells_s(cells) == trial_deadline_s(10 * limit_us + 20_000.0)
    assert deadlines.comparison_s(small, 3) == pytest.approx(30.0 + 8 * 0.1)
    assert deadlines.comparison_s(large, 3) == pytest.approx(30.0 + 80 * limit_us / 1e6)
    plain = deadlines.race_s(large, 2, 5, slowest_over_limit=500.0, energy_s=0.0)
    assert plain > 30.0 + 3 * 6 * 500 * limit_us / 1e6
    assert deadlines.race_s(large, 2, 5, slowest_over_limit=500.0, energy_s=0.4) == pytest.approx(plain + 1.6)


PARENT = """
import os, signal, sys, threading
sys.path.insert(0, {tests!r})
from test_gpu_client import FAKE, START, WorkerClient, trial
client = WorkerClient(START, command=(sys.executable, str(FAKE), "by name", sys.argv[1]))
trial(client, "fine")
if sys.argv[2] == "hanging":
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    trial(client, "hang")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("worker_is", ["idle", "hanging"])
def test_the_worker_dies_with_its_parent(log, worker_is):
    code = PARENT.format(tests=str(FAKE.parent))
    root = str(FAKE.parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code, log, worker_is], env=environment, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    (pid,) = worker_pids(log)
    assert is_gone_soon(pid)


def test_the_real_worker_says_what_is_missing(tmp_path):
    """No GPU has this UUID; where there is no driver at all, that is said instead."""
    client = WorkerClient(protocol.Start("GPU-no-such-one", KNOWN["h200"], b""))
    try:
        with pytest.raises((EnvironmentProblem, DeviceLost), match="GPU"):
            client.start()
    finally:
        client.close()


def test_a_renewed_worker_is_another_process_that_prepares_anew(make, log):
    client = make()
    assert client.trial(RunTrial(PROBLEM, KernelCode(b"", "good", SPEC), None), 30.0).outcome is Outcome.OK
    (before,) = worker_pids(log)
    client.renew()
    assert is_gone_soon(before)
    assert client.trial(RunTrial(PROBLEM, KernelCode(b"", "good", SPEC), None), 30.0).outcome is Outcome.OK
    lines = log.read_text().split()[1::2]
    assert lines == ["Start", "Prepare", "RunTrial", "Start", "Prepare", "RunTrial"]


# ------------------------------------------------------------------------------------ many cells


def cells(*names):
    """A request for cells of kernels of these names; None is cuBLAS."""
    kernels = (None if name is None else KernelCode(b"", name, SPEC) for name in names)
    cells = tuple((PROBLEM.gemm, kernel, None, False) for kernel in kernels)
    return protocol.RunCells(cells, CachePolicy.COLD)


def test_cells_are_timed_in_one_request_and_nothing_is_prepared(make, log):
    times = make().cells(cells("a", None, "b"), 5.0)
    assert [time.samples_us for time in times] == [(1.0,), (2.0,), (3.0,)]
    assert requests(log) == ["Start", "RunCells", "cell a", "cell cuBLAS", "cell b"]


@pytest.mark.every(3)
@pytest.mark.parametrize("killer", ["crash", "sticky"])
@pytest.mark.parametrize("at", range(5))
def test_a_cell_that_brings_the_worker_down_costs_itself(make, log, killer, at):
    names = [*"abcd"]
    names.insert(at, killer)
    client = make()
    times = client.cells(cells(*names), 5.0)
    assert [bool(time.samples_us) for time in times] == [name != killer for name in names]
    assert ("ILLEGAL_ADDRESS" if killer == "sticky" else "the GPU worker died") in times[at].reason
    num_run = log.read_text().count(f"cell {killer}")
    again = client.cells(cells(killer, "a"), 5.0)
    assert "it brought a worker down" in again[0].reason and again[1].samples_us
    assert log.read_text().count(f"cell {killer}") == num_run  # never run again


def test_problems_are_prepared_again_behind_cells(make, log):
    client = make()
    client.prepare(PROBLEM)
    client.cells(cells("a"), 5.0)
    client.prepare(PROBLEM)
    assert requests(log) == ["Start", "Prepare", "RunCells", "cell a", "Prepare"]


def test_an_answer_does_not_wait_for_what_is_tidied_up_after_it():
    ours, theirs = multiprocessing.Pipe()
    is_read, tidied = threading.Event(), []

    def tidy() -> None:
        tidied.append(is_read.wait(5))

    answer = protocol.Failed("environment", "none")
    thread = threading.Thread(target=protocol.serve, args=(theirs, lambda request: answer, tidy))
    thread.start()
    ours.send("request")
    assert ours.recv() == answer and not tidied
    is_read.set()
    ours.send(protocol.Shutdown())
    thread.join(5)
    assert tidied == [True]

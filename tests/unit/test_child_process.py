"""Processes that are started for GPUs: they hear signals and of their parent's end, whatever forked them."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from autotune.kernel.compiler import Compiler, usable_cores
from autotune.search import InterruptHandler
from autotune.service.child_process import ChildProcess, Parent


def until_interrupted(parent: Parent) -> None:
    with InterruptHandler() as interrupt_handler:
        parent.tell("ready")
        while not interrupt_handler.is_requested:
            time.sleep(0.01)
        parent.tell("ended", interrupt_handler.number)


def compiling(parent: Parent, cache_dir: Path) -> None:
    parent.tell("compiles", Compiler("sm_90", cache_dir=cache_dir).num_threads)


def test_processes_that_share_a_machine_divide_its_cores(tmp_path: Path) -> None:
    for num_sharing, num_taken in ((1, 0), (2, 0), (1, 1), (2 * usable_cores(), 0), (1, 2 * usable_cores())):
        child = ChildProcess.start(compiling, tmp_path, num_sharing=num_sharing, num_taken=num_taken)
        assert child.hear() == ("compiles", [max(1, (usable_cores() - num_taken) // num_sharing)])
        child.end(10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    """As in the background of a script, whose Ctrl-C is of what runs in the foreground."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with InterruptHandler() as interrupt_handler:
            signal.raise_signal(number)
        assert not interrupt_handler.is_requested and signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_signal_reaches_a_process_whose_forking_process_was_lost() -> None:
    child = ChildProcess.start(until_interrupted)
    assert child.hear() == ("ready", [])
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    child.signal(signal.SIGTERM)
    assert child.hear() == ("ended", [signal.SIGTERM])
    child.end(10)
    assert child.is_gone


def test_another_starts_at_the_moment_at_which_what_forks_is_lost() -> None:
    for _ in range(2):
        ChildProcess.start(until_interrupted).end(0)
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)


def test_a_process_whose_parent_is_gone_ends_in_order() -> None:
    child = ChildProcess.start(until_interrupted)
    assert child.hear() == ("ready", [])
    child.pipe.close()
    child.process.join(30)
    assert child.process.exitcode == 0


def test_one_that_does_not_end_is_killed() -> None:
    child = ChildProcess.start(until_interrupted)
    assert child.hear() == ("ready", [])
    child.end(0.05)
    assert child.is_gone and child.process.exitcode == -signal.SIGKILL

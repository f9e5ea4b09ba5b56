"""Workers of the queue, whose GPUs replayed spaces stand in for: they end requests, and give back what they
cannot end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from threading import Timer

import pytest

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy
from autotune.files.errors import DeviceLost
from autotune.service import queue_worker
from autotune.service.child_process import ChildHandle, ChildProcess
from autotune.service.queue_worker import QueueWork
from autotune.service.several_gpus import SeveralGpus
from autotune.store import RequestState, Store, Wanted
from autotune.target_finder import Selected

RECORDED = targets.default_recording()
SMALL = Gemm.parse("1024")


def start(db: str | Path, *options: str, rate: float = 300) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "autotune", "worker", "--db", str(db), "--effort", "quick", *options]
    environment = {**os.environ, "AUTOTUNE_REPLAY_RATE": str(rate)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def end(worker: subprocess.Popen[bytes], code: int = 0) -> str:
    text = worker.communicate(timeout=60)[1].decode()
    assert worker.returncode == code, text
    return text


def wait_until(is_there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.stress
def test_requests_are_tuned_or_refused(tmp_path: Path) -> None:  # on PostgreSQL: tests/chaos
    with Store.open(tmp_path / "a.db") as store:
        queue = store.queue()
        requested = [Wanted(SMALL, "NVIDIA H200", gain_us=2.0), Wanted(Gemm.parse("77"), "h200", gain_us=1.0)]
        queue.submit([*requested, Wanted(SMALL, "NVIDIA L4")])
        worker = start(tmp_path / "a.db", "--gpu", f"replay:{RECORDED}", "--seconds", "4")
        wait_until(
            lambda: queue.counts()[RequestState.WAITING] == 1 and not queue.counts()[RequestState.TUNING]
        )
        worker.send_signal(signal.SIGTERM)
        end(worker)
        found = {one.wanted.gpu: one for one in queue.requests()}
        tuned, rejected = found["NVIDIA H200"], found["h200"]
        assert tuned.state == RequestState.TUNED and tuned.result["time_us"] > 0
        assert rejected.state == RequestState.REFUSED and "holds no 77x77x77" in rejected.reason
        assert found["NVIDIA L4"].state == RequestState.WAITING, "another model's"
        (status,) = queue.workers()
        num_done = 2 + tuned.num_tries  # on a busy machine seconds may leave no final: it is tried again
        assert (status.kind, status.gpu, status.is_alive) == ("gpu", "NVIDIA H200", False)
        assert status.num_done == num_done


@pytest.mark.stress
def test_a_signal_gives_the_request_back_and_a_kill_lets_it_lapse(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    with Store.open(db) as store:
        queue = store.queue()
        queue.submit([Wanted(SMALL)])
        for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
            worker = start(db, "--gpu", f"replay:{RECORDED}", rate=5)
            wait_until(lambda: queue.counts()[RequestState.TUNING])
            worker.send_signal(number)
            end(worker, code)
        wait_until(lambda: not any(one.is_alive for one in queue.workers()))
        (given_back,) = queue.requests()
        assert given_back.num_tries == 0 and given_back.state == RequestState.WAITING
        worker = start(db, "--gpu", f"replay:{RECORDED}", "--seconds", "2", "--drain")
        end(worker)
        assert queue.requests()[0].state == RequestState.TUNED


@pytest.mark.stress
def test_a_worker_without_work_is_refused(tmp_path: Path) -> None:
    assert "--gpu all" in end(start(tmp_path / "a.db"), 2)
    assert "no file" in end(start(tmp_path / "a.db", "--gpu", "replay:"), 2)
    keyed = start(tmp_path / "a.db", "--compile", "1", "--key", str(tmp_path / "key"))
    assert "`tables follow`" in end(keyed, 2)


class Deaf(ChildHandle):
    """A process that heeds no signal."""

    ending, is_killed = "", False

    def kill(self) -> None:
        self.is_killed = True


def test_gpus_of_a_machine_divide_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[tuple[str, int, int]] = []

    def start(
        program: Callable[..., None], selector: str, *_: object, num_sharing: int, num_taken: int = 0
    ) -> ChildHandle:
        divided.append((selector, num_sharing, num_taken))
        raise DeviceLost("at once")

    monkeypatch.setattr(ChildProcess, "start", start)
    gpus = [Selected("0", "h100"), Selected("1", "h100")]
    work = QueueWork(str(tmp_path / "a.db"), 1.0, CachePolicy.COLD, None, "quick")
    with pytest.raises(DeviceLost):
        queue_worker.serve(gpus, 3, work, print)
    with pytest.raises(DeviceLost):
        SeveralGpus(gpus, {}, print, print, print)
    assert divided == [("0", 2, 3), ("0", 2, 0)], "what compiles for others has its cores"


def test_who_heeds_no_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_worker, "END_S", 0.05)
    ours, theirs = Pipe()
    deaf, work = Deaf(ours), QueueWork(str(tmp_path / "a.db"), 1.0, CachePolicy.COLD, None, "quick")
    Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    queue_worker.serve([Selected("0", "")], 0, work, print, lambda *_: deaf)
    assert deaf.is_killed
    theirs.close()

"""Processes that share a GPU: one at a time, each in its turn, whoever dies."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from test_gpu_client import FAKE, START, trial

from autotune.facts.measurement import Outcome
from autotune.gpu.client import WorkerClient
from autotune.gpu.turns import Turns

UUID = "GPU-0"
ROOT = Path(__file__).resolve().parents[2]
# Takes a turn of 2 ms again and again, with as little between as can be, and writes down when.
GREEDY = """
import sys, time
from pathlib import Path
from autotune.gpu.turns import Turns
folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
turns, log = Turns("GPU-0", print, folder), []
until = time.monotonic() + seconds
with turns.take():
    print("holds", flush=True)
    sys.stdin.readline()
while time.monotonic() < until:
    with turns.take():
        began = time.monotonic()
        time.sleep(0.002)
        log.append((began, time.monotonic()))
for turn in log:
    print(*turn)
"""


def start(folder: Path, seconds: float = 0.0, program: str = GREEDY) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-c", program, folder, str(seconds)], env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process


def waiting(turns: Turns) -> tuple[threading.Thread, threading.Event]:
    """A thread that takes one turn, and whether it had it."""
    had = threading.Event()

    def take() -> None:
        with turns.take():
            had.set()

    thread = threading.Thread(target=take)
    thread.start()
    return thread, had


@pytest.mark.stress
def test_two_greedy_processes_never_overlap_and_both_come_to_turn(tmp_path: Path) -> None:
    processes = [start(tmp_path, 2.0) for _ in range(2)]
    turns: list[tuple[float, float, int]] = []
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for number, process in enumerate(processes):
        output, _ = process.communicate(timeout=60)
        lines = [line.split() for line in output.splitlines() if line[0].isdigit()]
        turns += [(float(started), float(ended), number) for started, ended in lines]
    turns.sort()
    assert all(one[1] <= other[0] for one, other in pairwise(turns))
    shared = [t for t in turns if all(any(u[2] == n and u[0] >= t[0] for u in turns) for n in (0, 1))]
    counts = Counter(number for _, _, number in shared)
    assert min(counts.values()) > 10
    assert max(counts.values()) <= 2 * min(counts.values()) + 10  # nobody starves


def test_a_turn_is_waited_for_and_the_other_is_named_once(tmp_path: Path) -> None:
    notes: list[str] = []
    turns = Turns(UUID, notes.append, tmp_path)
    with turns.take():
        pass
    assert notes == []  # alone
    holder = start(tmp_path)
    assert holder.stdout.readline() == "holds\n"
    thread, had = waiting(turns)
    assert not had.wait(0.3)
    assert f"Process {holder.pid} measures on this GPU too" in notes[0]
    holder.communicate("\n", timeout=60)
    thread.join(60)
    assert had.is_set() and len(notes) == 1
    turns.close()


def test_who_is_killed_gives_the_turn_back(tmp_path: Path) -> None:
    holder, turns = start(tmp_path), Turns(UUID, folder=tmp_path)
    assert holder.stdout.readline() == "holds\n"
    thread, had = waiting(turns)
    assert not had.wait(0.1)
    holder.kill()
    thread.join(60)
    assert had.is_set()
    holder.communicate(timeout=60)
    turns.close()


def test_other_gpus_are_free_meanwhile(tmp_path: Path) -> None:
    one, other = Turns(UUID, folder=tmp_path), Turns("GPU-1", folder=tmp_path)
    with one.take(), other.take():
        pass
    one.close()
    other.close()


def test_an_error_in_a_turn_ends_it(tmp_path: Path) -> None:
    one, other = Turns(UUID, folder=tmp_path), Turns(UUID, folder=tmp_path)
    with pytest.raises(RuntimeError), one.take():
        raise RuntimeError
    with other.take():
        pass
    one.close()
    other.close()


def test_where_no_file_can_be_made_there_are_no_turns(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    turns = Turns(UUID, folder=tmp_path / "file")
    with turns.take():
        pass
    turns.close()


def test_where_there_are_no_locks_there_are_no_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    messages: list[str] = []
    turns = Turns(UUID, messages.append, folder=tmp_path)
    for _ in range(2):
        with turns.take() as workers:
            assert workers == frozenset()
    turns.close()
    (note,) = messages
    assert "without locks (No locks available)" in note and "Set TMPDIR" in note


def test_what_a_link_leads_to_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("a thesis")
    (tmp_path / f"autotune-{UUID}.gpu").symlink_to(precious)
    turns = Turns(UUID, folder=tmp_path)
    with turns.take():
        pass
    turns.close()
    assert precious.read_text() == "a thesis"


@pytest.mark.parametrize("kind", ["gate", "gpu"])
def test_where_a_pipe_is_in_the_way_there_are_no_turns(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / f"autotune-{UUID}.{kind}")
    turns = Turns(UUID, folder=tmp_path)
    with turns.take():
        turns.set_worker_pid(7)
    turns.close()


def test_without_a_folder_for_temporary_files_there_are_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", _no_folder)
    turns = Turns(UUID)
    with turns.take():
        pass
    turns.close()


def _no_folder() -> str:
    raise FileNotFoundError("No usable temporary directory found")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_file_of_another_user_is_locked_all_the_same() -> None:
    """In a folder as /tmp is, the other may read it, not more."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        Turns(UUID, folder=folder).close()
        assert len(list(folder.iterdir())) == 2
        as_nobody = GREEDY.replace("turns, log", "import os; os.setuid(65534)\nturns, log")
        holder, notes = start(folder, program=as_nobody), list[str]()
        assert holder.stdout.readline() == "holds\n"
        turns = Turns(UUID, notes.append, folder)
        thread, had = waiting(turns)
        assert not had.wait(0.1)
        holder.communicate("\n", timeout=60)
        thread.join(60)
        assert had.is_set() and len(notes) == 1
        turns.close()


def partners_received(client: WorkerClient) -> set[int]:
    return set(map(int, trial(client, "").reason.split()))


def test_workers_are_told_whose_turns_they_share(tmp_path: Path) -> None:
    command = (sys.executable, str(FAKE), "tell partners", str(tmp_path / "log"))
    clients = [WorkerClient(START, command=command, turns=Turns(UUID, folder=tmp_path)) for _ in range(3)]
    alone = WorkerClient(START, command=command)
    workers = set[int]()
    for client in clients:  # each is known from when it is ready
        messages = partners_received(client)
        assert client._process is not None and workers < messages
        workers.add(client._process.pid)
        assert messages == workers
    assert [partners_received(client) for client in (*clients, *clients)] == [workers] * 6
    assert partners_received(alone) == set()
    clients[0].renew()
    assert clients[0]._process is not None and clients[0]._process.pid in partners_received(clients[1])
    for client in (*clients, alone):
        client.close()


def test_signatures_that_are_old_or_damaged_name_no_partner(tmp_path: Path) -> None:
    now = int(time.monotonic())
    lines = [f"1 11 {now}", f"2 12 {now - 3601}", f"3 13 {now + 60}", "4 14", "x y z", "", f"5 0 {now}"]
    (tmp_path / f"autotune-{UUID}.gpu").write_text("\n".join(lines))
    turns = Turns(UUID, folder=tmp_path)
    with turns.take() as peers:
        assert peers == {11}
        turns.set_worker_pid(21)
    with turns.take() as peers:
        assert peers == {11, 21}
    turns.close()


def test_many_partners_leave_a_file_of_bounded_size(tmp_path: Path) -> None:
    for worker in range(10_000_000, 10_000_100):
        turns = Turns(UUID, folder=tmp_path)
        with turns.take():
            turns.set_worker_pid(worker)
        turns.close()
    turns = Turns(UUID, folder=tmp_path)
    with turns.take() as peers:
        assert 10_000_099 in peers and len(peers) < 20
    turns.close()


def test_waiting_for_a_turn_is_not_held_against_a_candidate(tmp_path: Path) -> None:
    """Nor does a hang keep the GPU: the worker is killed and the next one comes to turn."""
    command = (sys.executable, str(FAKE), "by name", str(tmp_path / "log"))
    clients = [WorkerClient(START, command=command, turns=Turns(UUID, folder=tmp_path)) for _ in range(2)]
    assert [trial(client, "fine").outcome for client in clients] == [Outcome.OK] * 2
    hung: list[Outcome] = []
    thread = threading.Thread(target=lambda: hung.append(trial(clients[0], "hang", 1.5).outcome))
    thread.start()
    while "Trial" not in (tmp_path / "log").read_text().splitlines()[-1]:
        time.sleep(0.01)
    time.sleep(0.2)
    assert trial(clients[1], "fine", 0.7).outcome is Outcome.OK  # after more than 0.7 s of waiting
    thread.join(60)
    assert hung == [Outcome.TIMED_OUT]
    for client in clients:
        client.close()

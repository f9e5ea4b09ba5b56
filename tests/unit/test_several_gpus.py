"""A search on several GPUs, which replayed spaces stand in for: who gets which shapes, and who ends when."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from cli_here import run_here

from autotune import target_finder as targets
from autotune.facts.gemm import Gemm
from autotune.files.errors import DeviceLost, UsageError
from autotune.search import InterruptHandler
from autotune.search.part import Dispenser
from autotune.search.progress import Event, TrialDone
from autotune.service import several_gpus
from autotune.service.child_process import ChildHandle
from autotune.service.several_gpus import SeveralGpus
from autotune.target_finder import Selected

SHAPES = [Gemm(n, n, n) for n in (256, 512, 1024, 2048, 4096)]
RECORDED = targets.default_recording()
DOUBLED = "SELECT 1 FROM trial GROUP BY study_id, config_id HAVING count(*) > 1"


def test_with_seconds_each_gpu_has_its_share_and_takes_what_another_lost() -> None:
    dispenser = Dispenser(2)
    assert dispenser.begin(1, SHAPES, True) == SHAPES[1::2]
    assert dispenser.begin(0, SHAPES, True) == SHAPES[0::2]
    assert dispenser.more(0, 0) == []
    dispenser.lose(1)
    assert dispenser.more(0, 0) == SHAPES[1::2]


def test_without_seconds_shapes_go_to_gpus_as_they_become_free() -> None:
    dispenser = Dispenser(2)
    assert dispenser.begin(0, SHAPES, False) == SHAPES[:2]
    assert dispenser.begin(1, SHAPES, False) == SHAPES[2:3]
    assert dispenser.more(0, 2) == []
    assert dispenser.more(1, 1) == SHAPES[3:4]
    assert dispenser.more(0, 0) == SHAPES[4:]
    assert dispenser.more(1, 0) == []


def test_fewer_shapes_than_gpus_are_searched_by_several() -> None:
    for by_clock in (True, False):
        dispenser = Dispenser(4)
        found = [dispenser.begin(gpu, SHAPES[:2], by_clock) for gpu in range(4)]
        assert sorted(gemm for own in found for gemm in own) == sorted(2 * SHAPES[:2])
        assert all(len(own) == 1 for own in found)


def test_a_selector_may_name_several(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [
        targets.gpu.GpuInfo(index, name, f"GPU-{index}", (9, 0), 1 << 30)
        for index, name in enumerate(("NVIDIA H200", "NVIDIA H200", "NVIDIA L4"))
    ]
    monkeypatch.setattr(targets.gpu, "list_gpus", lambda: gpus, raising=False)
    monkeypatch.setattr(targets.gpu, "find_gpu", lambda one: gpus[int(one)], raising=False)
    h200s = [Selected("GPU-0", "NVIDIA H200"), Selected("GPU-1", "NVIDIA H200")]
    assert targets.select("all") == [*h200s, Selected("GPU-2", "NVIDIA L4")]
    assert targets.select("h200") == targets.select("0,1") == targets.select("1, 0,1")[::-1] == h200s
    assert targets.select("0") == [Selected("0", "")]
    assert targets.select("replay:a,b,replay:c") == [Selected("replay:a,b", "a,b"), Selected("replay:c", "c")]
    with pytest.raises(UsageError, match="AUTOTUNE_REPLAY_RATE is 'fast'"):
        monkeypatch.setenv("AUTOTUNE_REPLAY_RATE", "fast")
        targets.open_target(f"replay:{RECORDED}", targets.CachePolicy.COLD, note=print)


@pytest.mark.stress
def test_two_gpus_divide_shapes_and_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_REPLAY_RATE", "300")
    db, gpus = tmp_path / "a.db", f"replay:{RECORDED},replay:{RECORDED}"
    shapes = ("--shape", "1024", "--shape", "4096", "--shape", "4097")
    given = ("search", "--gpu", gpus, "--db", db, "--json")
    done = run_here(*given, *shapes, "--trials", "10")
    facts = json.loads(done.stdout)
    assert {one["shape"]: one["num_trials"] for one in facts["shapes"]} == dict.fromkeys(
        ("1024x1024x1024:NN", "4096x4096x4096:NN", "4097x4097x4097:NN"), 10
    )
    assert facts["num_new"] == 30 and facts["stopped"] == "trials"
    one_shape = run_here(*given, "--shape", "65536x64x64", "--trials", "12")
    assert json.loads(one_shape.stdout)["num_new"] >= 12
    with sqlite3.connect(db) as connection:
        assert connection.execute(DOUBLED).fetchall() == []
        assert len(set(connection.execute("SELECT name FROM run"))) == 4
    connection.close()


@pytest.mark.stress
def test_a_gpu_that_is_lost_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_REPLAY_RATE", "50")
    lost: list[int] = []

    def kill_one(event: Event) -> None:
        if isinstance(event, TrialDone) and not lost:
            lost.append(several._gpus[1].child.process.pid or 0)
            os.kill(lost[0], signal.SIGKILL)

    shapes = [Gemm.parse(text) for text in ("1024", "4096", "512x512x16384")]
    arguments = {"shapes": shapes, "trials": 8, "db": str(tmp_path / "a.db")}
    selected = 2 * [Selected(f"replay:{RECORDED}", "h200")]
    noted: list[str] = []
    several = SeveralGpus(selected, arguments, kill_one, lambda *_: None, noted.append)
    found = several.run(InterruptHandler())
    (result,) = found.results
    assert {shape.gemm: shape.num_trials for shape in result.shapes} == dict.fromkeys(shapes, 8)
    assert [type(error) for error in found.errors.values()] == [DeviceLost]
    assert "run the same command again" in noted[0]


@pytest.mark.stress
def test_a_signal_ends_all_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_REPLAY_RATE", "20")
    interrupt_handler = InterruptHandler()

    def interrupt(event: Event) -> None:
        if isinstance(event, TrialDone):
            interrupt_handler.number = signal.SIGINT

    arguments = {"shapes": [Gemm.parse("1024")], "trials": 1000, "db": str(tmp_path / "a.db")}
    selected = 2 * [Selected(f"replay:{RECORDED}", "h200")]
    found = SeveralGpus(selected, arguments, interrupt, lambda *_: None, print).run(interrupt_handler)
    (result,) = found.results
    assert (result.search.reason, result.search.signal) == ("interrupted", signal.SIGINT)
    assert not found.errors and result.search.num_new >= 1


class _Starting(ChildHandle):
    """Of a process that loads its modules yet: a signal ends it at once."""

    ending = "its process ended (-15)"
    num_started = 0

    def __init__(self, *_: object) -> None:
        ours, self._theirs = multiprocessing.Pipe()
        super().__init__(ours)
        _Starting.num_started += 1
        if _Starting.num_started == 1:
            signal.raise_signal(signal.SIGINT)  # Ctrl-C

    def signal(self, number: int) -> None:
        self._theirs.close()

    def kill(self) -> None:
        self._theirs.close()


def test_a_signal_before_any_gpu_has_begun_is_no_loss_of_these() -> None:
    noted: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        several_gpus.tune(
            2 * [Selected("0", "h200")], {}, on_event=print, on_fill=print, note=noted.append, start=_Starting
        )
    assert noted == []


def test_an_error_of_all_is_told_once(tmp_path: Path) -> None:
    gpus = f"replay:{RECORDED},replay:{RECORDED}"
    done = run_here("search", "--gpu", gpus, "--shape", "77", "--db", tmp_path / "a.db", exit_code=1)
    assert isinstance(done.exception, UsageError)

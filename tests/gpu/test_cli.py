"""The whole path on a GPU, as a user goes it: search, trials, bench, export, verify, record, replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.xdist_group("the CLI on a GPU")]


def autotune(cwd: Path, *arguments: str) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments, "--json"],
        cwd=cwd, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two shapes were searched."""
    folder = tmp_path_factory.mktemp("path")
    shapes = ("--shape", "512", "--shape", "35x700x2048:NT")
    facts = autotune(folder, "search", "--gpu", "0", *shapes, "--trials", "24")
    assert facts["num_new"] == 48
    assert not facts["is_recorded"]
    assert all(shape["cublas_time_us"] > shape["limit_us"] for shape in facts["shapes"])
    assert all(shape["best_time_us"] > shape["limit_us"] for shape in facts["shapes"])
    return folder


def test_trials_are_kept_with_clocks_and_samples(here: Path) -> None:
    history = autotune(here, "trials", "history", "--limit", "48")["trials"]
    ok = [trial for trial in history if trial["outcome"] == "ok"]
    assert len(history) == 48
    assert ok
    assert all(trial["samples_us"] and trial["error_ratio"] <= 1 for trial in ok)
    assert all(trial["registers"] for trial in ok)


def test_bench_times_both_in_the_same_rounds(here: Path) -> None:
    shapes = autotune(here, "bench", "--gpu", "0", "--rounds", "9")["shapes"]
    assert {shape["shape"] for shape in shapes} == {"512x512x512:NN", "35x700x2048:NT"}
    assert all(len(s["samples_us"]) == len(s["cublas_samples_us"]) == 9 for s in shapes)


@pytest.mark.alone  # beside sixteen processes 3 of 1,284 checks took 5 s, and passed for kernels that hang
def test_an_exported_folder_is_verified(here: Path) -> None:
    exported = autotune(here, "export-table", "--max-kernels", "60", "--out", "table")  # all take 140 s
    assert not exported["is_recorded"]
    checks = autotune(here, "verify", "table", "--gpu", "0")["checks"]
    assert {check["outcome"] for check in checks} == {"ok"}
    assert all(check["error_ratio"] <= 1 for check in checks)


def test_what_is_recorded_can_be_searched(here: Path) -> None:
    record = ("record", "--gpu", "0", "--shape", "512", "--configs", "20", "--seed", "5", "--out", "space.gz")
    recorded = autotune(here, *record)["shapes"][0]
    assert recorded["num_configs"] == 20
    assert autotune(here, *record)["shapes"][0] == recorded  # all is there already
    replay = ("search", "--gpu", "replay:space.gz", "--shape", "512", "--db", "replay.db")
    facts = autotune(here, *replay)
    assert facts["is_recorded"]
    assert facts["best_time_us"] == pytest.approx(recorded["best_time_us"], rel=1e-3)


def test_doctor_finds_everything(here: Path) -> None:
    findings = {finding["name"]: finding["state"] for finding in autotune(here, "doctor")["findings"]}
    assert findings["gpu"] == findings["cublas"] == findings["compiler"] == "ok"

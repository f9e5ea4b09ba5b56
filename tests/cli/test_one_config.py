"""One config by hand: timed against cuBLAS, and written as source."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from .conftest import SQUARE, measured, points
from .runner import run

BEST = points(SQUARE)[20]
CONFIG = replace(BEST, copy_a="register")


def test_configs_are_timed_in_the_same_rounds(recording: Path) -> None:
    arguments = ("--gpu", f"replay:{recording}", "--shape", "512")
    facts = json.loads(
        run("time", BEST.key, json.dumps(points(SQUARE)[21].to_dict()), *arguments, "--json").stdout
    )
    best, second = facts["kernels"]
    assert best["config"] == BEST.to_dict() and len(best["samples_us"]) == facts["num_rounds"] == 15
    assert (
        best["time_us"] == pytest.approx(measured(20).time_us, rel=0.01)
        and second["time_us"] > best["time_us"]
    )
    low, high = best["speedup_interval"]
    assert low <= best["speedup"] <= high and best["speedup"] == pytest.approx(13 / 12.5, rel=0.01)
    text = run("time", BEST.key, *arguments).stdout
    assert "recorded on NVIDIA H200" in text and "cuBLAS" in text.splitlines()[-1]


def test_a_config_that_cannot_be_timed_is_refused_with_the_reason(recording: Path) -> None:
    arguments = ("--gpu", f"replay:{recording}", "--shape", "512")
    assert "spilled: 96 bytes" in run("time", points(SQUARE)[3].key, *arguments, code=2).stderr
    broken = run("time", "bm=64,wm=48", *arguments, code=2).stderr
    assert "cannot run on NVIDIA H200 for 512x512x512:NN: " in broken
    crowded = run("time", "bm=128", *arguments, code=2).stderr
    assert "here at least 98 registers per thread, at most 64" in crowded
    other = run("time", "bm=128,min_blocks=2", *arguments, code=2).stderr
    assert "not among the configs recorded" in other and "`autotune trials history` lists" in other
    assert "unknown parameter 'bmm' (did you mean 'bm'?)" in run("time", "bmm=64", *arguments, code=2).stderr


def test_a_source_is_written_with_the_command_that_compiles_it(tmp_path: Path) -> None:
    out = tmp_path / "a kernel.cu"
    message = run("source", CONFIG.key, "--gpu", "rtx-4090", "--shape", "512b4:TN", "--out", out).stdout
    command = message.partition("Next: ")[2].strip()
    text = out.read_text()
    assert "-arch=sm_89" in command and command in text
    assert (
        f"#define BM {CONFIG.bm}\n" in text
        and "#define TRANS_A 1\n" in text
        and "#define BATCHED 1\n" in text
    )
    printed = run("source", CONFIG.key, "--gpu", "rtx-4090", "--shape", "512b4:TN").stdout
    assert printed.splitlines()[4:] == text.splitlines()[4:]
    unnamed = run("source", CONFIG.key, "--out", tmp_path / "kernel").stdout  # a name that tells nvcc nothing
    assert "-x cu " in unnamed and "-x cu " not in command
    if shutil.which("nvcc"):
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
        assert (tmp_path / "sgemm.cubin").stat().st_size > 0


def test_a_source_of_no_kernel_is_refused(tmp_path: Path) -> None:
    assert "cannot run on" in run("source", "bm=64,wm=48", code=2).stderr
    assert "0x0x0:NN: C is empty" in run("source", BEST.key, "--shape", "0", code=2).stderr
    assert "cannot be written" in run("source", BEST.key, "--out", tmp_path / "no" / "x.cu", code=2).stderr
    assert "--gpu 'gtx-480'" in run("source", BEST.key, "--gpu", "gtx-480", code=2).stderr
    stages = run("source", f"{BEST.key.replace('stages=', 'pad=8,stages=')}", code=2).stderr
    assert "name each parameter once" in stages

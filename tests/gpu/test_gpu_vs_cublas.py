"""benchmarks/vs_cublas.py on a GPU: after a short search, everyone is there, right, and timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHAPES = ("512", "512:NT", "300x200x1000:TN", "35x700x2048:TT")
pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(900)]


def python(cwd: Path, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def shapes() -> list[str]:
    return [argument for shape in SHAPES for argument in ("--shape", shape)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, shapes: list[str]) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("vs_cublas")
    python(folder, "-m", "autotune", "search", "--gpu", "0", *shapes, "--trials", "40", "--quiet")
    script = str(REPOSITORY / "benchmarks" / "vs_cublas.py")
    python(folder, script, "--gpu", "0", *shapes, "--rounds", "7", "--out", "a.json", "--svg", "a.svg")
    assert ElementTree.parse(folder / "a.svg").getroot().tag.endswith("svg")
    found: dict[str, Any] = json.loads((folder / "a.json").read_text())
    return found


def test_ours_cublas_and_cublaslt_are_timed_in_every_layout(report: dict[str, Any]) -> None:
    assert len(report["shapes"]) == len(SHAPES)
    for shape in report["shapes"]:
        assert {"ours", "cublas", "cublaslt"} <= set(shape["contestants"]), shape["notes"]
        for contestant in shape["contestants"].values():
            assert len(contestant["samples_us"]) == 7
            assert 0 < contestant["share_of_limit"] < 1.1


def test_everyone_is_as_accurate_as_floats_are(report: dict[str, Any]) -> None:
    for shape in report["shapes"]:
        for contestant in shape["contestants"].values():
            assert 0 < contestant["relative_error"] < 1e-5
            assert contestant["share_checked"] == 1.0


def test_the_report_says_where_it_comes_from(report: dict[str, Any]) -> None:
    assert report["environment"]["cublas_version"]
    assert report["date"].startswith("20")
    assert set(report["means"]) >= {"ours", "cublas", "cublaslt"}

"""benchmarks/any_shape.py on a GPU: each part runs, goes on, and tells right results from a small table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = str(REPOSITORY / "benchmarks" / "any_shape.py")
DRAW = ("--gpu", "0", "--seed", "4242", "--num", "6", "--alone", "2")
pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(1200)]


def python(cwd: Path, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table from a search of one shape, and all parts done."""
    folder = tmp_path_factory.mktemp("any_shape")
    python(folder, "-m", "autotune", "search", "--gpu", "0", "--shape", "1024", "--trials", "40", "--quiet")
    python(folder, "-m", "autotune", "export-table", "--out", "table", "--max-kernels", "24")
    python(folder, SCRIPT, *DRAW, "--part", "alone", "--seconds-alone", "6", "--db", "alone.db")
    table = ("--table", "table", "--rounds", "4", "--out", "a.json", "--live")
    python(folder, SCRIPT, *DRAW, *table, "--seconds", "0")
    python(folder, SCRIPT, *DRAW, *table)
    python(folder, SCRIPT, *DRAW, *table, "--part", "reference", "--db", "alone.db")
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "a.json").read_text())
    return found


def test_picks_are_right_and_timed_beside_cublas(report: dict[str, Any]) -> None:
    assert len(report["shapes"]) == 6
    for shape in report["shapes"]:
        facts = shape["pick"]
        assert {facts["name"], "cublas"} <= facts["samples_us"].keys()
        assert facts["live"]["name"] in facts["samples_us"] and facts["live"]["num_samples"] <= 16
        assert all(0 < error < 1e-5 for errors in facts["errors"].values() for error in errors.values())


def test_references_are_of_all_kernels_that_serve(report: dict[str, Any]) -> None:
    for shape in report["shapes"][:2]:
        assert "reference" in shape, shape
        facts = shape["reference"]
        assert {"alone", "cublas", facts["name"]} <= facts["samples_us"].keys()
        assert 0 < len(facts["glances_us"]) <= facts["num_launches"]


def test_the_report_is_told_again(folder: Path) -> None:
    message = python(folder, SCRIPT, "--report", "a.json")
    assert "6 of 6 shapes against cuBLAS, 2 against a reference" in message

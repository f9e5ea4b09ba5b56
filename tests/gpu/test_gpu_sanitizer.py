"""compute-sanitizer over a spread of the template's instances, and over faults that it must see.

Each tool runs once for all instances, as starting one takes longer than most of what it checks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("sanitized.py")
NAME = "compute-sanitizer"
FOUND = 77  # exit code of the tool where it found something
MOST_S = 280.0
NUM_INSTANCES = 40  # at least
OPTIONS = {
    # The padding keeps allocations apart, so that no overrun ends in a neighbour's memory. Failed calls
    # are the driver script's to judge: cuda.bindings asks for functions that older drivers lack.
    "memcheck": ("--padding", "4096", "--report-api-errors", "no", "--destroy-on-device-error", "kernel"),
    "racecheck": (),
}
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)\b(?! errors were not printed)")

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


def find_tool() -> Path | None:
    """On the PATH, in the wheel of the CUDA toolkit, or where the toolkit is installed."""
    if on_path := shutil.which(NAME):
        return Path(on_path)
    nvidia = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) / "cu13" / NAME for folder in (nvidia and nvidia.submodule_search_locations) or ()]
    roots = [Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin"]
    return next((folder / NAME for folder in (*wheels, *roots) if (folder / NAME).is_file()), None)


@pytest.fixture(scope="module")
def tool_path(request: pytest.FixtureRequest) -> Path:
    path = find_tool()
    if path is not None:
        return path
    reason = f"{NAME} is not installed; run: pip install 'cuda-toolkit[sanitizer]==13.*', or add it to PATH"
    if request.config.getoption("--require-gpu"):
        pytest.fail(f"--require-gpu: {reason}", pytrace=False)
    pytest.skip(reason)


def run(tool_path: Path, tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The driver script under one tool."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    options = ("--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20", *OPTIONS[tool])
    return subprocess.run(
        [tool_path, *options, sys.executable, DRIVER, *arguments],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=MOST_S,
    )  # fmt: skip


def num_found(done: subprocess.CompletedProcess[str]) -> int:
    """Errors or hazards by the tool's own count."""
    summaries = _SUMMARY.findall(done.stdout)
    assert len(summaries) == 1, f"exit {done.returncode}, no summary:\n{done.stdout}\n{done.stderr}"
    return int(summaries[0])


def said(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit {done.returncode}\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize(("tool", "cases"), [("memcheck", "all"), ("racecheck", "pipelined")])
def test_the_template_is_clean(tool_path: Path, tool: str, cases: str) -> None:
    done = run(tool_path, tool, "spread", cases)
    assert num_found(done) == 0, said(done)
    assert done.returncode == 0, said(done)
    facts = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert facts["wrong"] == []
    assert facts["num_instances"] >= NUM_INSTANCES
    assert facts["num_launches"] >= 4 * NUM_INSTANCES


@pytest.mark.parametrize("tool", OPTIONS)
def test_nothing_is_found_in_a_clean_kernel(tool_path: Path, tool: str) -> None:
    done = run(tool_path, tool, "plant", "clean")
    assert (done.returncode, num_found(done)) == (0, 0), said(done)


@pytest.mark.parametrize(
    ("tool", "kind", "name"),
    [
        ("memcheck", "plant", "reads too far"),
        ("memcheck", "plant", "writes too far"),
        ("memcheck", "mutant", "no check of the edge"),
        ("racecheck", "plant", "races"),
        ("racecheck", "plant", "reads too soon"),
        ("racecheck", "mutant", "no barrier"),
    ],
)
def test_a_planted_fault_is_found(tool_path: Path, tool: str, kind: str, name: str) -> None:
    done = run(tool_path, tool, kind, name)
    assert num_found(done) > 0, said(done)
    assert done.returncode == FOUND, said(done)

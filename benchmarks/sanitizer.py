"""compute-sanitizer: where it is, how each of its tools is run over the driver script, and what it found.

The driver script is tests/gpu/sanitized.py; sanitize_table.py and the tests on a GPU run it through this.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.files.errors import EnvironmentProblem
from autotune.files.wheel_libraries import SANITIZER, pip_install

REPOSITORY = Path(__file__).resolve().parents[1]
DRIVER = REPOSITORY / "tests/gpu/sanitized.py"
NAME = "compute-sanitizer"
FOUND = 77  # exit code of the tool where it found something
MOST_S = 280.0
FIRST_LINES, LAST_LINES = 60, 10  # of a report that are shown
OPTIONS: dict[str, tuple[str, ...]] = {
    # The padding keeps allocations apart, so that no overrun ends in a neighbour's memory. Failed calls
    # are the driver script's to judge: cuda.bindings asks for functions that older drivers lack.
    "memcheck": ("--padding", "4096", "--report-api-errors", "no", "--destroy-on-device-error", "kernel"),
    "racecheck": (),
    "initcheck": (),
    "synccheck": (),
}
_VERSION = re.compile(r"^Version (\d+)\.(\d+)", re.MULTILINE)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)\b(?! errors were not printed)")
_FINDING = re.compile(
    r"^========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)(\S.*)$", re.MULTILINE
)


@dataclass(frozen=True)
class SanitizerRun:
    """How a run ended. `num_found`: errors or hazards by the tool's own count, None where it told none."""

    exit_code: int
    num_found: int | None
    stdout: str
    stderr: str

    @property
    def is_clean(self) -> bool:
        return (self.exit_code, self.num_found) == (0, 0)

    @property
    def finding(self) -> str:
        """The first line that the tool wrote about a kernel, or how else the run ended."""
        if self.num_found is None:
            tail = (self.stderr.strip() or self.stdout.strip()).splitlines()[-1:]
            return f"exit {self.exit_code} without a summary: {' '.join(tail)}"
        first = _FINDING.search(self.stdout)
        return first[1] if first else f"{self.num_found} found, exit {self.exit_code}"

    def __str__(self) -> str:
        lines = self.stdout.splitlines()
        if left := lines[FIRST_LINES:-LAST_LINES]:
            lines[FIRST_LINES:-LAST_LINES] = [f"... {len(left)} lines"]
        return "\n".join([f"exit {self.exit_code}", *lines, self.stderr[-4000:]])


def find_tool() -> Path:
    """On the PATH, in the wheel of the CUDA toolkit, or where the toolkit is installed. Raises
    EnvironmentProblem."""
    if on_path := shutil.which(NAME):
        return Path(on_path)
    nvidia = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) / "cu13" / NAME for folder in (nvidia and nvidia.submodule_search_locations) or ()]
    roots = [Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin"]
    for folder in (*wheels, *roots):
        if (folder / NAME).is_file():
            return folder / NAME
    raise EnvironmentProblem(
        f"{NAME} is not installed; install it with: {pip_install(SANITIZER)}, or add it to PATH"
    )


def version_of(path: Path) -> tuple[int, int]:
    """Year and number of a release; zeros where the tool does not say."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=MOST_S, check=False)
    found = _VERSION.search(done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def run(path: Path, tool: str, arguments: Sequence[str]) -> SanitizerRun:
    """The driver script under one tool."""
    options = ("--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20", *OPTIONS[tool])
    modules = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [path, *options, sys.executable, DRIVER, *arguments],
            env=os.environ | {"PYTHONPATH": modules}, capture_output=True, text=True, timeout=MOST_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return SanitizerRun(124, None, "", f"no end after {MOST_S:.0f} s")
    summaries = _SUMMARY.findall(done.stdout)
    num_found = int(summaries[0]) if len(summaries) == 1 else None
    return SanitizerRun(done.returncode, num_found, done.stdout, done.stderr)

"""Python programs of README and of examples/, run as they are written, with a folder from a real search."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = [
    *_BLOCK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8")),
    *(path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "examples").glob("*.py"))),
]

SEARCHING = [program for program in PROGRAMS if "autotune.tune(" in program]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.xdist_group("README on a GPU")]


def _run(*command: str, cwd: Path, path: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
    }
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `sgemm_dispatch/` in it, after a short search."""
    here = tmp_path_factory.mktemp("application")
    autotune = (sys.executable, "-m", "autotune")
    _run(
        *autotune, "search", "--gpu", "0", "--shape", "1024", "--trials", "20", cwd=here, path=str(REPOSITORY)
    )
    _run(*autotune, "export-table", cwd=here, path=str(REPOSITORY))
    return here


def _name_of(program: str) -> str:
    """The library whose arrays it multiplies."""
    return re.findall(r"^import (\w+)", program, re.MULTILINE)[0]


def _run_program(program: str, folder: Path, path: str) -> None:
    library = _name_of(program)
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (folder / "program.py").write_text(program, encoding="utf-8")
    _run(sys.executable, "program.py", cwd=folder, path=path)


@pytest.mark.parametrize("program", [one for one in PROGRAMS if one not in SEARCHING], ids=_name_of)
def test_program_runs_as_written(program: str, folder: Path) -> None:
    _run_program(program, folder, "")


@pytest.mark.alone  # its seconds are few: with fifteen processes that take turns, a shape may get no trial
@pytest.mark.parametrize("program", SEARCHING, ids=_name_of)
def test_program_that_searches_runs_as_written(program: str, tmp_path: Path) -> None:
    _run_program(program, tmp_path, str(REPOSITORY))

"""examples/: what needs no GPU runs as it is written. tests/gpu runs the programs that need one, and
tests/unit/test_c_source.py the one in C."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .runner import REPOSITORY, run

EXAMPLES = REPOSITORY / "examples"
NOTEBOOK = EXAMPLES / "from_search_to_speedup.ipynb"
_RECIPE = (EXAMPLES / "continuous-integration.yml").read_text(encoding="utf-8")
CHECKS = re.findall(r"- run: autotune (.*)$", _RECIPE, re.MULTILINE)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the notebook leaves: its cells, one after the other, as a program."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("notebook")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    saved = "import matplotlib.pyplot as p; [p.figure(i).savefig(f'{i}.png') for i in p.get_fignums()]"
    (folder / "program.py").write_text(f"{program}\n{saved}\n", encoding="utf-8")
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "times as fast as cuBLAS" in done.stdout and "how='exact'" in done.stdout
    return folder


@pytest.mark.stress
def test_the_notebook_draws_and_exports(notebook: Path) -> None:
    assert len(list(notebook.glob("*.png"))) == 2
    assert (notebook / "sgemm_dispatch/table.json").exists()


def test_the_notebook_is_committed_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells)


@pytest.mark.stress
def test_the_check_of_files_passes_where_no_gpu_is(notebook: Path) -> None:
    assert len(CHECKS) == 2
    run(*CHECKS[0].split(), cwd=notebook)


@pytest.mark.parametrize("line", CHECKS)
def test_the_checks_have_options_that_exist(line: str) -> None:
    command, *words = line.split()
    message = run(command, "--help").stdout
    assert all(word in message for word in words if word.startswith("--"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_programs_ask_for_the_folder_and_one_library(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert len(imported) == 2 and "sgemm_dispatch" in imported


def test_the_page_names_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    assert {target.rstrip("/") for target in re.findall(r"\]\(([^)]+)\)", text)} == names

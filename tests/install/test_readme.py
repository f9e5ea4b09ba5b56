"""README's commands, run as they are written with the installed wheel.

Every fenced block counts: `sh` blocks are run here, `python` blocks at least compile (tests/gpu runs
them), `c` blocks compile, `console` blocks stand under a comment that says why they are not run. No other
kind is allowed, so that no command slips through unseen.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .conftest import REPOSITORY, call

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(
    r"(<!-- not run by the tests: [^>]+ -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
BLOCKS = [(bool(match[1]), match[2], match[3]) for match in _BLOCK.finditer(README)]


def of(language: str) -> list[str]:
    return [text for _, kind, text in BLOCKS if kind == language]


def test_every_block_is_accounted_for() -> None:
    assert README.count("\n```") == 2 * len(BLOCKS)
    for is_excused, kind, text in BLOCKS:
        assert kind in ("sh", "python", "c", "console"), text
        assert is_excused == (kind == "console"), text


@pytest.mark.stress
@pytest.mark.install
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("installed")
def test_shell_blocks_run_as_written(installed: Path, tmp_path: Path) -> None:
    """In one folder, one after the other: later blocks use what earlier ones made. But for the
    number of kernels: all take minutes to compile."""
    path = os.pathsep.join([str(installed), os.environ["PATH"]])
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PATH": path}
    for written in of("sh"):
        block = written.replace("export-table", "export-table --max-kernels 8")
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", block],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"{block}\nexits {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )


@pytest.mark.parametrize("block", [*of("sh"), *of("console")])
def test_commands_exist(block: str) -> None:
    """Targets of make, extras of pip, commands of autotune and their options are known."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in block.splitlines():
        command, *words = shlex.split(line.removeprefix("$ "), comments=True)
        if command == "make":
            targets = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{words[0]}:", targets, re.MULTILINE), line
        elif command == "pip":
            named = re.fullmatch(r"\.\[([\w,]+)\]", words[1])
            assert words[0] == "install" and named, line
            assert set(named[1].split(",")) <= set(extras["optional-dependencies"]), line
        elif command == ".":
            assert words == [".venv/bin/activate"], line
        else:
            assert command == "autotune", line
            named = words[:2] if words[0] == "trials" else words[:1]
            message = call(sys.executable, "-m", "autotune", *named, "--help", cwd=REPOSITORY)
            assert [word for word in words if word.startswith("--") and word not in message] == [], line


@pytest.mark.parametrize("block", of("c"))
def test_calls_in_c_compile(block: str) -> None:
    given = "autotune_handle *handle; void *stream; int m, n, k; int64_t lda, ldb, ldc; float *a, *b, *c;"
    text = f'#include "autotune_sgemm.h"\n{given}\nvoid call(void) {{\n{block}}}\n'
    compiler = ("gcc", "-std=c11", "-fsyntax-only", "-Wall", "-Werror", "-xc", "-")
    subprocess.run([*compiler, "-I", REPOSITORY / "autotune/core"], input=text, text=True, check=True)


@pytest.mark.parametrize("block", of("python"))
def test_examples_are_whole_programs(block: str) -> None:
    tree = ast.parse(block)
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert "sgemm_dispatch" in imported

"""Runs the command line in a process of its own: one that is forked, or a new one as a shell starts it.

A new process loads Python and its packages for most of a second; one that is forked from a process that has
loaded them runs the same command in a few hundredths. tests/cli/test_root.py compares the two, and whatever
tests signals, terminals, disks and memory starts new ones.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from zygote import Zygote

REPOSITORY = Path(__file__).resolve().parents[2]
# What a user would hit if a warning slipped through: the command fails instead.
_STRICT = ("-W", "error")
_TIMEOUT_S = 240


def run(
    *arguments: str | Path, code: int = 0, cwd: Path | None = None, is_new: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`autotune ARGUMENTS`; fails unless it exits with this code, and where it does not print one object of
    standard JSON (no NaN, no Infinity) that was asked for. Standard input is closed. `is_new`: in a process
    that nothing is loaded in."""
    start = _start if is_new else _fork
    done = start([*map(str, arguments)], cwd or Path.cwd(), _environment() | {"COLUMNS": "200"} | environment)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    if "--json" in arguments and done.stdout:
        assert isinstance(json.loads(done.stdout, parse_constant=_refuse), dict)
    return done


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": path}


def _start(arguments: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *_STRICT, "-m", "autotune", *arguments],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env=environment,
        check=False,
    )


def _fork(arguments: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        child = _zygote().start([str(cwd), environment, *arguments], Path(folder))
        code = child.wait(_TIMEOUT_S)
        out, err = ((Path(folder) / name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(arguments, code, out, err)


@cache
def _zygote() -> Zygote:
    made = Zygote("forked_cli", _environment(), options=_STRICT)
    atexit.register(made.close)
    return made


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")

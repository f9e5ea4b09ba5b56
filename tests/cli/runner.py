"""Runs the command line in a process of its own, as a shell does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# What a user would hit if a warning slipped through: the command fails instead.
_STRICT = ("-W", "error")


def run(
    *arguments: str | Path, code: int = 0, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`autotune ARGUMENTS`; fails unless it exits with this code, and where it does not print one object of
    standard JSON (no NaN, no Infinity) that was asked for. Standard input is closed."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, *_STRICT, "-m", "autotune", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"} | environment,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    if "--json" in arguments and done.stdout:
        assert isinstance(json.loads(done.stdout, parse_constant=_refuse), dict)
    return done


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")

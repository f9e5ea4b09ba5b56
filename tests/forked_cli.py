"""The command line, in a process forked from one that has loaded all of it, and learnt what ships: see
cli/runner.py."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from pathlib import Path

import carried

import autotune
from autotune.cli import start

_LOADED_LATER = ("__main__", "versions", "env")  # these run when they are imported

for module in pkgutil.walk_packages(autotune.__path__, "autotune."):
    if not set(module.name.split(".")) & set(_LOADED_LATER):
        importlib.import_module(module.name)
carried.learn("h200")  # of which the recordings are


def main(folder: str, environment: dict[str, str], *arguments: str) -> None:
    """`autotune ARGUMENTS` in this folder; exits as that does."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(Path(autotune.__file__).with_name("__main__.py")), *arguments]
    sys.modules["__main__"].__package__ = "autotune"  # as with `python -m autotune`, for usage messages
    start.main()

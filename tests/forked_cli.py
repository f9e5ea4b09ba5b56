"""The command line, in a process forked from one that has loaded all of it, and learnt what ships: see
cli/runner.py."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from contextlib import suppress
from pathlib import Path

import carried

import autotune
from autotune.cli import start

_LOADED_LATER = ("__main__", "sitecustomize")  # these run when they are imported
# What commands load of others when they need it: half of what a short one takes
_OF_OTHERS = ("jinja2", "numpy.random", "optuna.storages._rdb.models", "typer._adapters")

for module in pkgutil.walk_packages(autotune.__path__, "autotune."):
    if not set(module.name.split(".")) & set(_LOADED_LATER):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:  # torch is not everywhere
            if error.name != "torch":
                raise
for name in _OF_OTHERS:
    with suppress(ImportError):  # another version may have it elsewhere
        importlib.import_module(name)
carried.learn("h200")  # of which the recordings are


def main(folder: str, environment: dict[str, str], *arguments: str) -> None:
    """`autotune ARGUMENTS` in this folder; exits as that does."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(Path(autotune.__file__).with_name("__main__.py")), *arguments]
    sys.modules["__main__"].__package__ = "autotune"  # as with `python -m autotune`, for usage messages
    start.main()

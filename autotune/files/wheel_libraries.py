"""Loads libraries of NVIDIA's wheels from wherever Python imports the wheels.

cuda-pathfinder looks into the environment's site-packages, and not where else `sys.path` leads: a folder of
`pip install --target`, or one that a path file names (findings/pathfinder-skips-target.sh). What is loaded it
finds.

What a message tells the user to install if a part is missing stands here, too: packages, not extras of
autotune, which work only if the package index has autotune itself. pyproject.toml states the same
requirements; a test compares the two. Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import importlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import EnvironmentProblem

NVRTC = "cuda-toolkit[nvrtc]==13.*"
CUBLAS = "cuda-toolkit[cublas]==13.*"
SANITIZER = "cuda-toolkit[sanitizer]==13.*"
JINJA = "jinja2>=3.1"
STARLETTE = "starlette>=0.45"
UVICORN = "uvicorn>=0.34"
POSTGRESQL = "psycopg[binary]>=3.2"
CRYPTOGRAPHY = "cryptography>=43"
PROMETHEUS = "prometheus-client>=0.21"
RAY = "ray>=2.40"
DASHBOARD = "optuna-dashboard>=0.20"


def pip_install(*requirements: str) -> str:
    """The command that installs requirements, quoted for a shell."""
    return f"pip install {shlex.join(requirements)}"


@contextmanager
def required(what_else: str, *requirements: str) -> Iterator[None]:
    """Raises EnvironmentProblem where what is imported within needs one of these and does not find it: what
    cannot be done then, and how they are installed."""
    try:
        yield
    except ImportError as error:
        raise EnvironmentProblem(f"{what_else} ({error}); install: {pip_install(*requirements)}") from error


def load(name: str) -> str | None:
    """The path of a library such as `nvrtc`, which is loaded now; None if there is none."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        found: str | None = load_nvidia_dynamic_lib(name).abs_path
        return found
    except Exception:  # not installed, or it finds nothing: its errors have no base in common
        return next(_loaded_from_wheels(name), None)


def _loaded_from_wheels(name: str) -> Iterator[str]:
    """Of the newest CUDA first."""
    try:
        places = importlib.import_module("nvidia").__path__
    except ImportError:
        return
    found = [path for place in places for path in Path(place).glob(f"cu*/lib/lib{name}.so*")]
    for path in sorted(found, reverse=True):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        yield str(path)

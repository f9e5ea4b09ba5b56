"""Loads libraries of NVIDIA's wheels from wherever Python imports the wheels.

cuda-pathfinder looks into the environment's site-packages, and not where else `sys.path` leads: a folder of
`pip install --target`, or one that a path file names (findings/pathfinder-skips-target.sh). What is loaded it
finds. Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from pathlib import Path


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

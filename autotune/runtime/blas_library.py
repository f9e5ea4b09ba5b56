"""Finds the cuBLAS of this process: the library that it has loaded already, else the one that cuda.pathfinder
finds. The core calls it (core/blas.h). Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from ..facts.column_major import read_version, told_status
from ..files import wheel_libraries
from ..files.errors import DispatchError

# What the core calls, in the order of autotune_blas
_NAMES = (
    "cublasCreate_v2", "cublasSetMathMode", "cublasSetPointerMode_v2", "cublasSetStream_v2",
    "cublasSetWorkspace_v2", "cublasSgemm_v2", "cublasSgemmStridedBatched", "cublasSgeam",
)  # fmt: skip
_FILE = r"libcublas\.so[.\d]*$"
_MAPS = Path("/proc/self/maps")  # on Linux: the files that this process has mapped


class BlasLibrary:
    """cuBLAS in this process. Raises DispatchError if the library does not report its version, AttributeError
    if it lacks a function."""

    def __init__(self, library: Any) -> None:
        self.version = read_version(library, _check)
        self.functions = {name: getattr(library, name) for name in _NAMES}


def _check(status: int, call: str) -> None:
    if status != 0:
        raise DispatchError(f"{call} failed with {told_status(status)}")


@cache
def find_library() -> BlasLibrary | None:
    """The cuBLAS of this process, loaded or else installed; None if none can be used."""
    loaded = loaded_library()
    if loaded is not None:
        return loaded
    path = wheel_libraries.load("cublas")
    return _opened(path, ctypes.DEFAULT_MODE) if path else None


def loaded_library() -> BlasLibrary | None:
    """The cuBLAS that this process has loaded, if any can be used."""
    opened = (_opened(path, os.RTLD_NOLOAD | os.RTLD_NOW) for path in _mapped())
    return next((library for library in opened if library is not None), None)


def _opened(path: str, mode: int) -> BlasLibrary | None:
    try:
        return BlasLibrary(ctypes.CDLL(path, mode=mode))
    except (OSError, AttributeError, DispatchError):  # not there, too old, broken
        return None


def _mapped() -> list[str]:
    """cuBLAS as this process has mapped it."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    paths = (line.split(maxsplit=5)[-1] for line in lines)  # address, rights, offset, device, inode, path
    return list(dict.fromkeys(path for path in paths if re.match(_FILE, path.rpartition("/")[2])))

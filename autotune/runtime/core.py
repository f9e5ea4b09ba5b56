"""The core in C (core/), which chooses among a table's kernels and launches them.

It is a shared library that is built when autotune is installed (core/build.py). Copied into exported tables.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..facts.gemm import LAYOUTS
from ..files.errors import DispatchError
from .core_structs import (
    ADDRESS,
    DOUBLE,
    INT,
    STRUCTS,
    TENSOR_STRUCTS,
    TEXT,
    WORD,
    CBatch,
    CChoice,
    CTriple,
)
from .core_table import TABLE_VERSION, TableArrays, bare_struct, table_struct
from .kept_modules import library_path
from .pick import Call
from .table import Table

FOLDER = Path(__file__).parents[1] / "core"  # links are left in it: kept_modules.py knows it by this name
LIBRARY = "libautotune_core.so"
# autotune_status
NO_KERNEL, BAD_SCALE, NO_DRIVER, CUDA, BLAS, INSTEAD = 1, 5, 6, 1 << 16, 1 << 17, 1 << 18
FORKED, NO_RECORD, RECORDED, NO_BLAS = 12, 13, 14, 17
_RUN = [ADDRESS, ADDRESS, WORD, WORD, WORD, WORD, WORD, DOUBLE, DOUBLE]
_SIGNATURES: dict[str, list[Any]] = {
    "autotune_open": [ADDRESS, ADDRESS],
    "autotune_close": [ADDRESS],
    "autotune_choose": [ADDRESS, *4 * [INT], ADDRESS, CTriple, CTriple, TEXT, ADDRESS],
    "autotune_rank": [ADDRESS, *4 * [INT], CTriple, CTriple, ADDRESS, INT, ADDRESS, ADDRESS],
    "autotune_use_driver": [ADDRESS, ADDRESS],
    "autotune_use_blas": [ADDRESS, ADDRESS],
    "autotune_make_plan": [ADDRESS, ADDRESS, ADDRESS],
    "autotune_release_plan": [ADDRESS],
    "autotune_run_plan": _RUN,
    "autotune_launch_plan": [*_RUN, WORD],
    "autotune_remember": [ADDRESS, ADDRESS, ADDRESS],
    "autotune_forget": [ADDRESS],
    "autotune_counts": [ADDRESS, ADDRESS, INT],
    "autotune_record_calls": [ADDRESS, TEXT],
    "autotune_use_python": [ADDRESS],
    "autotune_tensor_calls": [ADDRESS],
    "autotune_count_call": [ADDRESS],
    "autotune_meet": 6 * [ADDRESS],
    "autotune_serve": [*6 * [ADDRESS], DOUBLE, DOUBLE, ADDRESS],
}
_SIZES = {"autotune_struct_bytes": STRUCTS, "autotune_tensor_struct_bytes": TENSOR_STRUCTS}


@cache
def library() -> Any:
    """The library of this folder; None if it was not built, or for another machine, or from other sources."""
    try:
        found = ctypes.CDLL(library_path(FOLDER / LIBRARY))
        for name, types in _SIGNATURES.items():
            getattr(found, name).argtypes = types
        for name, structs in _SIZES.items():
            sizes = (ctypes.c_uint32 * len(structs)).in_dll(found, name)
            if list(sizes) != [ctypes.sizeof(struct) for struct in structs]:
                return None
    except (OSError, ValueError, AttributeError):  # the last two: sizes or a function are missing
        return None
    found.autotune_tensor_calls.restype = WORD
    found.autotune_meet.restype = ADDRESS
    return found


def core_of(table: Table | None) -> Core:
    """The core for a table, or for cuBLAS alone. Raises DispatchError where there is no library."""
    found = library()
    if found is None:
        raise DispatchError(
            f"products need the core in C, and {FOLDER / LIBRARY} is missing, or was built for another "
            "machine or from other sources: install autotune again where there is a C compiler, which "
            "`pip install ziglang` brings, and export the table again"
        )
    return Core(table, found)


class Core:
    """A handle on the core for one table, or for cuBLAS alone. Threads may share it. Raises DispatchError if
    the core refuses the table."""

    def __init__(self, table: Table | None, library: Any) -> None:
        self.library, self._kept = library, TableArrays()
        made = bare_struct(self._kept) if table is None else table_struct(table, self._kept)
        self._at_table = self._kept.of([made])
        handle = ctypes.c_void_p()
        if status := library.autotune_open(self._at_table, ctypes.byref(handle)):
            raise DispatchError(f"the core takes no table of version {TABLE_VERSION} (status {status})")
        self.handle = handle.value

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle and not sys.is_finalizing():  # threads may be in the middle of a call
            self.library.autotune_close(handle)

    def choose(self, call: Call, cublas_version: str | None) -> Any | None:
        """The autotune_choice (core/choice.h) for a product with m and n at least 1; None where even the
        default kernel is not legal."""
        found, version = CChoice(), cublas_version and cublas_version.encode()
        batch = ctypes.byref(CBatch.of(call.batch)) if call.gemm.is_batched else None
        status = self.library.autotune_choose(
            self.handle, *_extents(call), batch, *_memory(call), version, ctypes.byref(found)
        )
        return found if _is_there(status, call) else None

    def rank(self, call: Call, num: int, allowed: tuple[float, float] | None) -> Sequence[Any]:
        """Up to `num` of these for a call that is no batch, the best first; none where `choose` returns None.
        `allowed`: depths of sums, where they are known better than by the shape."""
        found, many = (CChoice * num)(), ctypes.c_int32()
        depths = allowed and (ctypes.c_double * 2)(*allowed)
        status = self.library.autotune_rank(
            self.handle, *_extents(call), *_memory(call), depths, num, found, ctypes.byref(many)
        )
        return found[: many.value] if _is_there(status, call) else ()


def _extents(call: Call) -> tuple[int, int, int, int]:
    g = call.gemm
    return LAYOUTS.index(g.layout), g.m, g.n, g.k


def _memory(call: Call) -> tuple[Any, Any]:
    return CTriple(*call.lds), CTriple(*call.addresses)


def _is_there(status: int, call: Call) -> bool:
    if status not in (0, NO_KERNEL):
        told = f"{call.gemm} with leading dimensions {call.lds}"
        raise DispatchError(f"the core refuses {told}: status {status}")
    return status == 0

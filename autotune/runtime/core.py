"""A table in the core in C (core/), which chooses among its kernels and launches them. Copied into exported
tables.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

from ..facts.gemm import LAYOUTS
from ..files.errors import DispatchError
from .core_library import VERSION, CoreLibrary, loaded
from .core_table import TableArrays, bare_struct, table_struct
from .pick import Call
from .table import Table

_TRIPLE = ctypes.c_int64 * 3


def core_of(table: Table | None) -> Core:
    """The core for a table, or for cuBLAS alone. Raises DispatchError where there is no library."""
    return Core(table, loaded())


class Core:
    """A handle on the core for one table, or for cuBLAS alone. Threads may share it. Raises DispatchError if
    the core refuses the table."""

    def __init__(self, table: Table | None, library: CoreLibrary) -> None:
        self.library, self._kept = library, TableArrays()
        of = library.structs
        made = bare_struct(of, self._kept) if table is None else table_struct(of, table, self._kept)
        self._at_table = self._kept.of([made])
        handle = ctypes.c_void_p()
        if status := library.autotune_open(self._at_table, ctypes.byref(handle)):
            raise DispatchError(f"the core takes no table of version {VERSION} (status {status})")
        self.handle = handle.value

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle and not sys.is_finalizing():  # threads may be in the middle of a call
            self.library.autotune_close(handle)

    def choose(self, call: Call, cublas_version: str | None) -> Any | None:
        """The autotune_choice (core/choice.h) for a product with m and n at least 1; None where even the
        default kernel is not legal."""
        found, version = self.library.structs.choice(), cublas_version and cublas_version.encode()
        batch = ctypes.byref(self.library.structs.batch(call.batch.products, call.batch[1:]))
        status = self.library.autotune_choose(
            self.handle, *_extents(call), batch, *_memory(call), version, ctypes.byref(found)
        )
        return found if self._is_there(status, call) else None

    def rank(self, call: Call, num: int, allowed: tuple[float, float] | None) -> Sequence[Any]:
        """Up to `num` of these for a call that is no batch, the best first; none where `choose` returns None.
        `allowed`: depths of sums, where they are known better than by the shape."""
        found, many = (self.library.structs.choice * num)(), ctypes.c_int32()
        depths = allowed and (ctypes.c_double * 2)(*allowed)
        status = self.library.autotune_rank(
            self.handle, *_extents(call), *_memory(call), depths, num, found, ctypes.byref(many)
        )
        return found[: many.value] if self._is_there(status, call) else ()

    def _is_there(self, status: int, call: Call) -> bool:
        if status not in (self.library.numbers.OK, self.library.numbers.NO_KERNEL):
            told = f"{call.gemm} with leading dimensions {call.lds}"
            raise DispatchError(f"the core refuses {told}: status {status}")
        return bool(status == self.library.numbers.OK)


def _extents(call: Call) -> tuple[int, int, int, int]:
    g = call.gemm
    return LAYOUTS.index(g.layout), g.m, g.n, g.k


def _memory(call: Call) -> tuple[Any, Any]:
    return _TRIPLE(*call.lds), _TRIPLE(*call.addresses)

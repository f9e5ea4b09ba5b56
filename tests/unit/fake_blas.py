"""cuBLAS as the host plays it, on the memory and the streams of a simulated driver.

Held to what cublas_api.h documents: matrices are stored by columns, a leading dimension reaches over a
column, setting the stream resets the workspace, and the workspace is allocated when a product is enqueued.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from table_cases import FakeDriver, inexact

from autotune import reference
from autotune.runtime.choose import blas_provider
from autotune.runtime.choose.blas_provider import BlasLibrary

VERSION = (13, 1, 0)
_INVALID_VALUE = 7


@dataclass
class Setting:
    """What a handle is set to."""

    context: int
    math_mode: int = 0
    pointer_mode: int = 0
    stream: int = 0
    workspace: int = 0


@dataclass(frozen=True)
class Served:
    """One product, as cuBLAS saw it."""

    handle: int
    stream: int
    workspace: int
    context: int
    thread: int


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeBlas | None) -> None:
    """This process has that cuBLAS, or none."""
    library = None if fake is None else BlasLibrary(fake)
    monkeypatch.setattr(blas_provider, "find_library", lambda: library)
    monkeypatch.setattr(blas_provider, "loaded_library", lambda: None)  # one that another test loaded


def by_columns(address: int, rows: int, columns: int, ld: int) -> np.ndarray[Any, Any]:
    count = (columns - 1) * ld + rows
    flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (4, 4 * ld))


def _float_at(address: int) -> float:
    return float(ctypes.c_float.from_address(address).value)


@dataclass
class FakeBlas:
    """The functions of the library that the runtime calls. `refused` maps a name to a status."""

    driver: FakeDriver
    time_us: float = 100.0  # of a product
    error: float = 0.0  # relative, besides that of rounding the result
    summed: str = ""  # the order of sums, bit by bit; "": in float64
    version: tuple[int, ...] = VERSION
    rejected: dict[str, int] = field(default_factory=dict)
    served: list[Served] = field(default_factory=list)
    handles: dict[int, Setting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[int, int] = {}  # of handles that are set up for a product: threads

    def _status(self, name: str) -> int:
        return self.rejected.get(name, 0)

    def cublasGetProperty(self, part: int, value: Any) -> int:
        value._obj.value = self.version[part]
        return self._status("cublasGetProperty")

    def cublasCreate_v2(self, handle: Any) -> int:
        assert self.driver.current_context() and self.driver.loading_depth
        with self._lock:
            made = 0x7F00_0000_0000 + len(self.handles)
            self.handles[made] = Setting(self.driver.current_context())
        if isinstance(handle, int):  # an address, from the core
            ctypes.c_uint64.from_address(handle).value = made
        else:
            handle._obj.value = made
        return self._status("cublasCreate")

    def cublasSetMathMode(self, handle: int, mode: int) -> int:
        self.handles[handle].math_mode = mode
        return self._status("cublasSetMathMode")

    def cublasSetPointerMode_v2(self, handle: int, mode: int) -> int:
        self.handles[handle].pointer_mode = mode
        return self._status("cublasSetPointerMode")

    def cublasSetStream_v2(self, handle: int, stream: int) -> int:
        user = self._users.setdefault(handle, threading.get_ident())
        assert user == threading.get_ident(), "two threads configure one handle"
        self.handles[handle].stream, self.handles[handle].workspace = stream, 0
        return self._status("cublasSetStream")

    def cublasSetWorkspace_v2(self, handle: int, address: int, num_bytes: int) -> int:
        assert address % 256 == 0
        self.driver._check_place(address, num_bytes)
        self.handles[handle].workspace = address
        return self._status("cublasSetWorkspace")

    def cublasSgemm_v2(
        self, handle: int, trans_a: int, trans_b: int, m: int, n: int, k: int, alpha: int, a: int, lda: int,
        b: int, ldb: int, beta: int, c: int, ldc: int,
    ) -> int:  # fmt: skip
        assert self._users.pop(handle) == threading.get_ident(), "two threads use one handle"
        if status := self._status("cublasSgemm"):
            return status
        if lda < (k if trans_a else m) or ldb < (n if trans_b else k) or ldc < m or min(m, n, k) < 1:
            return _INVALID_VALUE
        setting, driver = self.handles[handle], self.driver
        assert (setting.math_mode, setting.pointer_mode) == (2, 0)
        assert setting.context == driver.current_context()
        driver._check_place(setting.workspace, 32 << 20)
        one = Served(handle, setting.stream, setting.workspace, setting.context, threading.get_ident())
        scales = _float_at(alpha), _float_at(beta)

        def play() -> None:
            self.served.append(one)
            driver.clock_us += self.time_us
            first = by_columns(a, k, m, lda).T if trans_a else by_columns(a, m, k, lda)
            second = by_columns(b, n, k, ldb).T if trans_b else by_columns(b, k, n, ldb)
            result = by_columns(c, m, n, ldc)
            if self.summed:
                product = reference(first, second, self.summed)
            else:
                product = inexact(first.astype(np.float64) @ second, self.error)
            result[...] = scales[0] * product + (scales[1] * result if scales[1] else 0)

        driver._enqueue(setting.stream, play)
        return 0

    def cublasSgemmStridedBatched(
        self, handle: int, trans_a: int, trans_b: int, m: int, n: int, k: int, alpha: int, a: int, lda: int,
        stride_a: int, b: int, ldb: int, stride_b: int, beta: int, c: int, ldc: int, stride_c: int,
        products: int,
    ) -> int:  # fmt: skip
        """One call, however many products."""
        user = self._users[handle]
        if status := self._status("cublasSgemmStridedBatched"):
            return status
        assert products > 1
        before, self.time_us = len(self.served), self.time_us / products
        for i in range(products):
            self._users[handle] = user
            at_a, at_b, at_c = a + 4 * i * stride_a, b + 4 * i * stride_b, c + 4 * i * stride_c
            self.cublasSgemm_v2(
                handle, trans_a, trans_b, m, n, k, alpha, at_a, lda, at_b, ldb, beta, at_c, ldc
            )
        self.time_us *= products
        del self.served[before + 1 :]
        return 0

    def cublasSgeam(
        self, handle: int, trans_a: int, trans_b: int, m: int, n: int, alpha: int, a: int, lda: int,
        beta: int, b: int, ldb: int, c: int, ldc: int,
    ) -> int:  # fmt: skip
        """In place, as it is used: what is scaled by 0 is not read."""
        assert self._users[handle] == threading.get_ident(), "two threads use one handle"
        assert (trans_a, trans_b, a, b, lda, ldb) == (0, 0, c, c, ldc, ldc) and _float_at(beta) == 0
        if status := self._status("cublasSgeam"):
            return status
        setting, scale, result = self.handles[handle], _float_at(alpha), by_columns(c, m, n, ldc)
        assert setting.context == self.driver.current_context()
        one = Served(handle, setting.stream, 0, setting.context, threading.get_ident())

        def play() -> None:
            self.served.append(one)
            result[...] = scale * result if scale else 0

        self.driver._enqueue(setting.stream, play)
        return 0

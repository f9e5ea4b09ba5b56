"""cuBLAS, the yardstick: cublasSgemm, for batches cublasSgemmStridedBatched, in pedantic FP32 (no TF32, no
reduced-precision reductions), by ctypes.

The library is found among wheels, toolkits and the system by cuda.pathfinder. It is optional: where it
is absent there is no baseline, and candidates are checked against float64 alone.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..facts.cublas_calls import (
    PEDANTIC_MATH,
    WORKSPACE_BYTES,
    ColumnMajorCall,
    Lds,
    describe_status,
    read_version,
)
from ..facts.gemm import Gemm
from ..files import wheel_libraries
from ..files.errors import AutotuneError
from .memory import Buffer, OperandSet


class CublasError(AutotuneError):
    """A cuBLAS call failed."""


def load_library() -> ctypes.CDLL | None:
    """cuBLAS, or None if this machine has none."""
    path = wheel_libraries.load("cublas")
    try:
        return ctypes.CDLL(path) if path else None
    except OSError:
        return None


def library_version(library: ctypes.CDLL) -> str:
    """`13.1.0`"""
    return read_version(library, check_status)


def check_status(status: int, call: str) -> None:
    """Raises CublasError where a call of cuBLAS or cuBLASLt failed."""
    if status != 0:
        raise CublasError(f"{call} failed with {describe_status(status)}")


class Cublas:
    """A handle on the current context, working on one stream. Safe to capture into a graph."""

    def __init__(self, driver: Any, library: ctypes.CDLL, stream: Any) -> None:
        self._library = library
        self._workspace = Buffer(driver, WORKSPACE_BYTES, "the workspace of cuBLAS")
        self._handle = ctypes.c_void_p()
        self._alpha, self._beta = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, ctypes.c_void_p(int(stream)))
        # setting the stream resets the workspace: this order matters
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        self._call("cublasSetWorkspace_v2", self._handle, ctypes.c_void_p(self._workspace.address), size)
        self._call("cublasSetMathMode", self._handle, PEDANTIC_MATH)

    def sgemm(self, gemm: Gemm, operands: OperandSet, lds: Lds | None = None) -> None:
        """Enqueue C = op(A) op(B), or a batch; `lds` as in ColumnMajorCall. Raises CublasError."""
        call = ColumnMajorCall.of(gemm, lds)
        alpha, beta = ctypes.byref(self._alpha), ctypes.byref(self._beta)
        a, b, c = (ctypes.c_void_p(address) for address in (operands.a, operands.b, operands.c))
        first, second, result = [b, call.ld_first], [a, call.ld_second], [c, call.ld_result]
        if gemm.is_batched:
            first.append(ctypes.c_int64(call.stride_first))
            second.append(ctypes.c_int64(call.stride_second))
            result += [ctypes.c_int64(call.stride_result), gemm.batch]
        self._call(
            "cublasSgemmStridedBatched" if gemm.is_batched else "cublasSgemm_v2",
            *(self._handle, call.trans_first, call.trans_second, call.rows, call.columns, call.depth),
            *(alpha, *first, *second, beta, *result),
        )

    def _call(self, name: str, *arguments: Any) -> None:
        check_status(getattr(self._library, name)(*arguments), name)

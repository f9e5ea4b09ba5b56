"""cuBLASLt's own candidates for a product or a batch, in pedantic FP32, by ctypes: a harder yardstick than
cuBLAS.

Its heuristic names up to NUM_CANDIDATES algorithms, best guess first; which of them is the best on this
GPU only timing tells. Names, numbers and layouts are those of cublasLt.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autotune.facts.gemm import ColumnMajorCall, Gemm
from autotune.gpu.cublas import check_status
from autotune.gpu.memory import Buffer, OperandSet

NUM_CANDIDATES = 32
WORKSPACE_BYTES = 64 << 20
_CUDA_R_32F = 0
_COMPUTE_32F_PEDANTIC = 69
_DESC_TRANSA, _DESC_TRANSB = 3, 4
_LAYOUT_BATCH_COUNT, _LAYOUT_STRIDE = 5, 6
_PREF_MAX_WORKSPACE_BYTES = 1
_NOT_SUPPORTED = 15


class LtCandidate(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`: an algorithm, what it needs and what the heuristic thinks of it."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("num_waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def load_library() -> ctypes.CDLL | None:
    """cuBLASLt, or None where this machine has none."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        path = load_nvidia_dynamic_lib("cublasLt").abs_path
        return ctypes.CDLL(path) if path else None
    except (RuntimeError, OSError):
        return None


class CublasLt:
    """A handle on the current context, working on one stream. Safe to capture into a graph."""

    def __init__(self, driver: Any, library: Any, stream: Any) -> None:
        self._library, self._stream = library, stream
        self._workspace = Buffer(driver, WORKSPACE_BYTES, "the workspace of cuBLASLt")
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))

    def product(self, gemm: Gemm) -> LtProduct:
        """The product as cuBLASLt describes it. Raises CublasError."""
        return LtProduct(self, gemm)

    def free(self) -> None:
        self._call("cublasLtDestroy", self._handle)
        self._workspace.free()

    def _call(self, name: str, *arguments: Any) -> None:
        check_status(getattr(self._library, name)(*arguments), name)


class LtProduct:
    """C = op(A) op(B), row-major, as the column-major product that cuBLASLt computes."""

    def __init__(self, lt: CublasLt, gemm: Gemm) -> None:
        self._lt = lt
        call = ColumnMajorCall.of(gemm)
        first = (call.depth, call.rows) if call.trans_first else (call.rows, call.depth)
        second = (call.columns, call.depth) if call.trans_second else (call.depth, call.columns)
        self._products = gemm.batch
        self._first = self._layout(*first, call.ld_first, call.stride_first)
        self._second = self._layout(*second, call.ld_second, call.stride_second)
        self._result = self._layout(call.rows, call.columns, call.ld_result, call.stride_result)
        self._desc = ctypes.c_void_p()
        lt._call("cublasLtMatmulDescCreate", ctypes.byref(self._desc), _COMPUTE_32F_PEDANTIC, _CUDA_R_32F)
        for attribute, is_transposed in ((_DESC_TRANSA, call.trans_first), (_DESC_TRANSB, call.trans_second)):
            self._set("cublasLtMatmulDescSetAttribute", self._desc, attribute, ctypes.c_int32(is_transposed))
        self._alpha, self._beta = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def candidates(self, count: int = NUM_CANDIDATES) -> list[LtCandidate]:
        """What the heuristic proposes, best guess first; empty where cuBLASLt cannot compute this product."""
        found, num_found = (LtCandidate * count)(), ctypes.c_int()
        with self._preference() as preference:
            status = self._lt._library.cublasLtMatmulAlgoGetHeuristic(
                *(self._lt._handle, self._desc, self._first, self._second, self._result, self._result),
                *(preference, count, found, ctypes.byref(num_found)),
            )
        if status == _NOT_SUPPORTED:
            return []
        check_status(status, "cublasLtMatmulAlgoGetHeuristic")
        return [c for c in found[: num_found.value] if c.status == 0 and c.workspace_bytes <= WORKSPACE_BYTES]

    def enqueue(self, candidate: LtCandidate, operands: OperandSet) -> None:
        """Put one product on the stream. Raises CublasError where the algorithm refuses it after all."""
        c = ctypes.c_void_p(operands.c)
        self._lt._call(
            "cublasLtMatmul",
            *(self._lt._handle, self._desc, ctypes.byref(self._alpha)),
            *(ctypes.c_void_p(operands.b), self._first, ctypes.c_void_p(operands.a), self._second),
            *(ctypes.byref(self._beta), c, self._result, c, self._result, ctypes.byref(candidate)),
            *(ctypes.c_void_p(self._lt._workspace.address), ctypes.c_size_t(WORKSPACE_BYTES)),
            ctypes.c_void_p(int(self._lt._stream)),
        )

    def free(self) -> None:
        for layout in (self._first, self._second, self._result):
            self._lt._call("cublasLtMatrixLayoutDestroy", layout)
        self._lt._call("cublasLtMatmulDescDestroy", self._desc)

    def _layout(self, rows: int, columns: int, lead: int, stride: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(lead))
        self._lt._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _CUDA_R_32F, *extents)
        if self._products > 1:
            products = ctypes.c_int32(self._products)
            self._set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT_BATCH_COUNT, products)
            self._set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT_STRIDE, ctypes.c_int64(stride))
        return layout

    @contextmanager
    def _preference(self) -> Iterator[ctypes.c_void_p]:
        preference = ctypes.c_void_p()
        self._lt._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        try:
            most = ctypes.c_uint64(WORKSPACE_BYTES)
            self._set("cublasLtMatmulPreferenceSetAttribute", preference, _PREF_MAX_WORKSPACE_BYTES, most)
            yield preference
        finally:
            self._lt._call("cublasLtMatmulPreferenceDestroy", preference)

    def _set(self, call: str, what: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._lt._call(call, what, attribute, ctypes.byref(value), size)

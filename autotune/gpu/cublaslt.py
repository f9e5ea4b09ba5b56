"""cublasLtMatmul, by ctypes, in FP32: with a bias, as torch calls it for a product and a vector that is added
to each row (its `addmm` and `linear`), the yardstick for these; and its own candidates for a product or a
batch, pedantic, a harder yardstick than cuBLAS.

Its heuristic names up to NUM_CANDIDATES algorithms, best guess first, of which torch takes the first; which
of them is the best on this GPU only timing tells. Names, numbers and layouts are those of cublasLt.h. The
library is optional, as cuBLAS is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..facts.gemm import ColumnMajorCall, Gemm
from ..files import wheel_libraries
from .cublas import CublasError, check_status
from .memory import Buffer, OperandSet

NUM_CANDIDATES = 32
WORKSPACE_BYTES = 64 << 20
TORCH_BYTES = 1 << 20  # the workspace that torch gives it, unless its environment says another
_CUDA_R_32F = 0
_COMPUTE_32F, _COMPUTE_32F_PEDANTIC = 68, 69
_DESC_TRANSA, _DESC_TRANSB, _DESC_EPILOGUE, _DESC_BIAS_POINTER = 3, 4, 7, 8
_EPILOGUE_BIAS = 4
_LAYOUT_BATCH_COUNT, _LAYOUT_STRIDE = 5, 6
_PREF_MAX_WORKSPACE_BYTES = 1
_PREF_ALIGNMENTS = 5, 6, 7, 8  # of the first and second operand, the result, and what torch passes: the bias
_MOST_ALIGNED = 256  # bytes: torch looks no further
_NOT_SUPPORTED = 15


class LtCandidate(ctypes.Structure):
    """A result of the heuristic: an algorithm, what it needs and what the heuristic thinks of it."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("num_waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def load_library() -> ctypes.CDLL | None:
    """cuBLASLt, or None where this machine has none."""
    path = wheel_libraries.load("cublasLt")
    try:
        return ctypes.CDLL(path) if path else None
    except OSError:
        return None


class CublasLt:
    """A handle on the current context, working on one stream. Safe to capture into a graph."""

    def __init__(
        self, driver: Any, library: Any, stream: Any, workspace_bytes: int = WORKSPACE_BYTES
    ) -> None:
        self._library, self._stream, self.workspace_bytes = library, stream, workspace_bytes
        self._workspace = Buffer(driver, workspace_bytes, "the workspace of cuBLASLt")
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))

    def product(self, gemm: Gemm, bias: int | None = None) -> LtProduct:
        """The product as cuBLASLt describes it; with the address of a bias as torch has it. Raises
        CublasError."""
        return LtProduct(self, gemm, bias)

    def free(self) -> None:
        self._call("cublasLtDestroy", self._handle)
        self._workspace.free()

    def _call(self, name: str, *arguments: Any) -> None:
        check_status(getattr(self._library, name)(*arguments), name)


class LtProduct:
    """C = op(A) op(B), row-major, as the column-major product that cuBLASLt computes; `bias` is added to each
    row of C."""

    def __init__(self, lt: CublasLt, gemm: Gemm, bias: int | None) -> None:
        self._lt, self._bias = lt, bias
        call = ColumnMajorCall.of(gemm)
        first = (call.depth, call.rows) if call.trans_first else (call.rows, call.depth)
        second = (call.columns, call.depth) if call.trans_second else (call.depth, call.columns)
        self._products = gemm.batch
        self._first = self._layout(*first, call.ld_first, call.stride_first)
        self._second = self._layout(*second, call.ld_second, call.stride_second)
        self._result = self._layout(call.rows, call.columns, call.ld_result, call.stride_result)
        self._desc = ctypes.c_void_p()
        compute = _COMPUTE_32F_PEDANTIC if bias is None else _COMPUTE_32F
        lt._call("cublasLtMatmulDescCreate", ctypes.byref(self._desc), compute, _CUDA_R_32F)
        described: dict[int, Any] = {
            _DESC_TRANSA: ctypes.c_int32(call.trans_first), _DESC_TRANSB: ctypes.c_int32(call.trans_second)
        }  # fmt: skip
        if bias is not None:
            described[_DESC_EPILOGUE] = ctypes.c_int32(_EPILOGUE_BIAS)
            described[_DESC_BIAS_POINTER] = ctypes.c_void_p(bias)
        for attribute, value in described.items():
            self._set("cublasLtMatmulDescSetAttribute", self._desc, attribute, value)
        self._alpha, self._beta = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def first(self, operands: OperandSet) -> LtCandidate:
        """What torch takes for operands that are aligned as these are. Raises CublasError where cuBLASLt has
        nothing: there torch calls cublasSgemm."""
        addresses = operands.b, operands.a, operands.c, self._bias or 0
        found = self.candidates(1, [(at & -at) % _MOST_ALIGNED or _MOST_ALIGNED for at in addresses])
        if not found:
            raise CublasError("cuBLASLt has no algorithm for this product")
        return found[0]

    def candidates(self, count: int = NUM_CANDIDATES, alignments: Sequence[int] = ()) -> list[LtCandidate]:
        """What the heuristic proposes, best guess first; empty where cuBLASLt cannot compute this product."""
        found, num_found = (LtCandidate * count)(), ctypes.c_int()
        with self._preference(alignments) as preference:
            status = self._lt._library.cublasLtMatmulAlgoGetHeuristic(
                *(self._lt._handle, self._desc, self._first, self._second, self._result, self._result),
                *(preference, count, found, ctypes.byref(num_found)),
            )
        if status == _NOT_SUPPORTED:
            return []
        check_status(status, "cublasLtMatmulAlgoGetHeuristic")
        most = self._lt.workspace_bytes
        return [c for c in found[: num_found.value] if c.status == 0 and c.workspace_bytes <= most]

    def enqueue(self, candidate: LtCandidate, operands: OperandSet) -> None:
        """Put one product on the stream. Raises CublasError where the algorithm refuses it after all."""
        c = ctypes.c_void_p(operands.c)
        self._lt._call(
            "cublasLtMatmul",
            *(self._lt._handle, self._desc, ctypes.byref(self._alpha)),
            *(ctypes.c_void_p(operands.b), self._first, ctypes.c_void_p(operands.a), self._second),
            *(ctypes.byref(self._beta), c, self._result, c, self._result, ctypes.byref(candidate)),
            *(ctypes.c_void_p(self._lt._workspace.address), ctypes.c_size_t(self._lt.workspace_bytes)),
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
    def _preference(self, alignments: Sequence[int]) -> Iterator[ctypes.c_void_p]:
        preference = ctypes.c_void_p()
        self._lt._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        try:
            preferred: dict[int, Any] = {_PREF_MAX_WORKSPACE_BYTES: ctypes.c_uint64(self._lt.workspace_bytes)}
            preferred |= zip(_PREF_ALIGNMENTS, map(ctypes.c_uint32, alignments), strict=False)
            for attribute, value in preferred.items():
                self._set("cublasLtMatmulPreferenceSetAttribute", preference, attribute, value)
            yield preference
        finally:
            self._lt._call("cublasLtMatmulPreferenceDestroy", preference)

    def _set(self, call: str, what: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._lt._call(call, what, attribute, ctypes.byref(value), size)

"""What cuBLAS takes for a product, which knows matrices by columns, and how cuBLASLt describes it (names,
numbers and layouts of cublasLt.h). Copied into exported tables: standard library only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from .gemm import Batch, Gemm

# Of cublas_api.h
OP_N, OP_T = 0, 1
PEDANTIC_MATH = 2  # FP32 throughout: no TF32, no reduced-precision reductions
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # 1: calls of cuBLAS that are not pedantic run as TF32
_VERSION_PARTS = (0, 1, 2)  # major, minor, patch
_STATUSES = {  # cublasStatus_t, as far as a caller can do something about it
    1: "not initialized: the CUDA context may have ended",
    3: "the GPU has no memory left for it: other programs may hold it, see `nvidia-smi`",
    7: "an argument is not allowed",
    8: "this cuBLAS is not for this GPU",
    13: "a kernel failed",
    14: "an internal error",
    15: "not supported",
}
WORKSPACE_BYTES = 32 << 20  # what cuBLAS asks for on Hopper; given by us, so that capture allocates nothing
Lds = tuple[int, int, int]  # leading dimensions of A, B and C in elements


class ColumnMajorCall(NamedTuple):
    """The arguments of cublasSgemm that compute a row-major product: C^T = op(B)^T op(A)^T. A row-major
    matrix read by columns is its transpose, so the operands change places and keep their flags. Strides are
    in elements, from product to product of a batch; 0 for a shared operand."""

    trans_first: int
    trans_second: int
    rows: int
    columns: int
    depth: int
    ld_first: int
    ld_second: int
    ld_result: int
    stride_first: int = 0
    stride_second: int = 0
    stride_result: int = 0
    products: int = 1

    @classmethod
    def of(cls, gemm: Gemm, lds: Lds | None = None, batch: Batch | None = None) -> ColumnMajorCall:
        """`lds`: of A, B and C as they are stored, and `batch`, as it is; None: packed."""
        lda, ldb, ldc = lds or gemm.lds  # cuBLAS wants them to be at least 1 even where k = 0
        products, stride_a, stride_b, stride_c = batch or gemm.strides
        flags = (OP_T if gemm.trans_b else OP_N, OP_T if gemm.trans_a else OP_N)
        strides = (stride_b, stride_a, stride_c)
        return cls(*flags, gemm.n, gemm.m, gemm.k, ldb, lda, ldc, *strides, products)


def forced_tf32() -> str:
    """That a program's own calls of cuBLAS run as TF32, whatever it asks for; "" where they do not."""
    if os.environ.get(TF32_OVERRIDE) != "1":
        return ""
    return f"{TF32_OVERRIDE} is 1: torch's own products, so routed ones that are left alone, run as TF32"


def adds_bias_within(gemm: Gemm) -> bool:
    """Whether torch has cuBLAS add a vector to each row within the product (cublasLtMatmul): of no batch, and
    of nothing that is only a vector. cublasSgemm serves others, behind a copy of the vector to all rows."""
    return not gemm.is_batched and gemm.is_float and min(gemm.m, gemm.n, gemm.k) > 1


def describe_status(status: int) -> str:
    """`status 3 (the GPU has no memory left for it ...)`, of a call of cuBLAS that failed."""
    return f"status {status} ({_STATUSES.get(status, 'see cublasStatus_t')})"


def read_version(library: Any, check: Callable[[int, str], None]) -> str:
    """`13.1.0`. `check` is called with the status of each call and its name, and raises if it failed."""
    parts = []
    for part in _VERSION_PARTS:
        value = ctypes.c_int()
        check(library.cublasGetProperty(part, ctypes.byref(value)), "cublasGetProperty")
        parts.append(str(value.value))
    return ".".join(parts)


LT_CANDIDATES = 32
TORCH_BYTES = 1 << 20  # the workspace that torch gives cuBLASLt, unless its environment says another
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


class LtHandle:
    """cublasLtMatmul in FP32, by ctypes, on the current context and one stream. `check` is as of
    `read_version`; `workspace`: its address. Safe to capture into a graph."""

    def __init__(
        self,
        library: Any,
        check: Callable[[int, str], None],
        stream: Any,
        workspace: int,
        workspace_bytes: int = TORCH_BYTES,
    ) -> None:
        self.library, self.check, self.stream = library, check, stream
        self.workspace, self.workspace_bytes = workspace, workspace_bytes
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))

    def free(self) -> None:
        self.call("cublasLtDestroy", self.handle)

    def call(self, name: str, *arguments: Any) -> None:
        self.check(getattr(self.library, name)(*arguments), name)


class LtProduct:
    """C = op(A) op(B), row-major, as the column-major product that cuBLASLt computes. With the address of a
    `bias`, as torch calls it for its `addmm` and `linear`: that is added to each row of C. Operands have
    addresses `a`, `b` and `c`."""

    def __init__(self, lt: LtHandle, call: ColumnMajorCall, bias: int | None = None) -> None:
        self._lt, self._bias = lt, bias
        first = (call.depth, call.rows) if call.trans_first else (call.rows, call.depth)
        second = (call.columns, call.depth) if call.trans_second else (call.depth, call.columns)
        self._products = call.products
        self._first = self._layout(*first, call.ld_first, call.stride_first)
        self._second = self._layout(*second, call.ld_second, call.stride_second)
        self._result = self._layout(call.rows, call.columns, call.ld_result, call.stride_result)
        self._desc = ctypes.c_void_p()
        compute = _COMPUTE_32F_PEDANTIC if bias is None else _COMPUTE_32F
        lt.call("cublasLtMatmulDescCreate", ctypes.byref(self._desc), compute, _CUDA_R_32F)
        described: dict[int, Any] = {
            _DESC_TRANSA: ctypes.c_int32(call.trans_first), _DESC_TRANSB: ctypes.c_int32(call.trans_second)
        }  # fmt: skip
        if bias is not None:
            described[_DESC_EPILOGUE] = ctypes.c_int32(_EPILOGUE_BIAS)
            described[_DESC_BIAS_POINTER] = ctypes.c_void_p(bias)
        for attribute, value in described.items():
            self._set("cublasLtMatmulDescSetAttribute", self._desc, attribute, value)
        self._alpha, self._beta = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def first(self, operands: Any) -> LtCandidate:
        """What torch takes for operands that are aligned as these are. Fails the check where cuBLASLt has
        nothing: there torch calls cublasSgemm."""
        addresses = operands.b, operands.a, operands.c, self._bias or 0
        found = self.candidates(1, [(at & -at) % _MOST_ALIGNED or _MOST_ALIGNED for at in addresses])
        if not found:
            self._lt.check(_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic")
        return found[0]

    def candidates(self, count: int = LT_CANDIDATES, alignments: Sequence[int] = ()) -> list[LtCandidate]:
        """What the heuristic proposes, best guess first; empty where cuBLASLt cannot compute this product.
        Which of them is the best on this GPU only timing tells."""
        found, num_found = (LtCandidate * count)(), ctypes.c_int()
        with self._preference(alignments) as preference:
            status = self._lt.library.cublasLtMatmulAlgoGetHeuristic(
                *(self._lt.handle, self._desc, self._first, self._second, self._result, self._result),
                *(preference, count, found, ctypes.byref(num_found)),
            )
        if status == _NOT_SUPPORTED:
            return []
        self._lt.check(status, "cublasLtMatmulAlgoGetHeuristic")
        most = self._lt.workspace_bytes
        return [c for c in found[: num_found.value] if c.status == 0 and c.workspace_bytes <= most]

    def enqueue(self, candidate: LtCandidate, operands: Any) -> None:
        """Put one product on the stream. Fails the check where the algorithm refuses it after all."""
        a, b, c = map(ctypes.c_void_p, (operands.a, operands.b, operands.c))
        self._lt.call(
            "cublasLtMatmul",
            *(self._lt.handle, self._desc, ctypes.byref(self._alpha)),
            *(b, self._first, a, self._second),
            *(ctypes.byref(self._beta), c, self._result, c, self._result, ctypes.byref(candidate)),
            *(ctypes.c_void_p(self._lt.workspace), ctypes.c_size_t(self._lt.workspace_bytes)),
            ctypes.c_void_p(int(self._lt.stream)),
        )

    def free(self) -> None:
        for layout in (self._first, self._second, self._result):
            self._lt.call("cublasLtMatrixLayoutDestroy", layout)
        self._lt.call("cublasLtMatmulDescDestroy", self._desc)

    def _layout(self, rows: int, columns: int, lead: int, stride: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(lead))
        self._lt.call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _CUDA_R_32F, *extents)
        if self._products > 1:
            products = ctypes.c_int32(self._products)
            self._set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT_BATCH_COUNT, products)
            self._set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT_STRIDE, ctypes.c_int64(stride))
        return layout

    @contextmanager
    def _preference(self, alignments: Sequence[int]) -> Iterator[ctypes.c_void_p]:
        preference = ctypes.c_void_p()
        self._lt.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        try:
            preferred: dict[int, Any] = {_PREF_MAX_WORKSPACE_BYTES: ctypes.c_uint64(self._lt.workspace_bytes)}
            preferred |= zip(_PREF_ALIGNMENTS, map(ctypes.c_uint32, alignments), strict=False)
            for attribute, value in preferred.items():
                self._set("cublasLtMatmulPreferenceSetAttribute", preference, attribute, value)
            yield preference
        finally:
            self._lt.call("cublasLtMatmulPreferenceDestroy", preference)

    def _set(self, call: str, what: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._lt.call(call, what, attribute, ctypes.byref(value), size)

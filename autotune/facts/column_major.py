"""The arguments and settings of cuBLAS for a row-major product: for tuning, and for tables that call it.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .gemm import Batch, Gemm

# cublas_api.h
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
    """The arguments of cublasSgemm that compute a row-major product: C^T = op(B)^T op(A)^T.

    A row-major matrix read by columns is its transpose, so the operands change places and keep their
    flags. Strides are in elements, from product to product of a batch; 0 for a shared operand.
    """

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
        return cls(
            trans_first=OP_T if gemm.trans_b else OP_N,
            trans_second=OP_T if gemm.trans_a else OP_N,
            rows=gemm.n,
            columns=gemm.m,
            depth=gemm.k,
            ld_first=ldb,
            ld_second=lda,
            ld_result=ldc,
            stride_first=stride_b,
            stride_second=stride_a,
            stride_result=stride_c,
            products=products,
        )


def forced_tf32() -> str:
    """That a program's own calls of cuBLAS run as TF32, whatever it asks for; "" where they do not."""
    if os.environ.get(TF32_OVERRIDE) != "1":
        return ""
    return f"{TF32_OVERRIDE} is 1: torch's own products, so routed ones that are left alone, run as TF32"


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

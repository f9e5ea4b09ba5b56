"""cublasLtMatmul in FP32: with a bias, as torch calls it for a product and a vector that is added to each
row, the yardstick for these; and its own candidates for a product or a batch, pedantic, a harder yardstick
than cuBLAS. The library is optional, as cuBLAS is.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..facts.cublas_calls import ColumnMajorCall, LtHandle, LtProduct
from ..facts.gemm import Gemm
from ..files import wheel_libraries
from .cublas import check_status
from .memory import Buffer

WORKSPACE_BYTES = 64 << 20


def load_library() -> ctypes.CDLL | None:
    """cuBLASLt, or None where this machine has none."""
    path = wheel_libraries.load("cublasLt")
    try:
        return ctypes.CDLL(path) if path else None
    except OSError:
        return None


class CublasLt(LtHandle):
    """With a workspace of its own. Raises CublasError."""

    def __init__(
        self, driver: Any, library: Any, stream: Any, workspace_bytes: int = WORKSPACE_BYTES
    ) -> None:
        self._buffer = Buffer(driver, workspace_bytes, "the workspace of cuBLASLt")
        super().__init__(library, check_status, stream, self._buffer.address, workspace_bytes)

    def product(self, gemm: Gemm, bias: int | None = None) -> LtProduct:
        """As cuBLASLt describes it; with the address of a bias as torch has it."""
        return LtProduct(self, ColumnMajorCall.of(gemm), bias)

    def free(self) -> None:
        super().free()
        self._buffer.free()

"""Turns a status of the core's launches into an error. Copied into exported tables."""

from __future__ import annotations

import warnings
from typing import Any

from ..facts.column_major import told_status
from ..files.errors import DispatchError, DispatchWarning
from .core import BAD_SCALE, BLAS, CUDA, FORKED, INSTEAD, NO_BLAS, NO_DRIVER, NO_RECORD, RECORDED
from .cuda_driver import CudaFault, error_name
from .forks import forked
from .product import many_launches, no_scale

_MANY_LAUNCHES = 16
_OF_CALL = 256  # statuses of cuBLAS are below
_BLAS_CALLS = (
    "cublasCreate", "cublasSetMathMode", "cublasSetPointerMode", "cublasSetStream", "cublasSetWorkspace",
    "cublasSgemm", "cublasSgemmStridedBatched", "cublasSgeam",
)  # fmt: skip
_LAUNCHING = "launching a kernel, or taking memory for it"
_SWITCH_OFF = "pass cublas=False, or set AUTOTUNE_CUBLAS=0, to do without cuBLAS"


def tell(status: int, alpha: Any, beta: Any, version: str = "", where: str = "this GPU") -> None:
    """Raise the error for a status other than 0; warn, if a kernel served instead of cuBLAS of a version."""
    if status > INSTEAD:
        fault, blas = _blas_fault(status - INSTEAD), f"cuBLAS {version}".strip()
        told = f"{blas} cannot be used on {where}, kernels serve instead: {fault}"
        warnings.warn(told, DispatchWarning, stacklevel=2)
        return
    if status > BLAS:
        raise _blas_fault(status)
    if status > CUDA:
        raise CudaFault(_LAUNCHING, status - CUDA, error_name(status - CUDA))
    if status == _MANY_LAUNCHES:
        raise many_launches()
    if status == FORKED:
        raise forked()
    if status == NO_DRIVER:
        raise DispatchError("the CUDA driver lacks calls of CUDA 12.0; update the driver")
    if status == NO_RECORD:
        raise DispatchError("calls cannot be recorded there; name a file in a folder that can be written")
    if status == RECORDED:
        raise recorded_elsewhere()
    if status == NO_BLAS:
        raise DispatchError(
            "cuBLAS gives no handle now; where a graph is captured, make a product on this GPU before that"
        )
    if status == BAD_SCALE:
        raise no_scale(alpha, beta, "it is too large")
    raise DispatchError(f"the core refuses a plan or a launch (status {status})")


def _blas_fault(status: int) -> DispatchError:
    place, code = divmod(status - BLAS, _OF_CALL)
    return DispatchError(f"{_BLAS_CALLS[place]} failed with {told_status(code)}; {_SWITCH_OFF}")


def recorded_elsewhere() -> DispatchError:
    return DispatchError(
        "calls are recorded into another file already (record_calls or AUTOTUNE_RECORD); record into one"
    )

"""Turns a status of the core's launches into an error. Copied into exported tables."""

from __future__ import annotations

import warnings
from typing import Any

from ...facts.column_major import describe_status
from ...files.errors import DispatchError, DispatchWarning
from ..calls.product import many_launches, no_scale
from ..launch.cuda_driver import CudaFault, error_name
from .core_library import loaded
from .forks import forked

_OF_CALL = 256  # statuses of cuBLAS are below
_BLAS_CALLS = (
    "cublasCreate", "cublasSetMathMode", "cublasSetPointerMode", "cublasSetStream", "cublasSetWorkspace",
    "cublasSgemm", "cublasSgemmStridedBatched", "cublasSgeam",
)  # fmt: skip
_LAUNCH = "launching a kernel, or taking memory for it"
_SWITCH_OFF = "pass cublas=False, or set AUTOTUNE_CUBLAS=0, to do without cuBLAS"


def tell(status: int, alpha: Any, beta: Any, version: str = "", where: str = "this GPU") -> None:
    """Raise the error for a status other than 0; warn, if a kernel served instead of cuBLAS of a version."""
    of = loaded().numbers
    if status > of.INSTEAD:
        fault, blas = _blas_fault(status - of.INSTEAD - of.BLAS), f"cuBLAS {version}".strip()
        text = f"{blas} cannot be used on {where}, kernels serve instead: {fault}"
        warnings.warn(text, DispatchWarning, stacklevel=2)
        return
    if status > of.BLAS:
        raise _blas_fault(status - of.BLAS)
    if status > of.CUDA:
        raise CudaFault(_LAUNCH, status - of.CUDA, error_name(status - of.CUDA))
    if status == of.MANY_LAUNCHES:
        raise many_launches()
    if status == of.FORKED:
        raise forked()
    if status == of.NO_DRIVER:
        raise DispatchError("the CUDA driver lacks calls of CUDA 12.0; update the driver")
    if status == of.NO_RECORD:
        raise DispatchError("calls cannot be recorded there; name a file in a folder that can be written")
    if status == of.RECORDED:
        raise recorded_error()
    if status == of.NO_BLAS:
        raise DispatchError(
            "cuBLAS gives no handle now; where a graph is captured, make a product on this GPU before that"
        )
    if status == of.BAD_SCALE:
        raise no_scale(alpha, beta, "it is too large")
    raise DispatchError(f"the core refuses a plan or a launch (status {status})")


def _blas_fault(status: int) -> DispatchError:
    place, code = divmod(status, _OF_CALL)
    return DispatchError(f"{_BLAS_CALLS[place]} failed with {describe_status(code)}; {_SWITCH_OFF}")


def recorded_error() -> DispatchError:
    return DispatchError(
        "calls are recorded into another file already (record_calls or AUTOTUNE_RECORD); record into one"
    )

"""What a status of the core's launches says, as an error. Copied into exported tables."""

from __future__ import annotations

from typing import Any

from ..errors import DispatchError
from .core import BAD_SCALE, CUDA
from .cuda_driver import CudaFault, error_name

_LAUNCHING = "launching a kernel, or taking memory for it"


def no_scale(alpha: Any, beta: Any, reason: object) -> DispatchError:
    return DispatchError(f"alpha = {alpha!r} or beta = {beta!r} is no float32 ({reason})")


def fault_of(status: int, alpha: Any, beta: Any) -> DispatchError:
    """What a status of the core says."""
    if status == BAD_SCALE:
        return no_scale(alpha, beta, "it is too large")
    if status > CUDA:
        return CudaFault(_LAUNCHING, status - CUDA, error_name(status - CUDA))
    return DispatchError(f"the core refuses a launch (status {status})")

"""`autotune verify --quick`: whether one kernel of a folder is right here, and as fast as was recorded."""

from __future__ import annotations

from pathlib import Path

from .. import gpu
from ..files.errors import DispatchError, SlowGpu, UsageError
from ..runtime.dispatcher import Dispatcher
from ..runtime.settle.quick_check import SLOWER, QuickCheck
from . import console, verify
from .requests import VerifyRequest
from .verify import NO_GPU


def either(request: VerifyRequest, *, is_json: bool) -> None:
    """Check one kernel of a folder, or all of it. Raises as `run` and `verify.run`."""
    check = run if request.is_quick else verify.run
    check(request.table, request.gpu, is_json=is_json)


def run(folder: Path, selector: str, *, is_json: bool) -> None:
    """Check one kernel of a folder on a GPU; `auto`: the first that a table is for.

    Raises DispatchError where the folder cannot be read, is for other GPUs, or the result is wrong, SlowGpu
    where it takes longer than was recorded, EnvironmentProblem where there is no GPU, UsageError where none
    is asked for.
    """
    if selector == NO_GPU:
        raise UsageError(f"--quick runs a kernel, which takes a GPU; leave out --quick or --gpu {NO_GPU}")
    runtime = Dispatcher(folder, settle="off", cublas=False, fallback="refuse")
    here = gpu.find_gpu(selector)
    found = runtime.verify_quick(device=None if selector == "auto" else here.index)
    console.answer(_facts(found), lambda: str(found), is_json=is_json)
    _judge(folder, found)


def _judge(folder: Path, found: QuickCheck) -> None:
    if not found.is_right:
        raise DispatchError(
            f"{found.kernel_id} is wrong on GPU {found.device}: do not use {folder} there before `autotune "
            "verify` says what is amiss"
        )
    if not found.is_as_fast:
        raise SlowGpu(
            f"GPU {found.device} takes {found.ratio:.2f} times as long as was recorded, more than "
            f"{SLOWER:g}: `nvidia-smi` tells of other programs, `nvidia-smi -q -d PERFORMANCE,POWER,CLOCK` "
            "of caps and clocks; if it is to stay so, run `autotune search` and export again"
        )


def _facts(found: QuickCheck) -> dict[str, object]:
    return {
        "device": found.device,
        "gpu": found.gpu_name,
        "shape": str(found.gemm),
        "kernel": found.kernel_id,
        "error_ratio": found.error_ratio,
        "time_us": found.time_us,
        "recorded_us": found.recorded_us,
        "ratio": found.ratio,
        "is_right": found.is_right,
        "is_as_fast": found.is_as_fast,
        "differences": list(found.differences),
    }

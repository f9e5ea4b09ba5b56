"""Whether this process is the fork of one that used CUDA, or one of several that compute together."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from ...files.errors import DispatchError

_is_used = _is_forked = False
FORK_LOCK = threading.RLock()  # while a thread holds it, no other forks: of locks taken before CUDA is used


def use_cuda() -> None:
    """Called before the first lock is taken, and CUDA initialised: from now on forks do not work. Raises
    DispatchError if this process is one."""
    global _is_used
    _is_used = True
    check_fork()


def check_fork() -> None:
    """Raises DispatchError if this process is the fork of one that used CUDA."""
    if _is_forked:
        raise forked()


def forked() -> DispatchError:
    return DispatchError(
        "CUDA was used before this process was forked, and does not work in it; start processes with the "
        "method spawn, or fork before the first product"
    )


def _in_child() -> None:
    global _is_forked
    _is_forked = _is_used
    FORK_LOCK.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=FORK_LOCK.acquire, after_in_parent=FORK_LOCK.release, after_in_child=_in_child)


_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def torch_distributed() -> Any:
    """torch.distributed, while ranks are at work."""
    found = getattr(sys.modules.get("torch"), "distributed", None)
    is_there = found is not None and found.is_available() and found.is_initialized()
    return found if is_there else None


def is_one_of_several() -> bool:
    """By torch.distributed, or else by what started this process."""
    distributed = torch_distributed()
    if distributed is not None:
        return bool(distributed.get_world_size() > 1)
    return any(os.environ.get(name, "1") not in ("", "0", "1") for name in _SIZES)

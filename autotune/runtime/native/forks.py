"""Whether this process is the fork of one that used CUDA: CUDA does not work in it, and locks may be held by
threads that it does not have.

Copied into exported tables: standard library only.
"""

from __future__ import annotations

import os
import threading

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

"""What this machine is short of, by an error of the operating system, and what helps; and how processes of
autotune are started, where that can fail."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .output_file import DISK_FULL


@dataclass(frozen=True)
class Shortage:
    """What is short, and what to do about it: parts of a sentence."""

    what: str
    advice: str


_MEMORY = Shortage("out of memory", "free some")
_BY_ERRNO = {
    errno.ENOMEM: _MEMORY,
    **dict.fromkeys(DISK_FULL, Shortage("the disk is full", "free some")),
    errno.EMFILE: Shortage("too many files are open", "allow more (ulimit -n)"),
    errno.ENFILE: Shortage("all programs have too many files open", "end some, or raise fs.file-max"),
}
_PROCESSES = Shortage("too many processes run", "end some, or allow more (ulimit -u, pids.max of a cgroup)")


def shortage(error: BaseException, *, is_start: bool = False) -> Shortage | None:
    """What an error says is short; None if it says no such thing. `is_start`: a process was to be started."""
    if isinstance(error, MemoryError):
        return _MEMORY
    number = error.errno if isinstance(error, OSError) else None
    if is_start and number == errno.EAGAIN:
        return _PROCESSES
    return None if number is None else _BY_ERRNO.get(number)


def cannot_start(what: str, error: OSError, default: str) -> str:
    """That a process cannot be started, or write. `default`: what helps if nothing is short."""
    short = shortage(error, is_start=True)
    why = f"{short.what}: {error}" if short else str(error)
    return f"{what} ({why}); {short.advice if short else default}"


def start(command: Sequence[str], descriptor: int, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Run a module of this autotune in a process of its own, which is given the end of a pipe, and writes
    what goes wrong into a file. It is spared Ctrl-C, and may be killed with all that it started: its process
    group is its own. Raises OSError."""
    search = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=(descriptor,),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))},
        start_new_session=True,
    )

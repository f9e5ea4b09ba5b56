"""What this machine is short of, by an error of the operating system, and what helps; and how processes of
autotune are started, where that can fail."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from .errors import EnvironmentProblem
from .output_file import DISK_FULL

_LAST_WORDS = 400  # characters


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
_NO_FOLDER = Shortage("the current folder was removed", "go to one that is there")
_PROCESSES = Shortage("too many processes run", "end some, or allow more (ulimit -u, pids.max of a cgroup)")


def shortage(error: BaseException, *, is_start: bool = False) -> Shortage | None:
    """What an error says is short; None if it says no such thing. `is_start`: a process was to be started."""
    if isinstance(error, MemoryError):
        return _MEMORY
    number = error.errno if isinstance(error, OSError) else None
    if is_start and number == errno.EAGAIN:
        return _PROCESSES
    if number == errno.ENOENT and not _has_current_folder():
        return _NO_FOLDER
    return None if number is None else _BY_ERRNO.get(number)


def _has_current_folder() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109 (the same)
    except FileNotFoundError:
        return False


def cannot_start(what: str, error: OSError, default: str) -> str:
    """That a process cannot be started, or write. `default`: what helps if nothing is short."""
    short = shortage(error, is_start=True)
    why = f"{short.what}: {error}" if short else str(error)
    return f"{what} ({why}); {short.advice if short else default}"


class WorkerProcess:
    """A module of this autotune in a process of its own, and a pipe to it. It is given the number of its end
    of the pipe, then `more`. It is spared Ctrl-C, and may be killed with all that it started: its process
    group is its own. `what`: begins the message where it cannot be started. Raises EnvironmentProblem."""

    def __init__(self, what: str, command: Sequence[str], *more: str) -> None:
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        except OSError as error:
            advice = "set TMPDIR to a folder that may be written"
            raise EnvironmentProblem(cannot_start(what, error, advice)) from error
        try:
            self._socket, remote = socket.socketpair()
            with remote:
                number = remote.fileno()
                try:
                    self._process = _start([*command, str(number), *more], number, self._stderr)
                    self.connection = Connection(os.dup(self._socket.fileno()))
                except OSError:
                    self._socket.close()
                    raise
        except OSError as error:
            self._stderr.close()
            raise EnvironmentProblem(cannot_start(what, error, "run `autotune doctor`")) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def is_ended(self) -> bool:
        """Whether `end` was called."""
        return self._stderr.closed

    @property
    def last_words(self) -> str:
        """The end of what it wrote into stderr."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace").strip()[-_LAST_WORDS:]

    def limit(self, seconds: float) -> None:
        """From now on a read or write of the pipe that waits longer raises BlockingIOError."""
        packed = struct.pack("@ll", *divmod(max(1, round(1e6 * seconds)), 10**6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, packed)

    def cut(self) -> None:
        """Nothing passes through the pipe any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self, grace_s: float, killed_s: float | None = None) -> str:
        """Close the pipe, and kill its process group if it does not end by that. Returns its last words.
        Raises subprocess.TimeoutExpired where it is not gone so long after that."""
        if self.is_ended:
            return ""
        self.connection.close()
        self._socket.close()
        with self._stderr:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            with suppress(ProcessLookupError):  # nobody of the group is left
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(killed_s)
            return self.last_words


def _start(command: Sequence[str], descriptor: int, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
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

"""NVRTC in a process of its own: a crash or an endless run costs one compile, not the search.

    compiler.Compiler ── thread ── nvrtc.Process ──pipe── nvrtc_worker ── NVRTC, ptxas

In the coordinator's own threads a segmentation fault of the compiler would take down the search, and the
same search, resumed, would run into it again. A process costs 0.2 s to start and 28 MB of memory beyond
what all share (measured: Linux, NVRTC 13.3), and keeps compiles off the coordinator's interpreter lock.

The time limit is a timer of the operating system (SIGPROF, its default action). It ends a compile wherever
that hangs, needs neither NVRTC nor the interpreter, and runs on while this side is busy. It counts processor
time: these processes give way to others, and a kernel is not to fail where the machine is busy. A second
timer (SIGALRM) ends a compile that waits WAITS times as long.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from ..facts.measurement import Outcome
from ..files.errors import EnvironmentProblem, TrialFailure
from ..files.shortage import WorkerProcess
from ..files.wheel_libraries import NVRTC, pip_install

COMMAND = (sys.executable, "-m", "autotune.kernel.nvrtc_worker")
WAITS = 4  # by the clock a compile may take so many times its limit
_END_S = 5.0  # an idle process ends at once when its pipe is closed
_LOG_LIMIT = 2000  # characters of a compiler's log that go into a reason


@dataclass(frozen=True)
class NvrtcFacts:
    """The first answer: the version, such as `nvrtc 13.0`, and the architectures that it compiles for."""

    version: str
    archs: tuple[int, ...]


@dataclass(frozen=True)
class CompileRequest:
    """A text to compile, within so many seconds of processor time."""

    source: str
    options: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True)
class CompileAnswer:
    """What NVRTC made of it. `code` is empty unless `status` is NVRTC_SUCCESS."""

    status: str
    code: bytes
    log: str
    seconds: float


class Process:
    """One compiling process, used by one thread at a time. `command` starts it; the number of its end of the
    pipe is appended. Raises EnvironmentProblem where it cannot be started, or cannot load NVRTC."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._process = WorkerProcess("no process can be started to compile in", command)
        answer: NvrtcFacts | str = ""
        with suppress(EOFError, OSError):
            answer = self._process.connection.recv()
        if isinstance(answer, NvrtcFacts):
            self.installed = answer
            return
        words = self.end() or "without a word"
        if answer:
            raise EnvironmentProblem(
                f"NVRTC cannot be loaded ({answer}); install it with: {pip_install(NVRTC)}"
            )
        raise EnvironmentProblem(f"the compiling process does not start ({words}); run `autotune doctor`")

    def compile(self, request: CompileRequest) -> CompileAnswer:
        """Raises TrialFailure: compile_failed with the compiler's words, compile_timeout, and
        compile_crashed where the process died of it; it is to be replaced then (see `is_alive`)."""
        try:
            self._process.connection.send(request)
            answer: CompileAnswer = self._process.connection.recv()
        except (EOFError, OSError):
            raise self._crash_reason(request.timeout_s) from None
        if answer.status != "NVRTC_SUCCESS":
            words = answer.log.strip()[:_LOG_LIMIT]
            raise TrialFailure(Outcome.COMPILE_FAILED, f"{answer.status}: {words}")
        return answer

    @property
    def is_alive(self) -> bool:
        """Whether it has not been ended from here."""
        return not self._process.is_ended

    @property
    def is_running(self) -> bool:
        """Whether nothing has ended it, from here or from outside."""
        return self.is_alive and self._process.exit_code is None

    def end(self) -> str:
        """Have it end; returns its last words. Ending it again does nothing."""
        return self._process.end(_END_S)

    def _crash_reason(self, timeout_s: float) -> TrialFailure:
        words = self.end()
        code = self._process.exit_code or 0
        after_s = {-signal.SIGPROF: timeout_s, -signal.SIGALRM: WAITS * timeout_s}.get(code)
        if after_s is not None:
            return TrialFailure(Outcome.COMPILE_TIMEOUT, f"ended after {after_s:g} s")
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        hint = ", for want of memory?" if code == -signal.SIGKILL else ""
        return TrialFailure(Outcome.COMPILE_CRASHED, f"the compiler died of it ({how}{hint}) {words}".strip())


@cache
def installed(start: type[Process] = Process) -> NvrtcFacts:
    """What compiles, asked of a process that ends: NVRTC has 40 MB of this one's memory once it is loaded.
    Raises as `Process`."""
    process = start()
    process.end()
    return process.installed

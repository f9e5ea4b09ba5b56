"""The process that compiles: answers requests by NVRTC, one at a time. See nvrtc.py, which starts it.

Run as `python -m autotune.kernel.nvrtc_worker FD`, its end of the pipe.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..files import wheel_libraries
from .nvrtc import WAITS, CompileAnswer, CompileRequest, NvrtcFacts

_LEAST_TIMEOUT_S = 1e-6  # zero would disarm the timers
_OOM_SCORE = "500"  # of 1000: where memory runs out, a compile dies before a search does
LATER = 10  # added to the process's niceness: what feeds the GPU and the compilers goes first (0015)


def run(nvrtc: Any, request: CompileRequest) -> CompileAnswer:
    """Compile with this binding. Does not return if it takes too long."""
    started = time.perf_counter()
    _end_after(max(request.timeout_s, _LEAST_TIMEOUT_S))
    _, program = nvrtc.nvrtcCreateProgram(request.source.encode(), b"sgemm.cu", 0, [], [])
    options = [option.encode() for option in request.options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _end_after(0)
    is_ok = status == nvrtc.nvrtcResult.NVRTC_SUCCESS
    answer = CompileAnswer(
        status=status.name,
        code=_fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program) if is_ok else b"",
        log=_text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program),
        seconds=time.perf_counter() - started,
    )
    nvrtc.nvrtcDestroyProgram(program)
    return answer


def _end_after(seconds: float) -> None:
    """End this process after so many seconds of its processor time; 0: not any more."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, WAITS * seconds)


def _fetch(get_size: Any, get: Any, program: Any) -> bytes:
    _, size = get_size(program)
    buffer = bytes(max(size, 2))  # NVRTC fills it in place; Python shares all one-byte objects
    get(program, buffer)
    return buffer[:size]


def _text(get_size: Any, get: Any, program: Any) -> str:
    return _fetch(get_size, get, program).rstrip(b"\0").decode(errors="replace")


def main(descriptor: int) -> None:
    """Serve this end of a pipe until the other is gone."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    os.nice(LATER)
    with suppress(OSError):  # elsewhere than on Linux
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")
    with Connection(descriptor) as connection:
        try:
            from cuda.bindings import nvrtc

            wheel_libraries.load("nvrtc")
            _, major, minor = nvrtc.nvrtcVersion()
        except (ImportError, RuntimeError) as error:
            connection.send(str(error) or type(error).__name__)
            return
        _, archs = nvrtc.nvrtcGetSupportedArchs()
        connection.send(NvrtcFacts(f"nvrtc {major}.{minor}", tuple(archs)))
        with suppress(EOFError, ConnectionError):
            while True:
                connection.send(run(nvrtc, connection.recv()))


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""The process that owns a CUDA context: answers requests by its session, and dies with its parent.

Run as `python -m autotune.gpu.worker FD PARENT`: its end of the pipe, and the process id to die with. A
sticky CUDA error is reported, then the process ends: nothing more can be computed in it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

from ..files.errors import AutotuneError, EnvironmentProblem
from . import protocol
from .driver import CudaError
from .session import Session

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def respond(session: Session, request: object) -> protocol.Answer:
    """Carry out one request; what goes wrong is an answer too."""
    try:
        match request:
            case protocol.Prepare(problem):
                return session.prepare(problem)
            case protocol.RunTrial():
                return session.trial(request)
            case protocol.RunRace():
                return session.race(request)
            case protocol.RunComparison():
                return session.compare_pair(request)
            case protocol.RunCells():
                return session.cells(request)
        return protocol.Failed("internal", f"unknown request {type(request).__name__}")
    except EnvironmentProblem as error:
        return protocol.Failed("environment", str(error))
    except CudaError as error:
        return protocol.Failed("internal", str(error), is_last=error.is_sticky)
    except Exception:
        return protocol.Failed("internal", traceback.format_exc(limit=-4))


class RequestHandler:
    """Opens the session at the first request, then answers by it."""

    def __init__(self) -> None:
        self._session: Session | None = None

    def __call__(self, request: object) -> protocol.Answer:
        if self._session is not None:
            return respond(self._session, request)
        if not isinstance(request, protocol.Start):
            return protocol.Failed("internal", "the first request must be Start", is_last=True)
        try:
            self._session = Session(request)
        except EnvironmentProblem as error:
            return protocol.Failed("environment", str(error), is_last=True)
        except AutotuneError as error:
            return protocol.Failed("internal", str(error), is_last=True)
        return self._session.ready

    def tidy(self) -> None:
        """Between requests: a race uses many cubins at the same time."""
        if self._session is not None:
            self._session.loader.trim()


def exit_with(parent: int) -> None:
    """Have this process killed when the thread that started it ends (Linux), or now if it has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main(arguments: list[str]) -> None:
    """Serve the pipe with this file descriptor for the process with this id."""
    descriptor, parent = map(int, arguments)
    exit_with(parent)
    with Connection(descriptor) as connection:
        handler = RequestHandler()
        protocol.serve(connection, handler, handler.tidy)
    # No clean-up: in a lost context it fails or hangs, and the driver frees all when a process ends.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])

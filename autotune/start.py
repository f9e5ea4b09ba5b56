"""Where the command line begins. From here on Ctrl-C ends it without a traceback, imports included.

While modules load there is nothing to put in order, and an exception in their middle would come out as
something else: the process ends at once. A command asks for `KeyboardInterrupt` once it is loaded.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

SIGNALLED = 128  # plus the signal's number: what a shell reports for a process that it ended


def main() -> None:
    """Entry point of `autotune` and `python -m autotune`."""
    leave_at_once()
    from .cli import main

    main()


def leave_at_once() -> None:
    """Have Ctrl-C end the process, and nothing else happen. Where it is ignored, it stays so."""
    _handle(_leave)


def interrupt_in_order() -> None:
    """Have Ctrl-C raise KeyboardInterrupt, so that files and processes are put in order."""
    _handle(signal.default_int_handler)


def _handle(handler: object) -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(SIGNALLED + number)

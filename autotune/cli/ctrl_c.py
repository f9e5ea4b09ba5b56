"""What Ctrl-C does: ends the process at once, or raises KeyboardInterrupt so that things are put in order."""

from __future__ import annotations

import os
import signal
from types import FrameType

SIGNALLED = 128  # plus the signal's number: what a shell reports for a process that it ended


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

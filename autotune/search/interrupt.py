"""Ctrl-C during a search: the first asks it to stop, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """While entered, in the main thread, the first SIGINT (or SIGTERM) only sets `is_requested`; the next
    raises KeyboardInterrupt, as Python does. In other threads signals are left alone."""

    def __init__(self) -> None:
        self.is_requested = False
        self._earlier: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._earlier[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True

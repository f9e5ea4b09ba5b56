"""Signals that end a search: the first asks it to stop, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, ClassVar, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, a terminal that was closed


class InterruptHandler:
    """While entered, in the main thread, the first of these signals only sets `number`. The next has its
    usual effect. What is ignored stays so, but for SIGTERM: under `nohup` the search outlives its terminal,
    in the background of a script Ctrl-C there. In other threads signals are left alone: `interrupt_threads`
    tells those."""

    _in_threads: ClassVar[set[InterruptHandler]] = set()

    def __init__(self) -> None:
        self.number: int | None = None
        self._earlier: dict[signal.Signals, Any] = {}

    @property
    def is_requested(self) -> bool:
        """Whether the search should end."""
        return self.number is not None

    def should_stop(self) -> bool:
        """As `is_requested`, for what is called from time to time."""
        return self.is_requested

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                    self._earlier[number] = signal.signal(number, self._on_signal)
        else:
            self._in_threads.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        self._earlier.clear()
        self._in_threads.discard(self)

    @classmethod
    def interrupt_threads(cls, number: int) -> None:
        """As this signal, for all that are entered outside the main thread."""
        for one in cls._in_threads:
            one.number = number

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

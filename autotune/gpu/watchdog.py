"""Ends what takes too long: one thread that watches the clock for all requests, one at a time.

A timer per request would start a thread per request. Beside a search that keeps the interpreter busy, that
took 2 ms (two loaded cores), and the GPU waits meanwhile. This thread sleeps until the oldest deadline it
knows of and then looks again: a request that ends in time wakes nobody.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchdog:
    """Bounds one piece of work at a time; used by one thread. `close` ends the watchdog's own thread, which
    otherwise ends with the process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due_s = math.inf  # on time.monotonic; infinite while nothing is bounded
        self._on_timeout: Callable[[], None] = _nothing
        self._next_check_s = math.inf  # when the thread looks next by itself
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @contextmanager
    def bounded(self, deadline_s: float, on_timeout: Callable[[], None]) -> Iterator[None]:
        """Call `on_timeout` once, on another thread, if the `with` has not ended after so many seconds.
        When the `with` is left, `on_timeout` is not running and will not be called. It must not raise, or
        wait."""
        self._watch(time.monotonic() + deadline_s, on_timeout)
        try:
            yield
        finally:
            with self._changed:
                self._due_s = math.inf

    def close(self) -> None:
        """Nothing is bounded any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, due_s: float, on_timeout: Callable[[], None]) -> None:
        with self._changed:
            self._due_s, self._on_timeout = due_s, on_timeout
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
            elif due_s < self._next_check_s:
                self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                left_s = self._due_s - time.monotonic()
                if left_s <= 0:
                    self._due_s = math.inf
                    self._on_timeout()
                    continue
                self._next_check_s = self._due_s
                self._changed.wait(None if math.isinf(left_s) else left_s)


def _nothing() -> None:
    """While nothing is bounded."""

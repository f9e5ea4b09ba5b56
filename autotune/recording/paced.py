"""A recorded space in real time: so many trials a second, one after another, as a GPU answers. A stand-in for
one where processes are tried that work side by side."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

from ..facts.gemm import Gemm
from ..facts.measurement import Measurement
from ..target import Point
from .replay import ReplayTarget

RATE = "AUTOTUNE_REPLAY_RATE"  # trials a second
_CAPACITY = 4  # one is measured, the others wait: no ask leaves it idle


class PacedReplay(ReplayTarget):
    """Measures `rate` points a second, from a thread."""

    def __init__(self, path: str | Path, rate: float, *, max_error: float | None = None) -> None:
        super().__init__(path, capacity=_CAPACITY, max_error=max_error)
        self._trial_s = 1 / rate
        self._waiting: SimpleQueue[tuple[Future[Measurement], Measurement] | None] = SimpleQueue()
        self._measuring = threading.Thread(target=self._measure, name="replay", daemon=True)
        self._measuring.start()

    def submit(self, gemm: Gemm, point: Point, cutoff_us: float | None) -> Future[Measurement]:
        future = Future[Measurement]()
        self._waiting.put((future, self.look_up(gemm, point, cutoff_us)))
        return future

    def _measure(self) -> None:
        done_s = time.monotonic()
        while (submitted := self._waiting.get()) is not None:
            future, found = submitted
            if future.set_running_or_notify_cancel():
                done_s = max(done_s, time.monotonic() - self._trial_s) + self._trial_s
                time.sleep(max(0.0, done_s - time.monotonic()))
                future.set_result(found)

    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._waiting.put(None)
        self._measuring.join()

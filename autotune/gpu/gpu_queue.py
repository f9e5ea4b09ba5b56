"""The one thread that talks to the GPU's worker: submitted work, and work for idle moments.

A second thread settles each result: it runs the callbacks that wait for the result (a search commits the
trial there), while the first thread goes on with the next work. Results are handed over one at a time and in
order: the next is settled only when all callbacks of this one have run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class GpuQueue:
    """Runs submitted work one by one, in order. Work for idle moments runs when nothing else waits. `submit`
    raises RuntimeError after `close`; `close` cancels the idle work that is left. A callback of a future that
    is settled here may take long, but must not wait for the queue."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpu")
        self._settler = ThreadPoolExecutor(1, thread_name_prefix="settle")
        self._settling: Future[None] | None = None  # the newest
        self._lock = threading.Lock()
        self._num_waiting = 0  # of work that is not for idle moments
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """How much submitted work has not begun, without work for idle moments."""
        return self._num_waiting

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        def begin() -> T:
            self._count(-1)
            return work(*args, **kwargs)

        self._count(1)
        try:
            return self._thread.submit(begin)
        except RuntimeError:
            self._count(-1)
            raise

    def submit_into(self, future: Future[T], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        """As `submit`, for a future that somebody waits for already. It is cancelled if the queue closes
        before the work begins."""
        try:
            self.submit(self._run, future, partial(work, *args, **kwargs))
        except RuntimeError:  # closed meanwhile
            future.cancel()

    def submit_idle(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `submit`, for later: if other work waits when this comes up, it goes to the end."""
        future: Future[T] = Future()

        def begin() -> None:
            if self._num_waiting and not self._is_closed and not future.cancelled():
                self._append(begin, future)
            else:
                self._run(future, partial(work, *args, **kwargs))

        self._append(begin, future)
        return future

    def _run(self, future: Future[T], work: Callable[[], T]) -> None:
        """Do `work` now, then settle `future`, and run its callbacks, on the other thread. Waits until that
        thread is done with the previous future."""
        if self._is_closed:
            future.cancel()
        if not future.set_running_or_notify_cancel():
            return
        try:
            done = partial(future.set_result, work())
        except BaseException as error:
            done = partial(future.set_exception, error)
        if self._settling is not None:
            wait([self._settling])
        self._settling = self._settler.submit(done)

    def _append(self, begin: Callable[[], None], future: Future[T]) -> None:
        try:
            self._thread.submit(begin)
        except RuntimeError:  # closed meanwhile
            future.cancel()

    def drop_idle(self) -> None:
        """Begin no more work for idle moments."""
        self._is_closed = True

    def close(self) -> None:
        """Wait for the submitted work and its callbacks."""
        self.drop_idle()
        self._thread.shutdown(wait=True)
        self._settler.shutdown(wait=True)

    def _count(self, change: int) -> None:
        with self._lock:
            self._num_waiting += change

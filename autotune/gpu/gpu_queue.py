"""The one thread that talks to the GPU's worker: submitted work, and work for idle moments.

Before it waits for the result of a piece of work, it begins the next one *ahead*: what that needs is made
ready and sent to the worker, which need not wait for it. A second thread settles each result: it runs the
callbacks that wait for the result (a search commits the trial there). Results are handed over one at a time
and in order: the next is settled only when all callbacks of this one have run.

    gpu     begin 2, wait for 1 │ begin 3, wait for 2 │ begin 4, wait for 3 │
    settle                      │ commit 1            │ commit 2            │ commit 3
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def never_ahead() -> bool:
    """Of work that cannot begin before its turn."""
    return False


class _Item:
    """A piece of work, who waits for it, and what begins it ahead. `can_wait`: for an idle moment.
    `settles`: its future is settled on the other thread, and cancelled if the queue closes before."""

    def __init__(
        self, future: Future[Any], work: Callable[[], Any], ahead: Callable[[], bool] = never_ahead,
        *, can_wait: bool = False, settles: bool = True,
    ) -> None:  # fmt: skip
        self.future, self.work, self.ahead = future, work, ahead
        self.can_wait, self.settles = can_wait, settles
        self._is_wanted: bool | None = None

    def is_wanted(self, *, is_closed: bool) -> bool:
        """Whether anybody waits for it. From now on, nobody can cancel it."""
        if self._is_wanted is None:
            if is_closed and self.settles:
                self.future.cancel()
            self._is_wanted = self.future.set_running_or_notify_cancel()
        return self._is_wanted


class GpuQueue:
    """Runs submitted work one by one, in order. Work for idle moments begins when nothing else waits.
    `submit` raises RuntimeError after `close`; `close` cancels the idle work that is left. A callback of a
    future that is settled here may take long, but must not wait for the queue."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpu")
        self._settler = ThreadPoolExecutor(1, thread_name_prefix="settle")
        self._settling: Future[None] | None = None  # the newest
        self._lock = threading.Lock()
        self._submitted, self._idle = deque[_Item](), deque[_Item]()
        self._begun: _Item | None = None  # ahead, by the step before
        self._is_closed = False

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = Future[T]()
        self._append(_Item(future, partial(work, *args, **kwargs), settles=False))
        return future

    def submit_into(
        self, future: Future[T], work: Callable[[], T], ahead: Callable[[], bool] = never_ahead
    ) -> None:
        """As `submit`, for a future that somebody waits for already. It is cancelled if the queue closes
        before the work begins. `ahead` begins it while the GPU is on what came before, if that was begun,
        too, and is asked again at its turn. It returns whether the work is begun, and raises only what the
        work raises then."""
        self._append_if_open(_Item(future, work, ahead))

    def submit_idle(self, work: Callable[[], T], ahead: Callable[[], bool] = never_ahead) -> Future[T]:
        """As `submit_into`, for later: whatever else is submitted until this begins goes first."""
        future = Future[T]()
        self._append_if_open(_Item(future, work, ahead, can_wait=True))
        return future

    def _append_if_open(self, item: _Item) -> None:
        try:
            self._append(item)
        except RuntimeError:  # closed meanwhile
            item.future.cancel()

    def _append(self, item: _Item) -> None:
        items = self._items_like(item)
        with self._lock:
            self._thread.submit(self._step)  # a step for each item
            items.append(item)

    def _items_like(self, item: _Item) -> deque[_Item]:
        return self._idle if item.can_wait else self._submitted

    def _take(self) -> _Item | None:
        with self._lock:
            items = self._submitted or self._idle
            return items.popleft() if items else None

    def _step(self) -> None:
        """Finish one item; before, begin the next."""
        item, self._begun = self._begun, None
        is_begun = item is not None
        if item is None:
            item = self._take()
            assert item is not None
            is_begun = self._begin(item)
        if is_begun and (following := self._take()) is not None:
            if self._begin(following):
                self._begun = following
            else:
                with self._lock:
                    self._items_like(following).appendleft(following)
        if item.is_wanted(is_closed=self._is_closed):
            self._finish(item)

    def _begin(self, item: _Item) -> bool:
        """Whether an item is begun, ahead of its turn."""
        if not item.is_wanted(is_closed=self._is_closed):
            return False
        try:
            return item.ahead()
        except Exception:  # raised again by the work itself, for whoever waits for it
            return False

    def _finish(self, item: _Item) -> None:
        """Wait for its result, then settle its future, and run the callbacks, on the other thread. Waits
        until that thread is done with the previous future."""
        try:
            done = partial(item.future.set_result, item.work())
        except BaseException as error:
            done = partial(item.future.set_exception, error)
        if not item.settles:
            done()
            return
        if self._settling is not None:
            wait([self._settling])
        self._settling = self._settler.submit(done)

    def drop_idle(self) -> None:
        """Begin no more work for idle moments."""
        self._is_closed = True

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Wait for the submitted work, what is begun, and their callbacks; `last` goes behind all work."""
        self.drop_idle()
        ended = self._thread.submit(last) if last else None
        self._thread.shutdown(wait=True)
        self._settler.shutdown(wait=True)
        if ended is not None:
            ended.result()

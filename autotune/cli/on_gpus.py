"""Several GPUs of this machine for one command: its work goes to whichever is free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

from .. import target_finder as targets
from ..files.errors import DeviceLost
from ..target import Target
from . import console

G = TypeVar("G")
T = TypeVar("T")
R = TypeVar("R")
OpenTarget = TypeVar("OpenTarget", bound=Target)


@contextmanager
def opened(selector: str, opening: Callable[[str], OpenTarget]) -> Iterator[dict[str, list[OpenTarget]]]:
    """What a selector names, opened, by the name of its model."""
    found: dict[str, list[OpenTarget]] = {}
    with ExitStack() as stack:
        for one in targets.select(selector):
            target = stack.enter_context(closing(opening(one.selector)))
            found.setdefault(target.environment.gpu_name, []).append(target)
        yield found


def on_any(gpus: Sequence[G], items: Sequence[T], work: Callable[[G, T], R]) -> list[R]:
    """What `work` makes of each item, in order. A GPU that is lost ends no other: these take its item. Raises
    DeviceLost once all are lost, and what else `work` raises."""
    results: dict[int, R] = {}
    due, alive = deque(enumerate(items)), list(gpus)
    is_over = threading.Event()

    def serve(gpu: G) -> None:
        while not is_over.is_set():
            try:
                at, item = due.popleft()
            except IndexError:
                return
            try:
                results[at] = work(gpu, item)
            except DeviceLost as error:
                due.append((at, item))
                alive.remove(gpu)
                if not alive:
                    raise
                console.note(f"{error}; the other GPUs go on")
                return
            except BaseException:
                is_over.set()
                raise

    while due:
        if len(alive) == 1:  # here: nothing but this thread hears Ctrl-C
            serve(alive[0])
            continue
        with ThreadPoolExecutor(len(alive)) as threads:
            for done in [threads.submit(serve, gpu) for gpu in list(alive)]:
                done.result()
    return [results[at] for at in range(len(items))]

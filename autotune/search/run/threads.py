"""How threads of this process share the cores while a search runs.

Linear algebra takes one: the other cores are the compiler's. numpy brings an OpenBLAS that takes all cores,
whose threads spin while they wait. An environment variable limits it only before numpy loads, so this calls
the library, which /proc names, under one of a few names of its function. Elsewhere nothing is changed.

Threads of Python switch promptly. A computing thread yields only after an interval, 5 ms by default: so long
the thread that feeds the GPU may wait for each answer of its worker, and those that enumerate spaces at each
of thousands of steps. Beside a thread of plain Python the space of 4096^3 takes 4.4 s, with 0.5 ms 2.4 s,
alone 0.6 s (two busy cores; 1 and 0.2 ms do alike)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_MAPS = Path("/proc/self/maps")
_NAMES = (
    "scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_", "openblas_{}_num_threads",
)  # fmt: skip


class OpenBlas(NamedTuple):
    """An OpenBLAS of this process: how many threads it uses, and how to change that."""

    num_threads: Callable[[], int]
    set_num_threads: Callable[[int], None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let every loaded OpenBLAS use one thread; afterwards as many as before."""
    limited = [(library, library.num_threads()) for library in libraries()]
    for library, _ in limited:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, num_threads in limited:
            library.set_num_threads(num_threads)


def libraries() -> list[OpenBlas]:
    """Those that this process has loaded."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = {
        line[line.index("/") :] for line in lines if "/" in line and "openblas" in line.rpartition("/")[2]
    }
    return [found for path in sorted(paths) if (found := _library(path)) is not None]


def _library(path: str) -> OpenBlas | None:
    try:
        loaded = ctypes.CDLL(path)
    except OSError:  # replaced on disk since
        return None
    for name in _NAMES:
        get, change = (getattr(loaded, name.format(what), None) for what in ("get", "set"))
        if get is not None and change is not None:
            return OpenBlas(get, change)
    return None


@contextmanager
def prompt_switching(interval_s: float = 0.0005) -> Iterator[None]:
    """Let threads of this process yield after this interval; afterwards, after the former one."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, interval_s))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)

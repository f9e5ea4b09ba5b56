"""Threads that hand over promptly while a search runs.

One thread of Python runs at a time, and one that computes gives way only after an interval, 5 ms unless told
otherwise. So long may the thread that feeds the GPU wait, each time that a worker has answered, and the one
that enumerates spaces, after each of its thousands of array operations: beside a thread of plain Python the
space of 4096^3 took 10.9 s, at half a millisecond 5.5 s, alone 3 s (two cores; 1 and 0.2 ms did alike).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL_S = 0.0005


@contextmanager
def prompt_switching() -> Iterator[None]:
    """Have threads of this process give way after INTERVAL_S; afterwards, after as long as before."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, INTERVAL_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)

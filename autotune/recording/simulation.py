"""The clock of a machine that tunes: threads compile ahead while one GPU verifies and times.

An event simulation without a GPU: what was recorded of each candidate decides when it would have been done.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(order=True)
class _Candidate:
    compiled_s: float  # when its kernel is there
    number: int  # of submissions before it: who comes first is served first
    run_s: float = field(compare=False)


class SimulatedMachine:
    """`num_threads` compile each kernel once, one GPU runs what is compiled, first come, first served. At
    most `depth` candidates are under way: where they are, a submission waits for one to be done. All times
    are seconds of the simulated clock, which begins at 0."""

    def __init__(self, num_threads: int, depth: int) -> None:
        self._threads = [0.0] * num_threads  # when each is free, as a heap
        self._depth = depth
        self._open: list[_Candidate] = []  # a heap
        self._compiled_s: dict[Hashable, float] = {}  # when each kernel is there
        self._num_submitted = 0
        self._requested_s = 0.0  # when the last candidate was submitted, or the next can be
        self._gpu_free_s = 0.0

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self._depth

    def submit(self, kernel: Hashable, compile_s: float, run_s: float) -> int:
        """Begin a candidate as soon as there is room for it. Compiling takes time for the first that needs
        the kernel. Returns the candidate's number: how many were submitted before it."""
        while self.is_full:
            self.finish_next()
        if kernel not in self._compiled_s:
            self._compiled_s[kernel] = max(self._requested_s, self._threads[0]) + compile_s
            heapq.heapreplace(self._threads, self._compiled_s[kernel])
        compiled_s = max(self._requested_s, self._compiled_s[kernel])
        number, self._num_submitted = self._num_submitted, self._num_submitted + 1
        heapq.heappush(self._open, _Candidate(compiled_s, number, run_s))
        return number

    def finish_next(self) -> int:
        """Let the clock run until a candidate is done; returns its number. Raises IndexError if none is open.
        Nothing that is submitted later can come before it: the GPU begins it before that."""
        candidate = heapq.heappop(self._open)
        self._gpu_free_s = max(self._gpu_free_s, candidate.compiled_s) + candidate.run_s
        self._requested_s = self._gpu_free_s
        return candidate.number

    def drain(self) -> None:
        """Let the clock run until all is done."""
        while self._open:
            self.finish_next()

    def occupy(self, seconds: float) -> None:
        """Let the GPU work on something else, once all is done."""
        self.drain()
        self._gpu_free_s += seconds
        self._requested_s = self._gpu_free_s

    @property
    def now_s(self) -> float:
        """When the last candidate was done that is known to be."""
        return self._requested_s

    @property
    def done_s(self) -> float:
        """When all that was submitted is done."""
        free_s = self._gpu_free_s
        for candidate in sorted(self._open):
            free_s = max(free_s, candidate.compiled_s) + candidate.run_s
        return free_s

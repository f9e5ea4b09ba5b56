"""Device memory for packed operands and for the partial sums and counters of split-K, one piece per
stream of one GPU.

A piece has a border: scratch (packed operands, then sums) ends there, counters begin there. A launch
gets the address that lies the size of its scratch before the border, so counters lie at the same place
whatever the shape. They are zeroed once: every launch leaves them zero. Copied into exported tables:
standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..launch import Grid
from .driver import PER_THREAD_STREAM, Driver

MAX_KEPT = 32  # streams with a piece of their own; more take memory from the driver's pool at each launch
_ALIGNMENT = 256  # bytes


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


class _Piece:
    """Memory that the launches of one stream use one after another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.border = 0
        self._base = 0
        self._scratch_bytes = 0
        self._counter_bytes = 0

    def reserve(self, driver: Driver, grid: Grid, stream: int) -> None:
        """Make room for a launch. What the stream still works on is freed behind it."""
        if grid.scratch_bytes <= self._scratch_bytes and grid.counter_bytes <= self._counter_bytes:
            return
        scratch = _rounded(max(grid.scratch_bytes, self._scratch_bytes))
        counters = _rounded(max(grid.counter_bytes, self._counter_bytes))
        if self._base:
            base, self._base, self._scratch_bytes, self._counter_bytes = self._base, 0, 0, 0
            driver.free(base, stream)
        base = driver.allocate(scratch + counters, stream)
        if counters:
            driver.zero(base + scratch, counters, stream)
        self._base, self._scratch_bytes, self._counter_bytes = base, scratch, counters
        self.border = base + scratch


class Workspaces:
    """The workspaces of one GPU. Threads may share it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._pieces: dict[tuple[int, int], _Piece] = {}

    def run(self, grid: Grid, stream: int, launch: Callable[[int], None]) -> None:
        """Call `launch` with the address of a workspace for it. All that it launches stays together:
        no other thread's launch on this stream comes between. The GPU's context must be current."""
        piece = None if self._driver.is_capturing(stream) else self._piece(stream)
        if piece is None:
            self._run_once(grid, stream, launch)
            return
        with piece.lock:
            piece.reserve(self._driver, grid, stream)
            launch(piece.border - grid.scratch_bytes)

    def _piece(self, stream: int) -> _Piece | None:
        """The piece of a stream. Handles are given again after a stream's end, identities are not."""
        thread = threading.get_ident() if stream == PER_THREAD_STREAM else 0
        key = (self._driver.stream_id(stream), thread)
        piece = self._pieces.get(key)
        if piece is None:
            with self._lock:
                if key not in self._pieces and len(self._pieces) >= MAX_KEPT:
                    return None
                piece = self._pieces.setdefault(key, _Piece())
        return piece

    def _run_once(self, grid: Grid, stream: int, launch: Callable[[int], None]) -> None:
        """With memory taken and given back in the order of the stream. While a graph is captured, both
        become nodes of it: replays on several streams then never share a workspace."""
        address = self._driver.allocate(grid.workspace_bytes, stream)
        try:
            if grid.counter_bytes:
                self._driver.zero(address + grid.scratch_bytes, grid.counter_bytes, stream)
            launch(address)
        finally:
            self._driver.free(address, stream)

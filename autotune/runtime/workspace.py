"""Device memory for packed operands and for the partial sums and counters of split-K, by GPU and stream.

A stream that launches repeatedly gets its own piece. A piece has a border: scratch (packed operands, then
sums) ends there, counters begin there. A launch gets the address that is the size of its scratch before the
border, so counters are at the same address for every shape. They are zeroed once: every launch leaves them
zero. All other launches take memory from a pool and give it back, both in the order of their stream.

What a GPU keeps between calls is bounded: the pool holds KEPT_BYTES, all pieces together half of that. The
driver does not tell when a stream ends, so a piece is never taken back; a stream that makes a few launches
and ends never gets one.

Captured launches take memory and give it back as nodes of their graph here: replays on several streams never
share it. Those nodes take time at each replay, so in the core a graph keeps workspaces of up to
CAPTURED_BYTES (docs/decisions/0055). Here only cuBLAS without a table
(blas_engine.py) takes any. Copied into exported tables: standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..kernel.launch import Grid
from .cuda_driver import PER_THREAD_STREAM, Driver

KEPT_BYTES = 512 << 20  # of one GPU: memory that the pool does not give back to the driver, pieces included
PIECES_BYTES = KEPT_BYTES // 2  # of all pieces: the rest serves the other launches
CAPTURED_BYTES = 4 << 20  # of a captured launch: moving more takes longer than memory nodes
MAX_PIECES = 32
LAUNCHES_TO_STAY = 8  # after this many launches that need a workspace a stream gets a piece
MAX_COUNTED = 4096  # streams whose launches are counted
_ALIGNMENT = 256  # bytes

_Key = tuple[int, int]  # a stream's identity, and the thread if each thread has a stream of that name


def aligned(num_bytes: int) -> int:
    """This many bytes, rounded up to where what follows may begin."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


class _Piece:
    """Memory that the launches of one stream use one after another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.border = 0
        self._base = 0
        self._scratch_bytes = 0
        self._counter_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._scratch_bytes + self._counter_bytes

    def sizes_for(self, grid: Grid) -> tuple[int, int]:
        """Bytes of scratch and counters that this launch and all before it need."""
        scratch = aligned(max(grid.scratch_bytes, self._scratch_bytes))
        return scratch, aligned(max(grid.counter_bytes, self._counter_bytes))

    def resize(self, driver: Driver, pool: int, sizes: tuple[int, int], stream: int) -> None:
        """Memory that the stream still uses is freed after its work."""
        scratch, counters = sizes
        if self._base:
            base, self._base, self._scratch_bytes, self._counter_bytes = self._base, 0, 0, 0
            driver.free(base, stream)
        base = driver.allocate(scratch + counters, stream, pool)
        if counters:
            driver.zero(base + scratch, counters, stream)
        self._base, self._scratch_bytes, self._counter_bytes = base, scratch, counters
        self.border = base + scratch


class Workspaces:
    """The workspaces of one GPU. Threads may share it."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver, self._device = driver, device
        self._lock = threading.Lock()
        self._made_pool: int | None = None
        self._pieces: dict[_Key, _Piece] = {}
        self._num_launches: dict[_Key, int] = {}  # of streams without a piece
        self._kept_bytes = 0  # of all pieces

    def run(self, grid: Grid, stream: int, launch: Callable[[int], None]) -> None:
        """Call `launch` with the address of a workspace for it. Its launches stay together: no other thread's
        launch uses this workspace meanwhile. The GPU's context must be current."""
        piece = None if self._driver.is_capturing(stream) else self._piece(stream)
        if piece is not None:
            with piece.lock:
                if self._has_room(piece, grid, stream):
                    launch(piece.border - grid.scratch_bytes)
                    return
        self._run_once(grid, stream, launch)

    def _piece(self, stream: int) -> _Piece | None:
        """The piece of a stream, if it has one. Handles are reused after a stream's end, identities are
        not."""
        thread = threading.get_ident() if stream == PER_THREAD_STREAM else 0
        key = (self._driver.stream_id(stream), thread)
        found = self._pieces.get(key)
        if found is None:
            with self._lock:
                found = self._pieces.get(key) or self._count(key)
        return found

    def _count(self, key: _Key) -> _Piece | None:
        """Count a launch; a new piece for a stream that stays."""
        num_launches = self._num_launches.pop(key, 0) + 1
        if num_launches >= LAUNCHES_TO_STAY and len(self._pieces) < MAX_PIECES:
            return self._pieces.setdefault(key, _Piece())
        if len(self._num_launches) >= MAX_COUNTED:
            self._num_launches.clear()
        self._num_launches[key] = num_launches
        return None

    def _has_room(self, piece: _Piece, grid: Grid, stream: int) -> bool:
        """Whether a piece is large enough for this launch, or may grow to be."""
        sizes, before = piece.sizes_for(grid), piece.num_bytes
        growth = sum(sizes) - before
        if not growth:
            return True
        with self._lock:
            if self._kept_bytes + growth > PIECES_BYTES:
                return False
            self._kept_bytes += growth
        try:
            piece.resize(self._driver, self._pool, sizes, stream)
        finally:
            with self._lock:
                self._kept_bytes += piece.num_bytes - before - growth  # nothing, unless that failed
        return True

    def _run_once(self, grid: Grid, stream: int, launch: Callable[[int], None]) -> None:
        """With memory taken and given back in the order of the stream. While a graph is captured, both
        become nodes of it: replays on several streams then never share a workspace."""
        address = self._driver.allocate(grid.workspace_bytes, stream, self._pool)
        try:
            if grid.counter_bytes:
                self._driver.zero(address + grid.scratch_bytes, grid.counter_bytes, stream)
            launch(address)
        finally:
            self._driver.free(address, stream)

    @property
    def _pool(self) -> int:
        if self._made_pool is None:
            with self._lock:
                if self._made_pool is None:
                    self._made_pool = self._driver.make_pool(self._device, KEPT_BYTES)
        return self._made_pool

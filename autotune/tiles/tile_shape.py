"""What follows from a config, as kernels/config.cuh derives it: who computes what of a block's tile.

Numbers are those of the template; what `kernel/resources.py` knows is asked of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..facts.gemm import FLOAT_BYTES, Gemm
from ..kernel import resources
from ..kernel.config import WARP, Config, lanes_k
from .warp_access import Addresses, Flags


@dataclass(frozen=True)
class TileShape:
    """One instance of the template on problems of one layout."""

    config: Config
    gemm: Gemm

    @cached_property
    def lanes_k(self) -> int:
        """Lanes that share out k."""
        return int(lanes_k(self.config))

    @property
    def lanes_m(self) -> int:
        return self.config.wm // self.config.tm

    @property
    def lanes_n(self) -> int:
        return self.config.wn // self.config.tn

    @property
    def warps_n(self) -> int:
        return self.config.bn // self.config.wn

    @property
    def chunk_m(self) -> int:
        return int(resources.chunk_m(self.config))

    @property
    def chunk_n(self) -> int:
        return int(resources.chunk_n(self.config))

    @property
    def threads_per_slice(self) -> int:
        return int(resources.threads_per_slice(self.config))

    @property
    def threads(self) -> int:
        return int(resources.threads(self.config))

    @property
    def owners(self) -> int:
        """Threads of a slice whose sums are of different elements of C."""
        return self.threads_per_slice // self.lanes_k

    @property
    def slice_bk(self) -> int:
        return self.config.bk // self.config.slice_k

    @property
    def step_k(self) -> int:
        """Depth of a step of the main loop."""
        return self.config.bk * self.lanes_k

    @property
    def is_k_major_a(self) -> bool:
        return bool(resources.is_k_major_a(self.config, self.gemm))

    @property
    def is_k_major_b(self) -> bool:
        return bool(resources.is_k_major_b(self.config, self.gemm))

    @property
    def row_a(self) -> int:
        return int(resources.row_a(self.config, self.gemm))

    @property
    def row_b(self) -> int:
        return int(resources.row_b(self.config, self.gemm))

    @property
    def stage_a(self) -> int:
        """Floats of A's tile in a stage; B's lies after it."""
        return self.config.bk * self.row_a

    @property
    def stage_floats(self) -> int:
        return int(resources.stage_floats(self.config, self.gemm))

    @property
    def is_predicated(self) -> bool:
        return self.config.edges == "predicated"

    @property
    def row_groups(self) -> int:
        """Lanes of the block that stand along m."""
        return self.config.bm // self.config.tm

    @property
    def staged_pitch(self) -> int:
        return int(resources.staged_pitch(self.config))

    @cached_property
    def staged_round(self) -> int:
        """Rows of each thread that go through shared memory at a time: the most that fit and divide TM."""
        floats = int(resources.smem_bytes(self.config, self.gemm)) // FLOAT_BYTES
        row = int(resources.staged_bytes(self.config)) // FLOAT_BYTES
        return max(r for r in range(1, self.config.tm + 1) if self.config.tm % r == 0 and r * row <= floats)

    @cached_property
    def thread(self) -> Addresses:
        """All threads of the block by warp and lane: (warps, 32)."""
        return np.arange(self.threads, dtype=np.int64).reshape(-1, WARP)

    @cached_property
    def slice(self) -> Addresses:
        """Which slice each thread is of: (warps, 32)."""
        return self.thread // self.threads_per_slice

    @cached_property
    def first_m(self) -> Addresses:
        """The first row of each thread in the block's tile: (warps, 32)."""
        warp, lane = self._warp_and_lane()
        return warp // self.warps_n * self.config.wm + lane // self.lanes_n * self.chunk_m

    @cached_property
    def first_n(self) -> Addresses:
        """The first column of each thread in the block's tile: (warps, 32)."""
        warp, lane = self._warp_and_lane()
        return warp % self.warps_n * self.config.wn + lane % self.lanes_n * self.chunk_n

    def _warp_and_lane(self) -> tuple[Addresses, Addresses]:
        in_slice = self.thread % self.threads_per_slice
        return in_slice // WARP, in_slice % WARP % (self.lanes_m * self.lanes_n)

    @cached_property
    def goes_on(self) -> Flags:
        """Threads that hold the sums of all slices and lanes in the end: (warps, 32)."""
        in_first: Flags = self.slice == 0
        return in_first & self.is_first_lane

    @cached_property
    def is_first_lane(self) -> Flags:
        """The first of the lanes that share out k, all of which hold the same sums: (warps, 32)."""
        is_first: Flags = self.thread % self.lanes_k == 0
        return is_first

    @cached_property
    def owner(self) -> Addresses:
        """The number of each thread's sums among those of its slice: (warps, 32)."""
        return self.thread % self.threads_per_slice // self.lanes_k

    def rows(self) -> Addresses:
        """Rows in the block's tile of each thread's elements: (TM, warps, 32)."""
        return self.first_m + _spread(self.config.tm, self.chunk_m, self.lanes_m)

    def columns(self) -> Addresses:
        """Columns in the block's tile of each thread's elements: (TN, warps, 32)."""
        return self.first_n + _spread(self.config.tn, self.chunk_n, self.lanes_n)


def _spread(extent: int, chunk: int, lanes: int) -> Addresses:
    """How far each of a thread's elements lies from its first: chunks, those of all lanes between two."""
    i = np.arange(extent, dtype=np.int64)[:, None, None]
    return i // chunk * (lanes * chunk) + i % chunk

"""What the three kernels of kernels/reference.cu ask of memory: the first rungs of the ladder.

A block of 32 x 32 threads computes as many elements of C. They serve row-major single products (NN).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..facts.gemm import Gemm
from ..kernel import launch
from ..kernel.config import WARP, Config
from ..kernel.rungs import REFERENCE_TILE, ReferenceKernel
from .block_walk import BlockWalk
from .launch_counts import AccessKey, counted_rows
from .tile_shape import TileShape
from .warp_access import LINE, NOBODY, AccessCounts, Addresses, Flags, Kind, Space, WarpAccess

FILE = "reference.cu"
_TILE = REFERENCE_TILE


@dataclass(frozen=True)
class ReferenceTile:
    """A block of one of these kernels on a problem."""

    kernel: ReferenceKernel
    gemm: Gemm

    @property
    def has_tiles(self) -> bool:
        """Whether A and B come through shared memory."""
        return self.kernel.smem_bytes > 0

    @property
    def is_down(self) -> bool:
        """Whether a warp goes down a column of C, instead of along a row."""
        return self.kernel.entry == "sgemm_naive"

    @property
    def depth(self) -> int:
        """k of one step."""
        return _TILE if self.has_tiles else 1

    @property
    def walk(self) -> BlockWalk:
        """Blocks go row by row, as those of an instance with tiles of this size do."""
        alike = TileShape(replace(Config(), bm=_TILE, bn=_TILE, raster="n", group=1), self.gemm)
        spec, g = self.kernel.spec, self.gemm
        return BlockWalk(alike, spec, launch.plan(spec, g.m, g.n, g.k))

    @property
    def row(self) -> Addresses:
        """Row in the block's tile of each thread's element: (32 warps, 32 lanes)."""
        warp, lane = _square()
        return lane if self.is_down else warp

    @property
    def column(self) -> Addresses:
        warp, lane = _square()
        return warp if self.is_down else lane

    def step(
        self, base_a: int, base_b: int, left: tuple[int, int], depth: int
    ) -> list[tuple[WarpAccess, int]]:
        """A step of k, and how often each access of it occurs: of one k, or a tile of 32 k, `depth` of them
        there.

        A's and B's first elements of the step lie at these places; `left` rows and columns of C are inside.
        """
        g, (left_m, left_n) = self.gemm, left
        if not self.has_tiles:
            is_inside = (self.row < left_m) & (self.column < left_n)
            a = self._access("A", "global", "load", base_a + self.row * g.lda, is_inside)
            return [(a, 1), (self._access("B", "global", "load", base_b + self.column, is_inside), 1)]
        ty, tx = _square()
        is_in_a, is_in_b = (ty < left_m) & (tx < depth), (ty < depth) & (tx < left_n)
        everyone = np.ones_like(ty, dtype=bool)
        own, tile_b = ty * _TILE + tx, _TILE * _TILE
        return [
            (self._access("A", "global", "load", base_a + ty * g.lda + tx, is_in_a), 1),
            (self._access("B", "global", "load", base_b + ty * g.ldb + tx, is_in_b), 1),
            (self._access("A", "shared", "store", own, everyone), 1),
            (self._access("B", "shared", "store", tile_b + own, everyone), 1),
            (self._access("A", "shared", "load", ty * _TILE, everyone), _TILE),
            (self._access("B", "shared", "load", tile_b + tx, everyone), _TILE),
        ]

    def stores(self, base: int, left: tuple[int, int]) -> WarpAccess:
        """The block's tile to C."""
        is_inside = (self.row < left[0]) & (self.column < left[1])
        at = base + self.row * self.gemm.ldc + self.column
        return self._access("C", "global", "store", at, is_inside)

    def _access(self, what: str, space: Space, kind: Kind, at: Addresses, is_there: Flags) -> WarpAccess:
        return WarpAccess(self.kernel.entry, FILE, what, space, kind, 1, np.where(is_there, at, NOBODY))


def _square() -> tuple[Addresses, Addresses]:
    """Warp and lane of each thread of a block: (32, 32) each."""
    thread = np.arange(_TILE * _TILE, dtype=np.int64).reshape(-1, WARP)
    return thread // _TILE, thread % _TILE


def count_reference(kernel: ReferenceKernel, gemm: Gemm) -> dict[AccessKey, AccessCounts]:
    """What a launch of such a kernel asks of memory, with beta = 0."""
    found: dict[AccessKey, AccessCounts] = {}
    for access, times in _accesses(ReferenceTile(kernel, gemm)):
        counts = access.counts(times)
        if counts.accesses:
            key = AccessKey(access.kernel, access.where, access.what, access.space, access.kind)
            found[key] = found.get(key, AccessCounts()) + counts
    return found


def _accesses(tile: ReferenceTile) -> Iterator[tuple[WarpAccess, int]]:
    g = tile.gemm
    origin_m, origin_n = (np.arange(0, extent, _TILE, dtype=np.int64) for extent in (g.m, g.n))
    m, n = (axis.reshape(-1) for axis in np.meshgrid(origin_m, origin_n, indexing="ij"))
    left = np.stack([np.minimum(g.m - m, _TILE), np.minimum(g.n - n, _TILE)], axis=1)
    rows = np.column_stack([(m * g.ldc + n) % LINE, left])
    for (base, *inside), times in counted_rows(rows):
        yield tile.stores(base, (inside[0], inside[1])), times
    depth = tile.depth
    k = np.arange(0, g.k, depth, dtype=np.int64)
    steps = counted_rows(np.column_stack([k % LINE, (k * g.ldb) % LINE, np.minimum(depth, g.k - k)]))
    blocks = counted_rows(np.column_stack([(m * g.lda) % LINE, n % LINE, left]))
    for (row, column, *inside), num_blocks in blocks:
        for (k_a, k_b, inside_k), num_steps in steps:
            for access, often in tile.step(row + k_a, k_b + column, (inside[0], inside[1]), inside_k):
                yield access, often * num_blocks * num_steps

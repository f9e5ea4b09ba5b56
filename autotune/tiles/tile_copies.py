"""Which thread copies what of an operand's tile, from where to where: kernels/tile_copy.cuh, piece by piece.

As stored, a tile has rows of neighbouring floats. A K-major operand has its rows along m (or n) and its
columns along k, any other the reverse. In shared memory all lie by k, then m (or n).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ..kernel.config import WARP
from .tile_shape import TileShape
from .warp_access import NOBODY, Addresses, Flags, WarpAccess

Operand = Literal["A", "B"]
FILE = "tile_copy.cuh"
LEAST_SHARE = 8  # MIN_ROW_SHARE of tile_copy.cuh


@dataclass(frozen=True)
class TileCopy:
    """The copies of one operand's tile: `rows` x `cols` as stored, `vec` floats in a piece."""

    operand: Operand
    rows: int
    cols: int
    vec: int
    is_k_major: bool
    has_edges: bool
    shared_row: int
    first_shared: int
    is_async: bool
    threads: int

    @property
    def vecs(self) -> int:
        """Of a row."""
        return self.cols // self.vec

    @cached_property
    def row_threads(self) -> int:
        """Neighbouring threads that take neighbouring vectors of a row."""
        share = self.threads // self.rows
        is_one_row = (
            not self.is_k_major
            and share >= LEAST_SHARE
            and self.threads % self.rows == 0
            and self.vecs % share == 0
        )
        return share if is_one_row else min(self.vecs, self.threads)

    @property
    def row_step(self) -> int:
        return self.threads // self.row_threads

    @property
    def row_steps(self) -> int:
        return -(-self.rows // self.row_step)

    @property
    def col_step(self) -> int:
        return self.row_threads * self.vec

    @property
    def col_steps(self) -> int:
        return -(-self.vecs // self.row_threads)

    @property
    def pieces(self) -> int:
        """Vectors per thread."""
        return self.row_steps * self.col_steps

    @cached_property
    def row(self) -> Addresses:
        """Row of each piece of each thread, NOBODY where the thread has none: (pieces, warps, 32)."""
        return np.where(self._owns, self._row, NOBODY)

    @cached_property
    def col(self) -> Addresses:
        """First column of each piece of each thread, NOBODY where it has none: (pieces, warps, 32)."""
        return np.where(self._owns, self._col, NOBODY)

    @cached_property
    def _thread(self) -> Addresses:
        return np.arange(self.threads, dtype=np.int64).reshape(1, -1, WARP)

    @cached_property
    def _piece(self) -> Addresses:
        return np.arange(self.pieces, dtype=np.int64).reshape(-1, 1, 1)

    @cached_property
    def _row(self) -> Addresses:
        return self._thread // self.row_threads + self._piece // self.col_steps * self.row_step

    @cached_property
    def _col(self) -> Addresses:
        return self._thread % self.row_threads * self.vec + self._piece % self.col_steps * self.col_step

    @cached_property
    def _owns(self) -> Flags:
        is_worker = self._thread < self.row_step * self.row_threads
        return is_worker & (self._row < self.rows) & (self._col < self.cols)

    @property
    def shared(self) -> Addresses:
        """Where the first float of each piece goes in a stage: (pieces, warps, 32)."""
        k, across = (self.col, self.row) if self.is_k_major else (self.row, self.col)
        return np.where(self._owns, self.first_shared + k * self.shared_row + across, NOBODY)

    def accesses(self, base: int, ld: int, left: int, depth: int, *, is_first: bool) -> list[WarpAccess]:
        """What the copy of one tile asks of memory.

        The tile's first float lies at `base`, rows `ld` floats apart. `left` rows (K-major) or columns of it
        lie in the matrix. The first tile of a block is `depth` deep and has zeros behind, which are not read.
        """
        k, across = (self.col, self.row) if self.is_k_major else (self.row, self.col)
        is_read = self._owns & (k < depth)
        if self.has_edges:
            is_read = is_read & (across < left)
        at = np.where(is_read, base + self._row * ld + self._col, NOBODY)
        kind: Literal["copy", "load"] = "copy" if self.is_async else "load"
        loads = WarpAccess("sgemm", FILE, self.operand, "global", kind, self.vec, _by_row(at))
        return [loads, self._stores(is_read if not is_first else self._owns)]

    def _stores(self, is_copied: Flags) -> WarpAccess:
        """Asynchronous copies write what they were asked for; registers are stored whatever they hold."""
        if self.is_async:
            at = np.where(is_copied, self.shared, NOBODY)
            return WarpAccess("sgemm", FILE, self.operand, "shared", "copy", self.vec, _by_row(at))
        if not self.is_k_major:
            return WarpAccess("sgemm", FILE, self.operand, "shared", "store", self.vec, _by_row(self.shared))
        element = np.arange(self.vec, dtype=np.int64).reshape(-1, 1, 1, 1) * self.shared_row
        at = np.where(self.shared == NOBODY, NOBODY, self.shared + element)
        return WarpAccess("sgemm", FILE, self.operand, "shared", "store", 1, _by_row(at))


def _by_row(at: Addresses) -> Addresses:
    return at.reshape(-1, WARP)


def copy_of(shape: TileShape, operand: Operand) -> TileCopy:
    """How the tile of A or of B is copied."""
    c = shape.config
    if operand == "A":
        extent, vec, path, is_k_major = c.bm, c.vec_a, c.copy_a, shape.is_k_major_a
        is_packed, row, first = c.pack_a, shape.row_a, 0
    else:
        extent, vec, path, is_k_major = c.bn, c.vec_b, c.copy_b, shape.is_k_major_b
        is_packed, row, first = c.pack_b, shape.row_b, shape.stage_a
    rows, cols = (extent, c.bk) if is_k_major else (c.bk, extent)
    has_edges = shape.is_predicated and not is_packed
    return TileCopy(
        operand, rows, cols, vec, is_k_major, has_edges, row, first, path == "async", shape.threads
    )

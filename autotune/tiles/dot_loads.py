"""What lanes that share out k load, straight to registers: kernels/dot_products.cuh."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kernel.config import WARP
from .tile_copies import Operand
from .tile_shape import TileShape
from .warp_access import NOBODY, Addresses, WarpAccess


@dataclass(frozen=True)
class DotLines:
    """Rows of A, or columns of B, that a block multiplies."""

    shape: TileShape
    operand: Operand

    @property
    def is_k_major(self) -> bool:
        return self.shape.is_k_major_a if self.operand == "A" else self.shape.is_k_major_b

    @property
    def has_edges(self) -> bool:
        c = self.shape.config
        return self.shape.is_predicated and not (c.pack_a if self.operand == "A" else c.pack_b)

    @property
    def vec(self) -> int:
        """Floats of one load."""
        c = self.shape.config
        return (c.vec_a if self.operand == "A" else c.vec_b) if self.is_k_major else 1

    def _first_line(self) -> Addresses:
        """First line of each thread, and so of its warp: (1, warps, 32)."""
        own = self.shape.first_m if self.operand == "A" else self.shape.first_n
        return own.reshape(1, -1, WARP)

    def accesses(self, base: int, ld: int, left: int, depth: int) -> WarpAccess:
        """A step of the main loop, `depth` deep: the first line's first float lies at `base`, lines (K-major)
        or steps of k are `ld` apart, and `left` lines are in the matrix. Lines beyond repeat the last."""
        s, c = self.shape, self.shape.config
        dot_vec = dot_vec_of(s)
        num_lines = c.tm if self.operand == "A" else c.tn
        line = self._first_line() + np.arange(num_lines, dtype=np.int64).reshape(-1, 1, 1)
        if self.has_edges:
            line = np.minimum(line, left - 1)
        first_k = (s.slice * s.slice_bk * s.lanes_k + s.thread % s.lanes_k * dot_vec).reshape(1, 1, -1, WARP)
        u = np.arange(max(s.slice_bk // dot_vec, 1), dtype=np.int64).reshape(-1, 1, 1, 1)
        k = first_k + u * s.lanes_k * dot_vec
        part = np.arange(0, dot_vec, self.vec, dtype=np.int64).reshape(-1, 1, 1, 1, 1)
        at = base + (line * ld + k + part if self.is_k_major else line + (k + part) * ld)
        at = np.where(np.broadcast_to(k < depth, at.shape), at, NOBODY).reshape(-1, WARP)
        return WarpAccess("sgemm", "dot_products.cuh", self.operand, "global", "load", self.vec, at)


def dot_vec_of(shape: TileShape) -> int:
    """Neighbours of k that a lane takes at a time."""
    c = shape.config
    return max(c.vec_a if shape.is_k_major_a else 1, c.vec_b if shape.is_k_major_b else 1)

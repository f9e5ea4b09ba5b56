"""What a block asks of its shared memory: fragments, flushed sums, the sums of slices, staged rows.

None of it depends on where the block's tile lies, but for rows beyond the edge of C.
"""

from __future__ import annotations

import numpy as np

from ..kernel.config import WARP
from .tile_shape import TileShape
from .warp_access import NOBODY, Addresses, Kind, WarpAccess


def _access(where: str, what: str, kind: Kind, vec: int, at: Addresses) -> WarpAccess:
    return WarpAccess("sgemm", where, what, "shared", kind, vec, at.reshape(-1, WARP))


def fragments(shape: TileShape) -> list[WarpAccess]:
    """What every thread reads of A's and B's tile for the first k of its slice (kernels/fragments.cuh).

    A later k lies a row further for all lanes alike: the same wavefronts.
    """
    c = shape.config
    first_a = shape.slice * shape.slice_bk * shape.row_a + shape.first_m
    first_b = shape.stage_a + shape.slice * shape.slice_bk * shape.row_b + shape.first_n
    chunks_a = np.arange(0, c.tm, shape.chunk_m).reshape(-1, 1, 1) * shape.lanes_m
    chunks_b = np.arange(0, c.tn, shape.chunk_n).reshape(-1, 1, 1) * shape.lanes_n
    return [
        _access("fragments.cuh", "A", "load", shape.chunk_m, first_a + chunks_a),
        _access("fragments.cuh", "B", "load", shape.chunk_n, first_b + chunks_b),
    ]


def flushed(shape: TileShape, kind: Kind) -> WarpAccess:
    """One pass over every thread's flushed sums (kernels/flush.cuh)."""
    c = shape.config
    num_sums = c.tm * c.tn
    vec = 4 if num_sums % 4 == 0 else 2 if num_sums % 2 == 0 else 1
    element = np.arange(0, num_sums, vec, dtype=np.int64).reshape(-1, 1, 1)
    at = c.stages * shape.stage_floats + shape.thread * vec + element * shape.threads
    return _access("flush.cuh", "sums", kind, vec, at)


def slices(shape: TileShape, kind: Kind) -> WarpAccess:
    """One slice's sums, as slice 1 stores them or as slice 0 loads them (kernels/reduce_slices.cuh)."""
    element = np.arange(shape.config.tm * shape.config.tn, dtype=np.int64).reshape(-1, 1, 1)
    own = shape.is_first_lane & (shape.slice == (1 if kind == "store" else 0))
    at = np.where(own, shape.owner + element * shape.owners, NOBODY)
    return _access("reduce_slices.cuh", "sums", kind, 1, at)


def rows_written(shape: TileShape) -> WarpAccess:
    """One round of rows on their way to C, as threads write them (kernels/staged_rows.cuh)."""
    c = shape.config
    group = shape.first_m // c.wm * shape.lanes_m + shape.first_m % c.wm // shape.chunk_m
    own = group * shape.staged_pitch + shape.first_n
    i = np.arange(shape.staged_round, dtype=np.int64).reshape(-1, 1, 1, 1)
    j = np.arange(0, c.tn, shape.chunk_n, dtype=np.int64).reshape(1, -1, 1, 1)
    at = own + i * (shape.row_groups * shape.staged_pitch) + j * shape.lanes_n
    return _access("staged_rows.cuh", "sums", "store", shape.chunk_n, np.where(shape.goes_on, at, NOBODY))

"""How a block's sums leave it: to C, straight or by staged rows, or to the workspace for other blocks to add.

A block's tile begins at element `base` of its operand, where `left_m` x `left_n` elements of it lie in the
matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kernel.config import WARP
from .shared_sums import rows_written
from .tile_shape import TileShape
from .warp_access import NOBODY, Addresses, Flags, Kind, WarpAccess


@dataclass(frozen=True, order=True)
class TilePlace:
    """Where a tile of C lies: its first element, the leading dimension, how much of it is in the matrix."""

    base: int
    ld: int
    left_m: int
    left_n: int


def _of_c(kind: Kind, vec: int, at: Addresses) -> WarpAccess:
    return WarpAccess("sgemm", "epilogue.cuh", "C", "global", kind, vec, at.reshape(-1, WARP))


def _stored(vec: int, at: Addresses, *, reads_c: bool) -> list[WarpAccess]:
    return [*([_of_c("load", vec, at)] if reads_c else []), _of_c("store", vec, at)]


def stored_straight(shape: TileShape, place: TilePlace, *, reads_c: bool) -> list[WarpAccess]:
    """Every thread's sums to C, a row of its own after the other (kernels/epilogue.cuh, store_tile)."""
    c = shape.config
    row, column = shape.rows()[:, None], shape.columns()[None, :: c.vec_c]
    is_inside = (row < place.left_m) & (column < place.left_n) & shape.goes_on
    return _stored(c.vec_c, _if(is_inside, place.base + row * place.ld + column), reads_c=reads_c)


def plane(shape: TileShape, base: int, ld: int) -> WarpAccess:
    """Every thread's sums to its split's plane of the workspace (kernels/reduce_two_pass.cuh)."""
    row, column = shape.rows()[:, None], shape.columns()[None, :: shape.chunk_n]
    at = _if(np.broadcast_to(shape.goes_on, (row + column).shape), base + row * ld + column)
    return WarpAccess(
        "sgemm",
        "reduce_two_pass.cuh",
        "workspace",
        "global",
        "store",
        shape.chunk_n,
        at.reshape(-1, WARP),
    )


def partial_sums(shape: TileShape, base: int, kind: Kind) -> WarpAccess:
    """One split's sums of a tile in the workspace, by element and thread (kernels/reduce_last_block.cuh)."""
    element = np.arange(shape.config.tm * shape.config.tn, dtype=np.int64).reshape(-1, 1, 1)
    at = _if(shape.goes_on, base + shape.owner + element * shape.owners)
    where = "reduce_last_block.cuh"
    return WarpAccess("sgemm", where, "workspace", "global", kind, 1, at.reshape(-1, WARP))


def stored_by_rows(shape: TileShape, place: TilePlace, *, reads_c: bool) -> list[WarpAccess]:
    """The block's tile to C by rows, a warp side by side (kernels/epilogue.cuh, store_staged)."""
    rounds = range(0, shape.config.tm, shape.staged_round)
    made = [rows_written(shape)] * len(rounds)
    for first in rounds:
        walk = _RowWalk.of(shape, first, rank=0, blocks=1)
        is_inside = walk.is_inside(place)
        read = _if(is_inside, walk.shared)
        made.append(WarpAccess("sgemm", "epilogue.cuh", "sums", "shared", "load", shape.config.vec_c, read))
        made += _stored(shape.config.vec_c, _if(is_inside, walk.in_c(place)), reads_c=reads_c)
    return made


def stored_by_cluster(shape: TileShape, place: TilePlace, rank: int, *, reads_c: bool) -> list[WarpAccess]:
    """One block's share of a tile that a cluster adds and stores (kernels/reduce_cluster.cuh)."""
    blocks = shape.config.split_k
    rounds = range(0, shape.config.tm, shape.staged_round)
    made = [rows_written(shape)] * len(rounds)
    for first in rounds:
        walk = _RowWalk.of(shape, first, rank, blocks)
        read = _if(walk.is_row, walk.shared)
        vec = shape.config.vec_c
        made += [WarpAccess("sgemm", "reduce_cluster.cuh", "sums", "shared", "load", vec, read)] * blocks
        made += _stored(vec, _if(walk.is_inside(place), walk.in_c(place)), reads_c=reads_c)
    return made


def _if(is_there: Flags, at: Addresses) -> Addresses:
    return np.where(is_there, at, NOBODY)


@dataclass(frozen=True)
class _RowWalk:
    """How threads go over the rows of a round, a vector at each step; all are (instructions, 32)."""

    is_row: Flags
    shared: Addresses
    row: Addresses  # in the block's tile of C
    column: Addresses

    @classmethod
    def of(cls, shape: TileShape, first: int, rank: int, blocks: int) -> _RowWalk:
        """Round `first` as the block of this rank in a cluster of `blocks` walks it."""
        c = shape.config
        count = shape.staged_round * shape.row_groups
        lanes = _power_of_two_in(c.bn // c.vec_c, WARP)  # side by side in a row
        width, at_once = lanes * c.vec_c, shape.threads // lanes
        step = np.arange(0, count, at_once * blocks, dtype=np.int64).reshape(-1, 1, 1, 1)
        at = shape.thread // lanes + rank * at_once + step
        column = shape.thread % lanes * c.vec_c + np.arange(0, c.bn, width).reshape(1, -1, 1, 1)
        at, column = np.broadcast_arrays(at, column)
        at, column = at.reshape(-1, WARP), column.reshape(-1, WARP)
        shared = at * shape.staged_pitch + column
        return cls(at < count, shared, _row_of_tile(shape, first, at), column)

    def is_inside(self, place: TilePlace) -> Flags:
        return self.is_row & (self.row < place.left_m) & (self.column < place.left_n)

    def in_c(self, place: TilePlace) -> Addresses:
        return place.base + self.row * place.ld + self.column


def _row_of_tile(shape: TileShape, first: int, at: Addresses) -> Addresses:
    """The row of the tile that row `at` of a round is: lanes along m wrote one row each, then their next."""
    i, group = first + at // shape.row_groups, at % shape.row_groups
    chunk, lanes = shape.chunk_m, shape.lanes_m
    return group // lanes * shape.config.wm + group % lanes * chunk + i // chunk * (lanes * chunk) + i % chunk


def _power_of_two_in(count: int, most: int) -> int:
    """The largest power of two, `most` at most, that divides `count`."""
    return min(count & -count, most)

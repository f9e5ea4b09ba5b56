"""What a whole launch asks of memory: every access of every block, counted without walking through each.

Two tiles whose first elements lie alike within a line, with as much of them in the matrix, ask for the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..kernel.config import Config
from . import shared_sums, tile_output
from .block_walk import BlockWalk, KShare
from .dot_loads import DotLines
from .other_kernels import packed, reduced
from .tile_copies import Operand, copy_of
from .tile_output import TilePlace
from .tile_shape import TileShape
from .warp_access import LINE, AccessCounts, Addresses, WarpAccess

Counted = tuple[WarpAccess, int]


class AccessKey(NamedTuple):
    """Which accesses are counted together."""

    kernel: str
    where: str
    what: str
    space: str
    kind: str


def count(
    config: Config, gemm: Gemm, limits: DeviceLimits, *, reads_c: bool = False
) -> dict[AccessKey, AccessCounts]:
    """What all kernels of one call ask of memory. `reads_c`: beta is not zero.

    Left out are the counters and tickets of last_block and last_wave, which one thread of a block touches.
    """
    found: dict[AccessKey, AccessCounts] = {}
    for access, times in accesses(config, gemm, limits, reads_c=reads_c):
        counts = access.counts(times)
        if counts.accesses:
            key = AccessKey(access.kernel, access.where, access.what, access.space, access.kind)
            found[key] = found.get(key, AccessCounts()) + counts
    return found


def accesses(config: Config, gemm: Gemm, limits: DeviceLimits, *, reads_c: bool = False) -> Iterator[Counted]:
    """Accesses of all kernels of one call, and how often each occurs."""
    shape = TileShape(config, gemm)
    walk = BlockWalk.of(shape, limits)
    for pack in walk.grid.packs:
        yield from packed(pack, gemm.k, gemm.lda if pack.is_a else gemm.ldb)
    for tiles, splits in walk.tiles_by_splits():
        shares = walk.shares(splits)
        for share in shares:
            if share.steps:
                yield from _main_loop(walk, tiles, share)
        yield from _slices(shape, len(tiles) * splits)
        yield from _output(walk, tiles, splits, reads_c=reads_c)
    if config.reduction == "two_pass":
        yield from reduced(walk.grid, gemm.m, gemm.n, reads_c=reads_c)


class OperandPlace(NamedTuple):
    """An operand as the product reads it."""

    operand: Operand
    ld: int
    stride: int  # from product to product
    extent: int  # along m or n
    tile: int
    column: int  # of BlockWalk.tiles
    is_k_major: bool


def operand_places(walk: BlockWalk) -> tuple[OperandPlace, OperandPlace]:
    """A and B, or their packed copies."""
    s, g, grid = walk.shape, walk.shape.gemm, walk.grid
    c = s.config
    return (
        OperandPlace(
            "A", grid.padded_m if c.pack_a else g.lda, grid.strides[0], g.m, c.bm, 1, s.is_k_major_a
        ),
        OperandPlace(
            "B", grid.padded_n if c.pack_b else g.ldb, grid.strides[1], g.n, c.bn, 2, s.is_k_major_b
        ),
    )


def _main_loop(walk: BlockWalk, tiles: Addresses, share: KShare) -> Iterator[Counted]:
    shape = walk.shape
    for place in operand_places(walk):
        yield from _operand(shape, place, tiles, share)
    if shape.lanes_k > 1:
        return
    c, num_blocks = shape.config, len(tiles)
    reads = share.steps * shape.slice_bk + (c.frag_buffers - 1)  # with two buffers, one beyond the last
    for access in shared_sums.fragments(shape):
        yield access, num_blocks * reads
    if c.flush_k:
        flushes = -(-share.steps // (c.flush_k // c.bk)) - 1
        yield shared_sums.flushed(shape, "store"), num_blocks * (1 + flushes)
        yield shared_sums.flushed(shape, "load"), num_blocks * (1 + flushes)


def _operand(shape: TileShape, place: OperandPlace, tiles: Addresses, share: KShare) -> Iterator[Counted]:
    """The copies (loads, where lanes share out k) of an operand's tiles, over all steps of all blocks."""
    own, num_blocks = np.unique(tiles[:, [0, place.column]], axis=0, return_counts=True)
    origin = own[:, 1] * place.tile
    step = np.arange(share.steps, dtype=np.int64)
    k = share.begin + np.where(step == 0, 0, share.first_depth + (step - 1) * shape.step_k)
    at = origin[:, None] * place.ld + k if place.is_k_major else origin[:, None] + k * place.ld
    lies = (own[:, :1] * place.stride + at) % LINE
    left = np.broadcast_to(np.minimum(place.extent - origin, place.tile)[:, None], lies.shape)
    is_first = np.broadcast_to(step == 0, lies.shape)
    keys = np.stack([lies, left, is_first], axis=2).reshape(-1, 3)
    times = np.repeat(num_blocks, share.steps)
    for (base, inside, first), number in counted_rows(keys, times):
        depth = share.first_depth if first else shape.step_k
        if shape.lanes_k > 1:
            yield DotLines(shape, place.operand).accesses(base, place.ld, inside, depth), number
            continue
        copy = copy_of(shape, place.operand)
        for access in copy.accesses(base, place.ld, inside, depth, is_first=bool(first)):
            yield access, number


def counted_rows(keys: Addresses, times: Addresses | None = None) -> list[tuple[tuple[int, ...], int]]:
    """Different rows, and how often each occurs, `times` over."""
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    weights = np.ones(len(keys), np.int64) if times is None else times
    totals = np.zeros(len(unique), np.int64)
    np.add.at(totals, inverse.reshape(-1), weights)
    return [(tuple(row), total) for row, total in zip(unique.tolist(), totals.tolist(), strict=True)]


def _slices(shape: TileShape, num_blocks: int) -> Iterator[Counted]:
    others = shape.config.slice_k - 1
    if others:
        yield shared_sums.slices(shape, "store"), num_blocks * others
        yield shared_sums.slices(shape, "load"), num_blocks * others


def _output(walk: BlockWalk, tiles: Addresses, splits: int, *, reads_c: bool) -> Iterator[Counted]:
    """From sums to C, or to where others add them."""
    shape, reduction = walk.shape, walk.spec.reduction
    if reduction == "two_pass":
        yield from _planes(walk, tiles, splits)
        return
    if reduction in ("last_block", "last_wave") and splits > 1:
        yield from _partial_sums(walk, len(tiles), splits)
    for place, number in places_in_c(walk, tiles):
        if reduction == "cluster":
            for rank in range(splits):
                made = tile_output.stored_by_cluster(shape, place, rank, reads_c=reads_c)
                yield from ((access, number) for access in made)
            continue
        for access in stored(walk, place, reads_c=reads_c):
            yield access, number


def stored(walk: BlockWalk, place: TilePlace, *, reads_c: bool) -> list[WarpAccess]:
    """How a block that has the sums of all splits stores its tile of C."""
    way = tile_output.stored_by_rows if walk.has_staged_rows else tile_output.stored_straight
    return way(walk.shape, place, reads_c=reads_c)


def places_in_c(walk: BlockWalk, tiles: Addresses) -> list[tuple[TilePlace, int]]:
    """Where these tiles lie in C, by what differs: and how many lie so."""
    g, c = walk.shape.gemm, walk.shape.config
    origin_m, origin_n = tiles[:, 1] * c.bm, tiles[:, 2] * c.bn
    lies = (tiles[:, 0] * walk.grid.strides[2] + origin_m * g.ldc + origin_n) % LINE
    left = np.minimum(g.m - origin_m, c.bm), np.minimum(g.n - origin_n, c.bn)
    keys = np.stack([lies, *left], axis=1)
    return [(TilePlace(base, g.ldc, m, n), number) for (base, m, n), number in counted_rows(keys)]


def _planes(walk: BlockWalk, tiles: Addresses, splits: int) -> Iterator[Counted]:
    grid, c = walk.grid, walk.shape.config
    number = (tiles[:, :1] * splits + np.arange(splits)) * (grid.padded_m * grid.padded_n)
    at = number + (tiles[:, 1] * c.bm * grid.padded_n + tiles[:, 2] * c.bn)[:, None]
    for (base,), times in counted_rows((at % LINE).reshape(-1, 1)):
        yield tile_output.plane(walk.shape, base, grid.padded_n), times


def _partial_sums(walk: BlockWalk, num_tiles: int, splits: int) -> Iterator[Counted]:
    area = walk.shape.config.bm * walk.shape.config.bn
    tile, split = np.arange(num_tiles, dtype=np.int64)[:, None], np.arange(splits, dtype=np.int64)
    at = (tile + split * num_tiles) * area
    for (base,), times in counted_rows((at % LINE).reshape(-1, 1)):
        yield tile_output.partial_sums(walk.shape, base, "store"), times
        yield tile_output.partial_sums(walk.shape, base, "load"), times

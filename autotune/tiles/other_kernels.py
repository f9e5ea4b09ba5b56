"""What the kernels around the product ask of memory: kernels/pack.cuh, and the second pass of two_pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernel.config import WARP
from ..kernel.launch import PACK_THREADS, PACK_TILE, REDUCE_BITS, Grid, Pack
from .warp_access import LINE, NOBODY, Addresses, Kind, WarpAccess

_PITCH = PACK_TILE + 1
_SOME = 1 << 18  # elements of C whose addresses are made at a time


def packed(pack: Pack, k: int, ld: int) -> Iterator[tuple[WarpAccess, int]]:
    """Every access of a launch of sgemm_pack, and how often it occurs."""
    tiles_i, tiles_p = -(-pack.padded // PACK_TILE), -(-k // PACK_TILE)
    places: dict[tuple[int, int, int, int, int], int] = {}
    for product in range(pack.products):
        for i in range(0, tiles_i * PACK_TILE, PACK_TILE):
            for p in range(0, tiles_p * PACK_TILE, PACK_TILE):
                at = i * ld + p if pack.is_k_major else p * ld + i
                lies = (
                    (product * pack.stride + at) % LINE,
                    (product * k * pack.padded + p * pack.padded + i) % LINE,
                )
                left = min(PACK_TILE, pack.extent - i), min(PACK_TILE, pack.padded - i), min(PACK_TILE, k - p)
                places[*lies, *left] = places.get((*lies, *left), 0) + 1
    for (base, to, left_i, left_padded, left_p), times in places.items():
        for access in _packed_tile(pack, ld, base, to, left_i, left_padded, left_p):
            yield access, times


def _packed_tile(
    pack: Pack, ld: int, base: int, to: int, left_i: int, left_padded: int, left_p: int
) -> list[WarpAccess]:
    """A block's tile: loads along what is contiguous, through shared memory, stores along i."""
    thread = np.arange(PACK_THREADS, dtype=np.int64).reshape(1, -1, WARP)
    step = PACK_THREADS // PACK_TILE
    along = thread // PACK_TILE + step * np.arange(PACK_TILE // step, dtype=np.int64).reshape(-1, 1, 1)
    column = np.broadcast_to(thread % PACK_TILE, along.shape)
    i, p = (along, column) if pack.is_k_major else (column, along)
    at = base + (i * ld + p if pack.is_k_major else p * ld + i)
    stored = (column < left_padded) & (along < left_p)
    tile = along * _PITCH + column

    def access(space: str, kind: Kind, at: Addresses) -> WarpAccess:
        return WarpAccess(
            "sgemm_pack",
            "pack.cuh",
            "A" if pack.is_a else "B",
            "global" if space == "global" else "shared",
            kind,
            1,
            at.reshape(-1, WARP),
        )

    return [
        access("global", "load", np.where((i < left_i) & (p < left_p), at, NOBODY)),
        access("shared", "store", column * _PITCH + along if pack.is_k_major else tile),
        access("shared", "load", np.where(stored, tile, NOBODY)),
        access("global", "store", np.where(stored, to + along * pack.padded + column, NOBODY)),
    ]


def reduced(grid: Grid, m: int, n: int, *, reads_c: bool) -> Iterator[tuple[WarpAccess, int]]:
    """Every access of a launch of sgemm_reduce, and how often it occurs."""
    for product in range(grid.products):
        for some in range(0, m * n, _SOME):
            own = np.arange(some, min(some + _SOME, _rounded(m * n, grid)), dtype=np.int64)
            yield from _reduced_elements(grid, product, own, (m, n), reads_c=reads_c)
    yield from _group_sums(grid)


def _rounded(count: int, grid: Grid) -> int:
    """Elements up to the end of the last block, whose threads come to nothing beyond the edge of C."""
    per_block = 1 << grid.reduce_group_bits
    return -(-count // per_block) * per_block


def _reduced_elements(
    grid: Grid, product: int, own: Addresses, extents: tuple[int, int], *, reads_c: bool
) -> Iterator[tuple[WarpAccess, int]]:
    m, n = extents
    is_inside = own < m * n
    row, column = own // n, own % n
    plane = grid.padded_m * grid.padded_n
    lies, counts = np.unique(
        (product * grid.split_k + np.arange(grid.split_k, dtype=np.int64)) * plane % LINE, return_counts=True
    )
    for base, times in zip(lies.tolist(), counts.tolist(), strict=True):
        at = np.where(is_inside, base + row * grid.padded_n + column, NOBODY).reshape(-1, WARP)
        yield WarpAccess("sgemm_reduce", "reduce_two_pass.cuh", "workspace", "global", "load", 1, at), times
    at = np.where(is_inside, product * grid.strides[2] + row * n + column, NOBODY).reshape(-1, WARP)
    kinds: tuple[Kind, ...] = ("load", "store") if reads_c else ("store",)
    for kind in kinds:
        yield WarpAccess("sgemm_reduce", "epilogue.cuh", "C", "global", kind, 1, at), 1


def _group_sums(grid: Grid) -> Iterator[tuple[WarpAccess, int]]:
    """Groups of threads that share out the splits hand their sums to the first, through shared memory."""
    groups = 1 << REDUCE_BITS - grid.reduce_group_bits
    if groups == 1:
        return
    thread = np.arange(1 << REDUCE_BITS, dtype=np.int64).reshape(-1, WARP)
    first = thread[: max(1, len(thread) // groups)]
    yield (
        WarpAccess("sgemm_reduce", "reduce_two_pass.cuh", "sums", "shared", "store", 1, thread),
        grid.reduce_blocks,
    )
    yield (
        WarpAccess("sgemm_reduce", "reduce_two_pass.cuh", "sums", "shared", "load", 1, first),
        grid.reduce_blocks * (groups - 1),
    )

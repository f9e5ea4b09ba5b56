"""Many launches at once: what kernels have to do for shapes, counted as `kernel.launch.plan` counts one.

Every number of a kernel is an array, every extent of a shape is one or a plain number: they broadcast.
One kernel on many shapes, many kernels on one, and both crosswise are the same few lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..gemm import FLOAT_BYTES, Gemm
from ..kernel.launch import MAX_GRID_X, NARROW_LD, PACK_ALIGNMENT, WORKSPACE_LIMIT, LaunchSpec

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]

_MANY_TILES = 1 << 40  # more than a grid holds, and few enough to count on with 64 bits


class Shapes(NamedTuple):
    """Products of one layout: extents and leading dimensions in elements, bases in bytes, as arrays or plain
    numbers."""

    m: Any
    n: Any
    k: Any
    trans_a: bool = False
    trans_b: bool = False
    lds: tuple[Any, Any, Any] | None = None  # None: packed
    addresses: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, gemm: Gemm) -> Shapes:
        """One product, packed."""
        return cls(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b)

    @property
    def num_bytes(self) -> Any:
        """Least traffic: A and B read once, C written once."""
        return FLOAT_BYTES * (1.0 * self.m * self.k + 1.0 * self.k * self.n + 1.0 * self.m * self.n)

    @property
    def neighbours(self) -> tuple[Any, Any, Any]:
        """How many elements of a row of A, B and C, as stored, the product takes."""
        return (self.m if self.trans_a else self.k, self.k if self.trans_b else self.n, self.n)


class Launches(NamedTuple):
    """Kernels of one layout: `launch.LaunchSpec`, an array per number, and the residency."""

    bm: Whole
    bn: Whole
    bk: Whole
    split_k: Whole
    wave: Whole
    vec_a: Whole
    vec_b: Whole
    vec_c: Whole
    blocks_per_sm: Whole
    is_exact: Flags
    is_wide: Flags
    packs_a: Flags
    packs_b: Flags
    overlaps: Flags
    is_two_pass: Flags
    is_last_block: Flags
    is_last_wave: Flags
    is_cluster: Flags

    @classmethod
    def of(cls, specs: Sequence[LaunchSpec], blocks_per_sm: Sequence[int]) -> Launches:
        """One launch per spec, with as many resident blocks per SM."""

        def whole(name: str) -> Whole:
            return np.array([getattr(spec, name) for spec in specs], np.int64)

        def flags(name: str) -> Flags:
            return np.array([getattr(spec, name) for spec in specs], bool)

        def reduces(name: str) -> Flags:
            return np.array([spec.reduction == name for spec in specs], bool)

        columns = (
            *map(whole, ("bm", "bn", "bk", "split_k", "wave", "vec_a", "vec_b", "vec_c")),
            np.array(blocks_per_sm, np.int64),
            flags("is_exact"),
            np.array([spec.variant.is_wide for spec in specs], bool),
            *map(flags, ("packs_a", "packs_b", "overlaps")),
            *map(reduces, ("two_pass", "last_block", "last_wave", "cluster")),
        )
        return cls._make(columns)

    def take(self, index: Any) -> Launches:
        """Those at these places, or in another arrangement: what an index of NumPy says."""
        return Launches._make(column[index] for column in self)

    @property
    def is_splitting(self) -> Flags:
        """Whether their number of splits is an argument."""
        return self.is_two_pass | self.is_last_block | self.is_last_wave


class Grids(NamedTuple):
    """What `launch.Grid` says of a launch that time depends on. Bytes are floats: they may exceed 64 bits."""

    tiles: Whole
    split_tiles: Whole
    sum_bytes: Floats
    pack_bytes: Floats
    num_launches: Whole  # beside that of `sgemm`


def ceil_div(a: Any, b: Any) -> Any:
    """a / b, rounded up."""
    return -(-a // b)


def grids(launches: Launches, shapes: Shapes) -> Grids:
    """The grid of each launch. m and n at least 1."""
    tiles_m, tiles_n = ceil_div(shapes.m, launches.bm), ceil_div(shapes.n, launches.bn)
    tiles = np.minimum(tiles_m * tiles_n, _MANY_TILES)
    split_tiles = tiles * (launches.is_two_pass | launches.is_last_block | launches.is_cluster)
    if launches.is_last_wave.any():
        split_tiles = np.where(launches.is_last_wave, tiles % np.maximum(launches.wave, 1), split_tiles)
    sums = (launches.split_k * launches.bm * launches.bn * ~launches.is_cluster) * (4.0 * split_tiles)
    num_launches = launches.is_two_pass.astype(np.int64)
    packed: Floats = np.zeros(1)
    if launches.packs_a.any() or launches.packs_b.any():
        padded_m, padded_n = tiles_m * launches.bm, tiles_n * launches.bn
        for packs, padded in ((launches.packs_a, padded_m), (launches.packs_b, padded_n)):
            granules = np.ceil(padded * (FLOAT_BYTES / PACK_ALIGNMENT * shapes.k))
            packed = packed + packs * PACK_ALIGNMENT * granules
            num_launches = num_launches + (packs & (shapes.k > 0))
    return Grids(tiles, split_tiles, sums, packed, num_launches)


def serves(launches: Launches, shapes: Shapes, grid: Grids) -> Flags:
    """Whether each launch may serve each shape (`launch.refusal`), and leaves no split without work."""
    m, n, k = shapes.m, shapes.n, shapes.k
    lds = shapes.lds or tuple(np.maximum(length, 1) for length in shapes.neighbours)
    may: Flags = (launches.split_k == 1) | (launches.split_k * launches.bk <= k)
    may &= ~launches.is_exact | ((m % launches.bm == 0) & (n % launches.bn == 0))
    may = may & (grid.tiles + grid.split_tiles * (launches.split_k - 1) * launches.is_last_wave <= MAX_GRID_X)
    is_packed = (launches.packs_a, launches.packs_b, np.zeros(1, bool))
    vectors = (launches.vec_a, launches.vec_b, launches.vec_c)
    for length, ld, address, vec, packed in zip(
        shapes.neighbours, lds, shapes.addresses, vectors, is_packed, strict=True
    ):
        is_aligned = (length | ld | (address // FLOAT_BYTES)) % vec == 0
        may &= packed | (is_aligned & ((ld < NARROW_LD) | launches.is_wide))
    of_results = (4.0 * m * n) * launches.split_k
    may &= launches.is_cluster | (np.minimum(of_results, grid.sum_bytes) <= WORKSPACE_LIMIT)
    return may & (grid.pack_bytes <= WORKSPACE_LIMIT)

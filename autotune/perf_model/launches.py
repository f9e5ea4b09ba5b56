"""Many launches at once: the work of kernels for shapes, counted as `kernel.launch.plan` counts one.

Every number of a kernel is an array, every extent of a shape is one or a plain number: they broadcast.
The same few lines serve one kernel on many shapes, many kernels on one, and many on many. Programs wait for a
choice among a few hundred launches, where each NumPy operation costs about the same: values that do not
depend on the shape are computed once, and unused terms are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..facts.gemm import FLOAT_BYTES, Gemm
from ..kernel.config import PARAMETER
from ..kernel.launch import (
    COUNTER_BYTES,
    MAX_GRID_X,
    MAX_GRID_Y,
    NARROW_LD,
    PACK_ALIGNMENT,
    WORKSPACE_LIMIT,
    LaunchSpec,
    num_shares,
    num_splits,
)
from .model_figures import Floats

Whole = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
Flags = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]

_NOT_PACKED: Floats = np.zeros(1)
_WIDEST = 4  # elements of the widest vectors
_MOST_SPLITS = max(v for v in PARAMETER["split_k"].values if isinstance(v, int))
_WIDEST_TILE = max(v for v in PARAMETER["bm"].values if isinstance(v, int))
_FEW_RESULTS = WORKSPACE_LIMIT // (FLOAT_BYTES * _MOST_SPLITS)  # no grid and no sums of these are too large


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
    rows: Any = None  # of each product of a batch, of which m is all rows; None: it is one product
    more_bytes: Any = 0.0  # that products of a batch read, beyond those of one with all rows
    own_a: Any = 1.0  # of the tiles along all rows, those whose A is packed: fewer where products share it
    own_b: Any = 1.0  # products that have a B of their own

    @classmethod
    def of(
        cls, gemm: Gemm, lds: tuple[int, int, int] | None = None, addresses: tuple[int, int, int] = (0, 0, 0)
    ) -> Shapes:
        """One product; without leading dimensions, packed."""
        return cls(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b, lds, addresses)

    @classmethod
    def in_batch(cls, gemm: Gemm, addresses: tuple[int, int, int] = (0, 0, 0)) -> Shapes:
        """A packed batch, as one product of all its rows."""
        rows = gemm.m * gemm.batch
        whole = cls(rows, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b, gemm.lds, addresses)
        own_a = 1 / gemm.batch if gemm.shares_a else 1.0
        own_b = 1.0 if gemm.shares_b else float(gemm.batch)
        more_bytes = gemm.num_bytes - whole.num_bytes
        return whole._replace(rows=gemm.m, more_bytes=more_bytes, own_a=own_a, own_b=own_b)

    def tiles_m(self, bm: Floats) -> Floats:
        """Tiles along all rows: those of a batch end with each product."""
        if self.rows is None:
            return ceil_div(self.m, bm)
        tiles: Floats = ceil_div(self.rows, bm) * (self.m // self.rows)
        return tiles

    @property
    def num_bytes(self) -> Any:
        """Least traffic: A and B read once, C written once."""
        of_one = 1.0 * self.m * self.k + 1.0 * self.k * self.n + 1.0 * self.m * self.n
        return FLOAT_BYTES * of_one + self.more_bytes

    @property
    def neighbours(self) -> tuple[Any, Any, Any]:
        """The number of elements of a row of A, B and C, as stored, in the product."""
        return (self.m if self.trans_a else self.k, self.k if self.trans_b else self.n, self.n)


@dataclass(frozen=True, eq=False)
class Launches:
    """Kernels of one layout: `launch.LaunchSpec`, an array per number, and the residency. Numbers to compute
    with are floats: they are exact up to 2^53, and NumPy divides them faster than whole ones."""

    bm: Floats
    bn: Floats
    bk: Floats
    split_k: Floats
    wave: Floats  # infinite but for last_wave
    vec_a: Whole
    vec_b: Whole
    vec_c: Whole
    blocks_per_sm: Floats
    is_exact: Flags
    is_wide: Flags
    packs_a: Flags
    packs_b: Flags
    overlaps: Flags
    is_two_pass: Flags
    is_last_block: Flags
    is_last_wave: Flags
    is_cluster: Flags
    max_workspace: Floats  # bytes; infinite without a limit
    max_k: Floats  # infinite without a limit
    chunk: Floats  # depth of a split; 0: their number is given
    chunk_wave: Floats  # blocks at most that share out chunks; 0: each has one, or there are none
    num_sms: Floats  # of the GPU, for those

    @classmethod
    def of(cls, specs: Sequence[LaunchSpec], blocks_per_sm: Sequence[int]) -> Launches:
        """One launch per spec, with as many resident blocks per SM."""

        def column(name: str, kind: Any = float) -> Any:
            return np.array([getattr(spec, name) for spec in specs], kind)

        def reduces(name: str) -> Flags:
            return np.array([spec.reduction == name for spec in specs], bool)

        columns = (
            *map(column, ("bm", "bn", "bk", "split_k")),
            np.where(reduces("last_wave"), np.maximum(column("wave"), 1), np.inf),
            *(column(name, np.int64) for name in ("vec_a", "vec_b", "vec_c")),
            np.array(blocks_per_sm, float),
            column("is_exact", bool),
            np.array([spec.variant.is_wide for spec in specs], bool),
            *(column(name, bool) for name in ("packs_a", "packs_b", "overlaps")),
            *map(reduces, ("two_pass", "last_block", "last_wave", "cluster")),
            *(
                np.array([np.inf if limit is None else limit for limit in limits], float)
                for limits in ([s.max_workspace for s in specs], [s.max_k for s in specs])
            ),
            column("chunk"),
            column("wave") * (column("chunk") > 0),
            column("num_sms"),
        )
        return cls(*columns)

    def take(self, index: Any) -> Launches:
        """Those selected, or rearranged, by an index of NumPy."""
        return Launches(*(getattr(self, column.name)[index] for column in fields(self)))

    @cached_property
    def is_splitting(self) -> Flags:
        """Whether their number of splits is an argument."""
        return self.is_two_pass | self.is_last_block | self.is_last_wave

    @cached_property
    def sum_bytes(self) -> Floats:
        """Of the partial sums that a block leaves in the workspace."""
        return (self.is_splitting | (self.chunk > 0)) * (FLOAT_BYTES * self.bm * self.bn)

    @cached_property
    def counter_bytes(self) -> Floats:
        """Of the counter of a tile whose k is split."""
        found: Floats = np.where(self.is_last_block | self.is_last_wave, float(COUNTER_BYTES), 0.0)
        return found

    @cached_property
    def has_limit(self) -> bool:
        """Whether the workspace of one of them is limited."""
        return bool(np.isfinite(self.max_workspace).any())

    @cached_property
    def has_depth(self) -> bool:
        """Whether the depth of one of them is limited."""
        return bool(np.isfinite(self.max_k).any())

    @cached_property
    def least_part(self) -> Floats:
        """The least part of k for each of its splits; 0 for a single part, which may have no work."""
        return self.bk * (self.is_splitting | self.is_cluster)

    @cached_property
    def num_further(self) -> Whole:
        """Launches of a call besides that of `sgemm`, if k is at least 1."""
        number: Whole = 1 * (self.is_two_pass | (self.chunk > 0)) + self.packs_a + self.packs_b
        return number

    @cached_property
    def has_chunks(self) -> bool:
        return bool(self.chunk.any())

    @cached_property
    def has_last_wave(self) -> bool:
        return bool(self.is_last_wave.any())

    @cached_property
    def packed_a(self) -> Floats | None:
        """Memory of packed floats of A for each tile along m and each of k, in units of PACK_ALIGNMENT bytes;
        None if no launch packs A."""
        return self._packed_units(self.packs_a, self.bm)

    @cached_property
    def packed_b(self) -> Floats | None:
        """As of A, for each tile along n."""
        return self._packed_units(self.packs_b, self.bn)

    @staticmethod
    def _packed_units(packs: Flags, extent: Floats) -> Floats | None:
        return packs * extent * (FLOAT_BYTES / PACK_ALIGNMENT) if packs.any() else None

    @cached_property
    def exact(self) -> Whole:
        """The positions of launches that take whole tiles only, in a row of launches."""
        return np.flatnonzero(self.is_exact)


class Grids(NamedTuple):
    """The values of `launch.Grid` on which time depends. Floats, as bytes may exceed 64 bits."""

    split_k: Floats
    tiles: Floats
    split_tiles: Floats  # whose products are divided among `split_k` blocks, or one
    sum_bytes: Floats
    pack_bytes: Floats
    shares: Floats | None = None  # blocks that share out chunks, 0 for other launches; None: all are such


def ceil_div(a: Any, b: Any) -> Floats:
    """a / b, rounded up. Exact for whole numbers whose product is below 2^52; one is an array of floats."""
    quotient: Floats = a / b
    return np.ceil(quotient, out=quotient)


def grids(launches: Launches, shapes: Shapes, split_k: Floats | None = None) -> Grids:
    """The grid of each launch, in its own number of splits unless others are given. m and n at least 1."""
    parts = launches.split_k if split_k is None else split_k
    if launches.has_chunks:
        parts = num_splits(launches.chunk, parts, shapes.k)
    tiles_m, tiles_n = shapes.tiles_m(launches.bm), ceil_div(shapes.n, launches.bn)
    tiles = tiles_m * tiles_n
    split_tiles = np.fmod(tiles, launches.wave) if launches.has_last_wave else tiles
    packed = _NOT_PACKED
    along = tiles_m * shapes.own_a, tiles_n * shapes.own_b
    for units, tiles_along in zip((launches.packed_a, launches.packed_b), along, strict=True):
        if units is not None:
            packed = packed + PACK_ALIGNMENT * np.ceil(units * tiles_along * shapes.k)
    if not launches.has_chunks:
        return Grids(parts, tiles, split_tiles, launches.sum_bytes * split_tiles * parts, packed)
    in_chunk = np.maximum(launches.chunk / launches.bk, 1.0)
    k_tiles = ceil_div(shapes.k, launches.bk)
    tile = launches.bm * launches.bn
    shares = num_shares(tiles, parts, k_tiles, in_chunk, tile, launches.num_sms, launches.chunk_wave)
    sum_bytes = launches.sum_bytes * (split_tiles * parts + shares)
    return Grids(parts, tiles, split_tiles, sum_bytes, packed, shares)


class Access(NamedTuple):
    """How an operand can be accessed in memory."""

    vec: int  # elements of the widest vectors that its rows are made of
    is_narrow: bool  # its leading dimension also suits kernels that are not wide


def accesses(shapes: Shapes) -> tuple[Access, ...]:
    """Of A, B and C of one product, whose extents are plain numbers."""
    lds = shapes.lds or tuple(max(length, 1) for length in shapes.neighbours)
    found = []
    for length, ld, address in zip(shapes.neighbours, lds, shapes.addresses, strict=True):
        bits = length | ld | address // FLOAT_BYTES | _WIDEST
        found.append(Access(bits & -bits, ld < NARROW_LD))
    return tuple(found)


def reads(launches: Launches, operands: Sequence[Access]) -> Flags:
    """Whether each launch may read and write operands with this access."""
    may: Flags = np.ones(launches.bm.shape, bool)
    is_packed = (launches.packs_a, launches.packs_b, np.zeros(1, bool))
    vectors = (launches.vec_a, launches.vec_b, launches.vec_c)
    for operand, vec, packed in zip(operands, vectors, is_packed, strict=True):
        may &= packed | ((vec <= operand.vec) & (launches.is_wide | operand.is_narrow))
    return may


def fits(launches: Launches, shapes: Shapes, grid: Grids) -> Flags:
    """Whether one product, whatever its strides, is neither too large nor too small for each launch."""
    m, n, split_k = shapes.m, shapes.n, grid.split_k
    may: Flags = split_k * launches.least_part <= shapes.k
    if launches.exact.size:
        exact = launches.exact
        rows = m if shapes.rows is None else shapes.rows
        may[exact] &= (rows % launches.bm[exact] == 0) & (n % launches.bn[exact] == 0)
    if grid.pack_bytes is not _NOT_PACKED:
        may &= grid.pack_bytes <= WORKSPACE_LIMIT
    if launches.has_depth:
        may &= shapes.k <= launches.max_k
    if launches.has_limit:
        needed = grid.pack_bytes + grid.sum_bytes + launches.counter_bytes * grid.split_tiles
        if grid.shares is not None:
            needed = needed + COUNTER_BYTES * grid.shares
        may &= needed <= launches.max_workspace
    if launches.has_chunks:
        may &= (split_k <= MAX_GRID_Y) & (grid.sum_bytes <= WORKSPACE_LIMIT)
    if (m + _WIDEST_TILE) * (n + _WIDEST_TILE) > _FEW_RESULTS:
        may &= grid.tiles + grid.split_tiles * (split_k - 1) * launches.is_last_wave <= MAX_GRID_X
        may &= grid.sum_bytes <= WORKSPACE_LIMIT
    return may


def serves(launches: Launches, shapes: Shapes, grid: Grids) -> Flags:
    """Whether each launch may serve one product (`launch.rejection`), and leaves no split without work."""
    return reads(launches, accesses(shapes)) & fits(launches, shapes, grid)

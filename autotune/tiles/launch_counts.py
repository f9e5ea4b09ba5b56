"""What a whole call asks of memory: blocks that ask for the same are executed once.

Of a long k a part is executed. After a period of steps operands lie as before within a line, so that each
further period adds the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..kernel import template
from ..kernel.config import Config
from ..kernel.launch import PACK_THREADS, PACK_TILE, REDUCE_THREADS, Pack
from ..kernel.rungs import REFERENCE_FILE, ReferenceKernel
from .executed import OPERANDS, AccessRecording, HostLaunch, no_epilogue, unique_rows
from .warp_access import LINE, AccessCounts, WarpAccess

_HANDED = "chunks.cuh"
_FILES = (
    "tile_copy.cuh", "dot_products.cuh", "fragments.cuh", "flush.cuh", "reduce_slices.cuh",
    "reduce_planes.cuh", "reduce_two_pass.cuh", _HANDED, "reduce_last_block.cuh", "staged_rows.cuh",
    "reduce_cluster.cuh", "epilogue.cuh", "output.cuh", REFERENCE_FILE,
)  # fmt: skip
_WHATS = ("A", "B", "workspace", "sums", "C")
_FROM, _TO = (number << 40 for number in (1, 4))


class AccessKey(NamedTuple):
    """Which accesses are counted together."""

    kernel: str
    where: str
    what: str
    space: str
    kind: str


Counts = dict[AccessKey, AccessCounts]


def count(
    kernel: Config | ReferenceKernel, gemm: Gemm, limits: DeviceLimits, *, reads_c: bool = False
) -> Counts:
    """What all kernels of one call ask of memory. `reads_c`: beta is not zero. Left out are the counters and
    tickets of last_block and last_wave, which one thread of a block touches. Raises EnvironmentProblem
    without a C++ compiler."""
    product = HostLaunch.of(kernel, gemm, limits)
    found: Counts = {}
    for pack in product.grid.packs:
        _add(found, _counts(_packed(product, pack)))
    periods = product.shortest()
    least = _of_product(product.shorter(periods), reads_c=reads_c)
    _add(found, least)
    if periods:
        _add(found, _of_product(product.shorter(periods - 1), reads_c=reads_c), periods)
        _add(found, least, -periods)
    if product.grid.reduce_blocks:
        _add(found, _counts(_reduced(product, reads_c=reads_c)))
    return found


def _add(found: Counts, more: Counts, times: int = 1) -> None:
    for key, counts in more.items():
        found[key] = found.get(key, AccessCounts()) + counts * times


def _counts(accesses: Iterable[WarpAccess]) -> Counts:
    found: Counts = {}
    for access in accesses:
        key = AccessKey(access.kernel, access.where, access.what, access.space, access.kind)
        found[key] = found.get(key, AccessCounts()) + access.counts()
    return found


def _handed_over(product: HostLaunch) -> Counts:
    """What blocks give the next ones of chunks that they share: each as much."""
    found: Counts = {}
    cuts = product.cuts()
    for number, kind in ((cuts[0] - 1, "store"), (cuts[0], "load")) if len(cuts) else ():
        accesses = product.recorded({int(number): [len(cuts)] * len(OPERANDS)}, reads_c=False)
        here = (one for one in accesses if one.where == _HANDED and one.kind == kind)
        _add(found, _counts(here))
    return found


def _of_product(product: HostLaunch, *, reads_c: bool) -> Counts:
    if product.are_shared:
        found = _of_product(product.one_each(), reads_c=reads_c)
        _add(found, _handed_over(product))
        return dict(sorted(found.items(), key=lambda item: _place(item[0])))
    times: dict[int, list[int]] = {}
    for what, places in product.places().items():
        for number, count in unique_rows(places):
            own = times.setdefault(number, [0] * len(OPERANDS))
            own[OPERANDS.index(what)] = count
            if what == "C":  # sums on their way to it
                own[OPERANDS.index("sums")] = count
    counts = _counts(product.recorded(dict(sorted(times.items())), reads_c=reads_c))
    return dict(sorted(counts.items(), key=lambda item: _place(item[0])))


def _place(key: AccessKey) -> tuple[int, int, bool, bool]:
    """Where accesses stand in a table: as operands come and sums go."""
    file = _FILES.index(key.where) if key.where in _FILES else len(_FILES)
    return file, _WHATS.index(key.what), key.space == "shared", key.kind == "load"


def _packed(product: HostLaunch, pack: Pack) -> list[WarpAccess]:
    """A launch of sgemm_pack."""
    k, ld = product.k, product.gemm.lda if pack.is_a else product.gemm.ldb
    number, within = np.divmod(np.arange(pack.blocks, dtype=np.int64), pack.blocks_per_product)
    p, i = (PACK_TILE * place for place in np.divmod(within, -(-pack.padded // PACK_TILE)))
    reads = number * pack.stride + (i * ld + p if pack.is_k_major else p * ld + i)
    stores = (number * k + p) * pack.padded + i
    left = [np.minimum(end, PACK_TILE) for end in (pack.extent - i, k - p)]
    arguments = [
        *map(ctypes.c_int, (pack.extent, k)), ctypes.c_void_p(_FROM), ctypes.c_longlong(ld),
        ctypes.c_int(pack.is_k_major), ctypes.c_void_p(_TO), ctypes.c_int(pack.padded),
        ctypes.c_int(pack.blocks_per_product), ctypes.c_longlong(pack.stride),
    ]  # fmt: skip
    recording = AccessRecording(product.library)
    for block, times in unique_rows(np.stack([reads % LINE, stores % LINE, *left], axis=1)):
        place, counted = (0, block, 0, pack.blocks, 0), (times,) * len(OPERANDS)
        recording.record(template.PACK_ENTRY, arguments, PACK_THREADS, place, counted, int(not pack.is_a))
    return recording.accesses(template.PACK_ENTRY)


def _reduced(product: HostLaunch, *, reads_c: bool) -> list[WarpAccess]:
    """A launch of sgemm_reduce."""
    grid, m, n, ldc = product.grid, product.m, product.n, product.lds[2]
    number, within = np.divmod(np.arange(grid.reduce_blocks, dtype=np.int64), grid.reduce_blocks_per_product)
    first = within << grid.reduce_group_bits
    row, column = np.divmod(first, n)
    elements = np.minimum(m * n - first, 1 << grid.reduce_group_bits)
    plane = number * grid.split_k * grid.padded_m * grid.padded_n + row * grid.padded_n + column
    in_row = np.minimum(n - column, elements)  # then it goes on with the next row
    at_c = number * product.strides[2] + row * ldc + column
    integers = (grid.split_k, grid.padded_m, grid.padded_n, grid.reduce_group_bits)
    arguments = [
        *map(ctypes.c_int, (m, n)), ctypes.c_float(1), ctypes.c_float(reads_c), ctypes.c_void_p(3 << 40),
        ctypes.c_longlong(ldc), ctypes.c_void_p(_TO), *map(ctypes.c_int, integers),
        ctypes.c_int(grid.reduce_blocks_per_product), ctypes.c_longlong(product.strides[2]), no_epilogue(),
    ]  # fmt: skip
    recording = AccessRecording(product.library)
    for block, times in unique_rows(np.stack([plane % LINE, at_c % LINE, in_row, elements], axis=1)):
        place, counted = (0, block, 0, grid.reduce_blocks, 0), (times,) * len(OPERANDS)
        recording.record(template.REDUCE_ENTRY, arguments, REDUCE_THREADS, place, counted)
    return recording.accesses(template.REDUCE_ENTRY)

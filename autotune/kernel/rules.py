"""The rules that a config must obey, each with an id and one sentence saying what it protects.

A rule is a predicate that reads configs and columns of configs alike, so one text both explains a
single config (`broken_rules`) and enumerates the space (`space.feasible_set`).

Kinds of rule, from hard to soft:
    template  the kernel does not compile otherwise; the id stands in its static_assert
    device    this GPU cannot run it
    shape     this problem cannot be computed with it
    worth     legal, but known not to pay: no search tries it (`autotune space --all` counts such configs)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from .config import PACKED_ORDERS, WARP, Config, KernelConfig, lanes_k, threads_along_k
from .launch import WORKSPACE_LIMIT, num_splits
from .resources import (
    MAX_THREADS,
    REGISTER_GRANULE,
    chunk_m,
    chunk_n,
    is_k_major_a,
    is_k_major_b,
    main_smem_bytes,
    most_sum_bytes,
    packed_bytes,
    register_cap,
    register_estimate,
    staged_bytes,
    threads,
    threads_per_slice,
)
from .summation_order import CONDITIONS, SummationOrder

RuleKind = Literal["template", "device", "shape", "worth"]
PACK_USES = 2048  # of an element, from which on it pays to pack it
LEAST_DEPTH = 128  # of a split's share of k
MANY_SUMS = 16  # of a thread, that are worth its loads
MOST_SMALL, FEW_BLOCKS = 32 * 32, 2  # elements of a small tile; 64x64 tiles of a chunk per SM that are few
CHUNK_TILES = 8  # of 64x64 per SM, up to which splits that are chunks are tried
_RESIDENT = (256, 1024)  # threads per SM of blocks that share out chunks
FEW = 4  # rows or columns of C for which lanes may share out k
MOST_DOTS = 64  # elements of C per block where they do
NARROW, NARROW_FLUSH = 64, 256  # rows or columns of C, and steps of k after which its sums are set aside


class Rule(NamedTuple):
    """`holds(config or columns, limits, gemm)` is true where the sentence is obeyed."""

    id: str
    kind: RuleKind
    needs: tuple[str, ...]
    sentence: str
    holds: Callable[[Any, DeviceLimits, Gemm], Any]


_THREADS = ("bm", "bn", "wm", "wn", "slice_k")
_WARP = ("wm", "wn", "tm", "tn")
_SMEM = ("bm", "bn", "bk", "slice_k", *_WARP, "stages", "flush_k", "pad", "pack_a", "pack_b", "reduction")


def _load_extent_a(c: Any, g: Gemm) -> Any:
    return np.where(is_k_major_a(c, g), c.bk, c.bm)


def _load_extent_b(c: Any, g: Gemm) -> Any:
    return np.where(is_k_major_b(c, g), c.bk, c.bn)


def _tiles_64(g: Gemm) -> int:
    return -(-g.m // 64) * -(-g.n // 64) * g.batch


def _min_flush_k(g: Gemm) -> int:
    """Steps of k after which a flush pays. Few rows or columns wait for memory: they have time for more."""
    return NARROW_FLUSH if min(g.m, g.n) <= NARROW else 1024


def _dot_vec(c: Any, g: Gemm) -> Any:
    """Neighbours of k that a lane takes at a time where lanes share it out."""
    along_a, along_b = is_k_major_a(c, g), is_k_major_b(c, g)
    return np.maximum(np.where(along_a, c.vec_a, 1), np.where(along_b, c.vec_b, 1))


def _is_along_k(c: Any, g: Gemm) -> Any:
    """Whether C and the tile are narrow, and the operand read a few times only is stored along k."""
    few_columns = (g.n <= FEW) and not g.trans_a
    few_rows = (g.m <= FEW) and g.trans_b
    return few_columns & (c.bn < 2 * g.n) | few_rows & (c.bm < 2 * g.m)


def _gains_packed(g: Gemm, *, is_a: bool) -> bool:
    """Whether packing an operand spares its blocks transposing it, or copies narrower than they could be."""
    is_k_major, ld = (not g.trans_a, g.lda) if is_a else (g.trans_b, g.ldb)
    return is_k_major or ld % 4 != 0


def _pays_to_pack(g: Gemm, *, is_a: bool) -> bool:
    """Whether it also is used often enough: each element once per row or column of C of all who share it."""
    uses, is_shared = (g.n, g.shares_a) if is_a else (g.m, g.shares_b)
    return uses * (g.batch if is_shared else 1) >= PACK_USES and _gains_packed(g, is_a=is_a)


# Tiles in between, and the tiles on either side of each that shapes of all sizes have.
_IN_BETWEEN = {24: (16, 32), 40: (32, 48), 56: (48, 64), 80: (64, 96), 112: (96, 128)}
_LEAST_GAIN = 1 / 16  # of the rows or columns that a tile in between computes, over either neighbour's


def _fits_closer(tile: Any, extent: int) -> Any:
    """Whether a tile is of a common extent, or pads the matrix clearly less than its neighbours do."""
    covered = {
        step: -(-extent // step) * step for pair in _IN_BETWEEN.items() for step in (pair[0], *pair[1])
    }
    loose = [
        step
        for step, around in _IN_BETWEEN.items()
        if covered[step] * (1 + _LEAST_GAIN) > min(covered[other] for other in around)
    ]
    return np.isin(tile, loose, invert=True)


def _widest(vec: Any, tile: Any, extent: Any, is_narrow: Any) -> Any:
    """Whether no wider vector divides both the tile and the matrix (or 4-byte copies are meant)."""
    four = (tile % 4 == 0) & (extent % 4 == 0)
    two = (tile % 2 == 0) & (extent % 2 == 0)
    best = 1 + 1 * two + 2 * (four & two)
    return (vec == best) | (is_narrow & (vec == 1))


RULES: tuple[Rule, ...] = (
    # template: the kernel's static_asserts carry the same ids
    Rule("warp-lanes", "template", ("wm", "wn", "tm", "tn"),
         "thread tiles of 32 lanes fill the warp tile, (wm/tm) * (wn/tn) = 32; or one does, lanes share k",
         lambda c, d, g: (c.wm % c.tm == 0) & (c.wn % c.tn == 0)
         & ((c.wm * c.wn == WARP * c.tm * c.tn) | (lanes_k(c) == WARP))),
    Rule("block-warps-m", "template", ("bm", "wm"), "whole warp tiles fill the block: wm divides bm",
         lambda c, d, g: c.bm % c.wm == 0),
    Rule("block-warps-n", "template", ("bn", "wn"), "whole warp tiles fill the block: wn divides bn",
         lambda c, d, g: c.bn % c.wn == 0),
    Rule("threads", "template", _THREADS, "a block has at most 1024 threads",
         lambda c, d, g: threads(c) <= MAX_THREADS),
    Rule("slices", "template", ("bk", "slice_k"), "slices share out a tile's k evenly",
         lambda c, d, g: c.bk % c.slice_k == 0),
    Rule("unroll", "template", ("bk", "slice_k", "unroll_k"),
         "whole unrolled runs fill a slice: unroll_k divides bk / slice_k",
         lambda c, d, g: (c.bk // c.slice_k) % c.unroll_k == 0),
    Rule("fragment-parity", "template", ("frag_buffers", "unroll_k"),
         "two fragment buffers alternate: unroll_k is even",
         lambda c, d, g: (c.frag_buffers == 1) | (c.unroll_k % 2 == 0)),
    Rule("vector-a", "template", ("bm", "bk", "vec_a", "pack_a"),
         "whole vectors fill the contiguous side of A's tile",
         lambda c, d, g: _load_extent_a(c, g) % c.vec_a == 0),
    Rule("vector-b", "template", ("bn", "bk", "vec_b", "pack_b"),
         "whole vectors fill the contiguous side of B's tile",
         lambda c, d, g: _load_extent_b(c, g) % c.vec_b == 0),
    Rule("vector-c", "template", ("tn", "vec_c"),
         "a thread's neighbouring columns of C fill whole vectors",
         lambda c, d, g: chunk_n(c) % c.vec_c == 0),
    Rule("async-transpose-a", "template", ("copy_a", "vec_a", "pack_a"),
         "cp.async cannot transpose a vector: such an A is copied 4 bytes at a time",
         lambda c, d, g: (c.copy_a != "async") | (c.vec_a == 1) | np.logical_not(is_k_major_a(c, g))),
    Rule("async-transpose-b", "template", ("copy_b", "vec_b", "pack_b"),
         "cp.async cannot transpose a vector: such a B is copied 4 bytes at a time",
         lambda c, d, g: (c.copy_b != "async") | (c.vec_b == 1) | np.logical_not(is_k_major_b(c, g))),
    Rule("pad-a", "template", ("tm", "pad", "pack_a"),
         "padding keeps vector reads of an A that is transposed on its way aligned",
         lambda c, d, g: (c.pad % chunk_m(c) == 0) | np.logical_not(is_k_major_a(c, g))),
    Rule("pad-b", "template", ("tn", "pad", "pack_b"),
         "padding keeps vector reads of a B that is transposed on its way aligned",
         lambda c, d, g: (c.pad % chunk_n(c) == 0) | np.logical_not(is_k_major_b(c, g))),
    Rule("bursts", "template", ("bk", "slice_k", "unroll_k", "stages", "bursts"),
         "bursts spread over the steps of a whole slice, two or more each, into a stage that is not read",
         lambda c, d, g: (c.bursts == 1) | ((c.unroll_k == c.bk // c.slice_k)
         & (c.unroll_k % (2 * c.bursts) == 0) & (c.stages > 1))),
    Rule("lanes-along-k", "template",
         (*_WARP, "bk", "slice_k", "unroll_k", "stages", "flush_k", "copy_a", "copy_b", "pack_a", "pack_b",
          "vec_a", "vec_b"),
         "lanes that share out k take whole vectors of it, straight to registers, a step at a time",
         lambda c, d, g: (lanes_k(c) == 1)
         | ((c.stages == 1) & (c.flush_k == 0) & (c.copy_a == "register") & (c.copy_b == "register")
            & (c.unroll_k == c.bk // c.slice_k) & ((c.bk // c.slice_k) % _dot_vec(c, g) == 0))),
    Rule("cluster-size", "template", ("reduction", "split_k"),
         "a cluster is of 2, 4 or 8 blocks: more are not portable",
         lambda c, d, g: (c.reduction != "cluster")
         | (c.split_k == 2) | (c.split_k == 4) | (c.split_k == 8)),
    Rule("flush", "template", ("bk", "flush_k"), "sums are flushed after whole tiles: bk divides flush_k",
         lambda c, d, g: c.flush_k % c.bk == 0),
    Rule("chunks", "template", ("reduction", "flush_k", *_WARP, "slice_k"),
         "splits are chunks where flush_k gives their depth, and no lanes or slices share it out",
         lambda c, d, g: (c.reduction != "chunks") | ((c.flush_k > 0) & (threads_along_k(c) == 1))),
    # device
    Rule("async-device", "device", ("copy_a", "copy_b"), "cp.async needs sm_80 or later",
         lambda c, d, g: ((c.copy_a != "async") & (c.copy_b != "async")) | d.has_async_copy),
    Rule("cluster-device", "device", ("reduction",), "thread-block clusters need sm_90 or later",
         lambda c, d, g: (c.reduction != "cluster") | d.has_clusters),
    Rule("packed-device", "device", ("order",), "packed FMAs exist in compute capability 10.x alone",
         lambda c, d, g: np.logical_not(np.isin(c.order, PACKED_ORDERS)) | d.has_packed_fma),
    Rule("shared-memory", "device", _SMEM, "a block's stages and kept sums fit its shared memory",
         lambda c, d, g: main_smem_bytes(c, g) <= d.smem_per_block),
    Rule("staged-rows", "device", ("bm", "bn", "tm", "wn", "tn", "min_blocks"),
         "a row of each thread's sums fits a block's shared memory, and those of min_blocks blocks an SM's",
         lambda c, d, g: (staged_bytes(c) <= d.smem_per_block)
         & (c.min_blocks * (staged_bytes(c) + d.smem_reserved) <= d.smem_per_sm)),
    Rule("resident-smem", "device", (*_SMEM, "min_blocks"),
         "min_blocks blocks fit the shared memory of an SM",
         lambda c, d, g: c.min_blocks * (main_smem_bytes(c, g) + d.smem_reserved) <= d.smem_per_sm),
    Rule("resident-threads", "device", (*_THREADS, "min_blocks"),
         "min_blocks blocks fit the threads and block slots of an SM",
         lambda c, d, g: (c.min_blocks * threads(c) <= d.threads_per_sm)
         & (c.min_blocks <= d.blocks_per_sm)),
    Rule("registers", "device", (*_THREADS, "tm", "tn", "bk", "frag_buffers", "min_blocks"),
         "sums and fragments fit the registers that the launch bounds leave",
         lambda c, d, g: register_estimate(c) <= register_cap(c, d)),
    # shape
    Rule("split-reduction", "shape", ("reduction", "split_k"),
         "split-K needs a reduction, and nothing else does",
         lambda c, d, g: ((c.reduction != "none") & (c.reduction != "chunks")) == (c.split_k > 1)),
    Rule("exact-edges", "shape", ("bm", "bn", "edges"),
         "exact edges need m and n to be multiples of the block tile",
         lambda c, d, g: (c.edges != "exact") | ((g.m % c.bm == 0) & (g.n % c.bn == 0))),
    Rule("extent-a", "shape", ("vec_a", "pack_a"), "rows of A (as stored) are whole vectors, or A is packed",
         lambda c, d, g: (g.lda % c.vec_a == 0) | (c.pack_a == 1)),
    Rule("extent-b", "shape", ("vec_b", "pack_b"), "rows of B (as stored) are whole vectors, or B is packed",
         lambda c, d, g: (g.ldb % c.vec_b == 0) | (c.pack_b == 1)),
    Rule("extent-c", "shape", ("vec_c",), "rows of C are whole vectors",
         lambda c, d, g: (g.ldc % c.vec_c == 0)),
    Rule("workspace", "shape", ("bm", "bn", "min_blocks", "flush_k", "reduction", "split_k"),
         "the partial sums of split-K fit 1 GiB",
         lambda c, d, g: most_sum_bytes(c, g, d) <= WORKSPACE_LIMIT),
    Rule("pack-workspace", "shape", ("bm", "bn", "pack_a", "pack_b"), "packed operands fit 1 GiB",
         lambda c, d, g: packed_bytes(c, g) <= WORKSPACE_LIMIT),
    # worth
    Rule("worth-threads", "worth", _THREADS, "64 to 512 threads: fewer hide no latency, more cannot",
         lambda c, d, g: (threads(c) >= 64) & (threads(c) <= 512)),
    Rule("worth-slices", "worth", _THREADS, "slices pay where a slice alone is at most 128 threads",
         lambda c, d, g: (c.slice_k == 1) | (threads_per_slice(c) <= 128)),
    Rule("worth-thread-tile", "worth", ("tm", "tn"), "at most 192 sums: registers for more spill",
         lambda c, d, g: (c.tm * c.tn <= 192) & (c.tm <= 4 * c.tn) & (c.tn <= 4 * c.tm)
         | (c.tm <= 2) | (c.tn <= 2)),
    Rule("worth-small-tile", "worth", ("tm", "tn"),
         "sums beyond 16 per thread unless a side of C is short",
         lambda c, d, g: (c.tm * c.tn >= MANY_SUMS) | (min(g.m, g.n) <= 64)),
    Rule("worth-block-m", "worth", ("bm",), "a block tile is not taller than twice C",
         lambda c, d, g: (c.bm <= 16) | (c.bm < 2 * g.m)),
    Rule("worth-block-n", "worth", ("bn",), "a block tile is not wider than twice C",
         lambda c, d, g: (c.bn <= 16) | (c.bn < 2 * g.n)),
    Rule("worth-flat-m", "worth", ("bm", *_WARP),
         "tiles of few rows only where C has few rows, or lanes share out k",
         lambda c, d, g: (c.bm >= 16) | (g.m < 2 * c.bm) | (lanes_k(c) > 1)),
    Rule("worth-flat-n", "worth", ("bn", *_WARP),
         "tiles of few columns only where C has few columns, or lanes share out k",
         lambda c, d, g: (c.bn >= 16) | (g.n < 2 * c.bn) | (lanes_k(c) > 1)),
    Rule("worth-intensity", "worth", ("bm", "bn", *_WARP),
         "block tiles reuse each element enough, unless a side of C is short",
         lambda c, d, g: ((c.bm >= 32) | (g.m < 32) | (lanes_k(c) > 1))
         & ((c.bn >= 32) | (g.n < 32) | (lanes_k(c) > 1)) & (c.bm * c.bn <= 256 * 192)),
    Rule("worth-lanes-along-k", "worth", ("bm", "bn", *_WARP, "frag_buffers", "bursts", "pack_a", "pack_b"),
         "lanes share out k where C has few columns and A is stored along k, or few rows and so B",
         lambda c, d, g: (lanes_k(c) == 1)
         | (_is_along_k(c, g) & (c.bm * c.bn <= MOST_DOTS) & (c.frag_buffers == 1) & (c.bursts == 1)
            & (c.pack_a == 0) & (c.pack_b == 0))),
    Rule("worth-edges", "worth", ("bm", "bn", "edges"), "exact edges wherever they are possible",
         lambda c, d, g: (c.edges == "exact") == ((g.m % c.bm == 0) & (g.n % c.bn == 0))),
    Rule("worth-vector-a", "worth", ("bm", "bk", "vec_a", "copy_a", "pack_a"),
         "the widest vectors that A allows",
         lambda c, d, g: _widest(c.vec_a, _load_extent_a(c, g), np.where(c.pack_a == 1, c.bm, g.lda),
                                 (c.copy_a == "async") & is_k_major_a(c, g))),
    Rule("worth-vector-b", "worth", ("bn", "bk", "vec_b", "copy_b", "pack_b"),
         "the widest vectors that B allows",
         lambda c, d, g: _widest(c.vec_b, _load_extent_b(c, g), np.where(c.pack_b == 1, c.bn, g.ldb),
                                 (c.copy_b == "async") & is_k_major_b(c, g))),
    Rule("worth-vector-c", "worth", ("tn", "vec_c"), "the widest vectors that C allows",
         lambda c, d, g: _widest(c.vec_c, chunk_n(c), g.ldc, False)),
    Rule("worth-between-m", "worth", ("bm",), "tiles of in-between heights where they pad C clearly less",
         lambda c, d, g: _fits_closer(c.bm, g.m)),
    Rule("worth-between-n", "worth", ("bn",), "tiles of in-between widths where they pad C clearly less",
         lambda c, d, g: _fits_closer(c.bn, g.n)),
    Rule("worth-copies", "worth", ("bm", "bn", "bk", *_THREADS, "tm", "tn", "vec_a", "vec_b"),
         "every thread has something to copy, and none more than 32 pieces",
         lambda c, d, g: (lanes_k(c) > 1) | (2 * c.bm * c.bk >= c.vec_a * threads(c) * (c.bm >= 32))
         & (2 * c.bn * c.bk >= c.vec_b * threads(c) * (c.bn >= 32))
         & (c.bm * c.bk <= 32 * c.vec_a * threads(c)) & (c.bn * c.bk <= 32 * c.vec_b * threads(c))),
    Rule("worth-staged-copies", "worth",
         ("bk", *_THREADS, "tm", "tn", "copy_a", "copy_b", "frag_buffers", "min_blocks"),
         "register-staged copies leave registers for sums and fragments",
         lambda c, d, g: register_estimate(c)
         + (c.bm * c.bk // threads(c)) * (c.copy_a == "register")
         + (c.bn * c.bk // threads(c)) * (c.copy_b == "register") <= register_cap(c, d) + REGISTER_GRANULE),
    Rule("worth-stages", "worth", (*_WARP, "copy_a", "copy_b", "stages"),
         "two stages, or 3, 4 or 6 where a copy is asynchronous",
         lambda c, d, g: (c.stages == 2) | (lanes_k(c) > 1) | (((c.copy_a == "async") | (c.copy_b == "async"))
         & ((c.stages == 3) | (c.stages == 4) | (c.stages == 6)))),
    Rule("worth-async", "worth", (*_WARP, "copy_a", "copy_b"), "an asynchronous copy where the device has it",
         lambda c, d, g: (c.copy_a == "async") | (c.copy_b == "async") | (not d.has_async_copy)
         | (lanes_k(c) > 1)),
    Rule("worth-depth", "worth", ("bk", *_WARP),
         "tiles 8 to 64 deep: fewer steps do not pay for a barrier; deeper where lanes share out k",
         lambda c, d, g: (c.bk >= 8) & ((c.bk <= 64) | (lanes_k(c) > 1))),
    Rule("worth-unroll", "worth", ("tm", "tn", "bk", "slice_k", "unroll_k"),
         "unroll a slice whole, or as far as 4096 FMAs: more do not fit the instruction cache",
         lambda c, d, g: (c.tm * c.tn * c.unroll_k <= 4096)
         & ((c.unroll_k == c.bk // c.slice_k) | (c.tm * c.tn * c.unroll_k > 2048))),
    Rule("worth-flush", "worth", ("flush_k",),
         "flush the sums of a long k after 1024 steps, or 256 where a side of C is short",
         lambda c, d, g: (c.flush_k == 0) | ((c.flush_k == _min_flush_k(g)) & (g.k >= 2 * c.flush_k))),
    Rule("worth-bursts", "worth", (*_THREADS, "bk", "vec_a", "vec_b", "bursts"),
         "every burst has a copy of its own for each thread",
         lambda c, d, g: (c.bursts == 1)
         | ((c.bm * c.bk // c.vec_a + c.bn * c.bk // c.vec_b) >= c.bursts * threads(c))),
    Rule("worth-order", "worth", ("order",),
         "orders that reverse at the end of a line: plain rows were never the best",
         lambda c, d, g: c.order != "row"),
    Rule("worth-pad", "worth", ("tm", "tn", "pad", "pack_a", "pack_b"),
         "padding by one access where an operand is transposed on its way, else none",
         lambda c, d, g: c.pad
         == np.maximum(chunk_m(c) * is_k_major_a(c, g), chunk_n(c) * is_k_major_b(c, g))),
    Rule("worth-pack", "worth", ("pack_a", "pack_b"),
         "packing pays where it mends something and every element is used two thousand times; B with A",
         lambda c, d, g: ((c.pack_a == 0) | _pays_to_pack(g, is_a=True))
         & ((c.pack_b == 0)
            | (_pays_to_pack(g, is_a=False) & ((c.pack_a == 1) | (not _gains_packed(g, is_a=True)))))),
    Rule("worth-pack-copies", "worth", ("pack_a", "pack_b", "copy_a", "copy_b"),
         "a packed operand is copied asynchronously where the device can: nothing is left to transpose",
         lambda c, d, g: ((c.pack_a == 0) | (c.copy_a == "async") | (not d.has_async_copy))
         & ((c.pack_b == 0) | (c.copy_b == "async") | (not d.has_async_copy))),
    Rule("worth-min-blocks", "worth", (*_THREADS, "tm", "tn", "min_blocks"),
         "ask for residency only where it binds: one block may have all registers anyway",
         lambda c, d, g: (c.min_blocks == 1)
         | ((register_cap(c, d) <= 168) & (register_cap(c, d) <= 2.5 * c.tm * c.tn + 72))),
    Rule("worth-occupancy", "worth", (*_THREADS, "min_blocks"),
         "at least 128 threads per SM",
         lambda c, d, g: threads(c) * c.min_blocks >= 128),
    Rule("worth-split", "worth", ("reduction", "split_k"),
         "shares of k at least 128 deep, of all tiles only where 64x64 tiles alone leave SMs idle",
         lambda c, d, g: (c.split_k == 1)
         | ((g.k >= LEAST_DEPTH * c.split_k)
            & (((c.reduction != "last_wave") & (_tiles_64(g) * c.split_k <= 16 * d.num_sms))
               | ((c.reduction == "last_wave") & (c.split_k <= 16) & (_tiles_64(g) > d.num_sms))))),
    Rule("worth-chunks", "worth", ("reduction",), "splits are chunks only where all sums have one order",
         lambda c, d, g: c.reduction != "chunks"),
    Rule("worth-group", "worth", ("raster", "group"),
         "walk along m in plain order or not at all: groups go along n",
         lambda c, d, g: (c.raster == "n") | (c.group == 1)),
)  # fmt: skip
Config.rules = RULES
RULE: dict[str, Rule] = {rule.id: rule for rule in RULES}
LEGAL: tuple[RuleKind, ...] = ("template", "device", "shape")
WITHOUT_ORDER = ("worth-flush", "worth-chunks")  # only where no order is asked for


def rules_of(order: SummationOrder, rules: Iterable[Rule] = RULES) -> list[Rule]:
    """Rules where all sums have this order (summation_order.py): these, and what makes kernels sum so. Where
    others share out k to keep threads busy, smaller tiles do."""

    def rule(names: tuple[str, ...], holds: Callable[[Any, SummationOrder, int], Any]) -> Rule:
        sentence = f"sums have the order {order}"
        return Rule(f"order-{names[-1]}", "worth", names, sentence, lambda c, d, g: holds(c, order, g.k))

    def is_worth(c: Any, d: DeviceLimits, g: Gemm) -> Any:
        chunks = num_splits(order.chunk, 1, g.k)
        return (c.reduction != "chunks") | ((chunks > 1) & (_tiles_64(g) <= CHUNK_TILES * d.num_sms))

    whole = Rule("worth-flush", "worth", ("flush_k",), "sums are set aside where k is longer than a chunk",
                 lambda c, d, g: (c.flush_k == 0) | (not order.is_chain(g.k)))  # fmt: skip
    sentence = "splits are chunks where there are several, and 64x64 tiles alone leave SMs idle"
    chunks = Rule("worth-chunks", "worth", ("reduction",), sentence, is_worth)
    kept = (_for_small(one, order) for one in rules if one.id not in WITHOUT_ORDER)
    sentence = f"blocks that share out chunks stay together, {_RESIDENT[0]} to {_RESIDENT[1]} threads per SM"
    resident = Rule("worth-resident", "worth", (*_THREADS, "min_blocks", "reduction"), sentence,
                    lambda c, d, g: (c.reduction != "chunks") | (threads(c) * c.min_blocks >= _RESIDENT[0])
                    & (threads(c) * c.min_blocks <= _RESIDENT[1]))  # fmt: skip
    return [*kept, *(rule(*one) for one in CONDITIONS), whole, chunks, resident]


def _for_small(rule: Rule, order: SummationOrder) -> Rule:
    """The rule, or one that also lets small tiles be where each SM has little work. Blocks of one warp, in
    place of slices, may be everywhere."""
    if rule.id in ("worth-threads", "worth-occupancy"):
        return rule._replace(
            sentence=f"{rule.sentence}, or a block is one warp",
            holds=lambda c, d, g: rule.holds(c, d, g) | (threads(c) == WARP),
        )
    if rule.id == "worth-min-blocks":
        return rule._replace(
            needs=(*rule.needs, "reduction"),
            sentence=f"{rule.sentence}; or as many as share out chunks",
            holds=lambda c, d, g: rule.holds(c, d, g) | (c.reduction == "chunks"),
        )
    if rule.id not in ("worth-small-tile", "worth-intensity"):
        return rule

    def holds(c: Any, d: DeviceLimits, g: Gemm) -> Any:
        blocks = _tiles_64(g) * num_splits(order.chunk, 1, g.k)
        is_small = True if rule.id == "worth-small-tile" else c.bm * c.bn <= MOST_SMALL
        return rule.holds(c, d, g) | (is_small & (blocks <= FEW_BLOCKS * d.num_sms))

    return rule._replace(sentence=f"{rule.sentence}, or each SM has little work", holds=holds)


def broken_rules(
    config: KernelConfig,
    limits: DeviceLimits,
    gemm: Gemm,
    kinds: Sequence[RuleKind] = LEGAL,
) -> tuple[Rule, ...]:
    """The rules of those kinds that this config breaks, in the order of its rules. If a template rule is
    broken only such rules are given: the others assume a kernel that compiles."""
    template = [r for r in config.rules if r.kind == "template" and not r.holds(config, limits, gemm)]
    others = [r for r in config.rules if r.kind != "template" and r.kind in kinds] if not template else []
    broken = [*template, *(r for r in others if not r.holds(config, limits, gemm))]
    return tuple(r for r in broken if r.kind in kinds)

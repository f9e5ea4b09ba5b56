"""Legal relatives of a config: for a GPU with other limits, another layout, operands of any alignment, and a
C that its tiles do not fit.

A relative predicates its edges. One that does not split k has a second version with blocked summation
(flush_k), for a deep k. All have two versions, for operands with aligned rows and for any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from .config import PACKED_ORDERS, PARAMETER, WARP, Config, Value, lanes_k, threads_along_k
from .rules import NARROW, NARROW_FLUSH, broken_rules

_WIDE_FLUSH = 512  # where no side of a tile is narrow: it serves a C whose k cuBLAS splits in a few, too
_PACKED = {"row_snake": "packed_row_snake", "col_snake": "packed_col_snake"}
_OTHER_ORDER = _PACKED | {packed: order for order, packed in _PACKED.items()}  # of two FMAs at a time, of one
_LEAST_BK = 8  # that is searched
_DEEP, _AHEAD = 32, 4  # steps and stages of small tiles
_FEW_SPLITS = 4  # with which none, in place of chunks, may be as fast
_RESIDENT = 512  # threads per SM that share out chunks: fewer hide no latency, more spill
_NARROW_BLOCKS = 4  # resident blocks to ask for at most where narrower copies take more registers


def example(layout: str) -> Gemm:
    """A problem of this layout, for rules and sizes that depend on the layout only."""
    return Gemm.of_layout(layout, 4096, 4096, 4096)


def relatives(config: Config, layout: str, limits: DeviceLimits) -> Iterator[Config]:
    """Configs similar to this one that serve more shapes; itself if it is as general as they are."""
    for variant in _variants(config):
        for widest in (4, 1):
            found = fitted(replace(variant, edges="predicated"), layout, limits, widest)
            if found is not None:
                yield found


@lru_cache(1 << 14)
def base_config(config: Config) -> Config:
    """What a config shares with its relatives, if the GPU takes it unchanged: represents all of them."""
    plain = replace(config.in_any_splits, edges="predicated", vec_a=1, vec_b=1, vec_c=1)
    return replace(plain, pad=0, min_blocks=1, flush_k=0)


def _variants(config: Config) -> Iterator[Config]:
    """The config and, where its sums are as deep as k, the same in blocks."""
    yield config
    if (in_blocks := summed_in_blocks(config)) is not None:
        yield in_blocks


def summed_in_blocks(config: Config) -> Config | None:
    """The same with sums in blocks (flush_k) where they are as deep as k, else None. It may not be legal."""
    if config.flush_k or config.reduction not in ("none", "last_wave"):
        return None
    side = min(config.bm, config.bn)  # of a tile: it serves a C that has a side as short
    return replace(config, flush_k=NARROW_FLUSH if side <= NARROW else _WIDE_FLUSH)


def in_pairs(config: Config, *, are_packed: bool) -> Config:
    """The same with FMAs two at a time, or one at a time, in the order that is closest."""
    if (config.order in PACKED_ORDERS) == are_packed:
        return config
    return replace(config, order=_OTHER_ORDER.get(config.order, PACKED_ORDERS[0]))


def side_by_side(config: Config) -> Iterator[Config]:
    """The config; if its threads share out k, those with about as large tiles whose threads lie side by side
    instead, where splits take the place of lanes. Their steps are as deep as those of all slices."""
    depth = max(config.bk // config.slice_k, _LEAST_BK)
    flat = replace(config, slice_k=1, bk=depth, unroll_k=depth)
    if threads_along_k(config) == 1:
        yield config
    elif lanes_k(config) == 1:
        yield replace(config, slice_k=1)
    else:
        for down in (1, 4, WARP):
            wm, wn = config.tm * down, config.tn * (WARP // down)
            bm, bn = max(config.bm, wm), max(config.bn, wn)
            yield replace(flat, wm=wm, wn=wn, bm=bm, bn=bn, reduction="two_pass", split_k=WARP)


def shrunk(config: Config, parts: int) -> Iterator[Config]:
    """The config; if it divides k among more than twice as many threads as there are `parts` that may be
    divided, first its half: as many threads then work, each on fewer sums."""
    if config.split_k * threads_along_k(config) > 2 * parts:
        yield halved(config)
    yield config


def halved(config: Config) -> Config:
    """The same with thread tiles of half the sides, twice as many in a block, and blocks of half the size."""
    names = ("wm", "wn", "tm", "tn", "bm" if config.bm > config.bn else "bn")
    return replace(config, **{name: getattr(config, name) // 2 for name in names})


def within(config: Config, chunk: int) -> Iterator[Config]:
    """What stands for a config where all sums are chains of this length, or one chain (0): its tile, with
    steps as deep as those of a slice, as all, or deeper; its half, which multiplies sooner and so copies
    farther ahead; its tile by warps. Where an SM has little to do a step waits as long whatever its depth, so
    that deep ones are faster. Each whole, and with splits that are chunks. None if lanes share out k."""
    if lanes_k(config) > 1:
        return
    flat = replace(config, slice_k=1, flush_k=chunk, reduction="none", split_k=1)
    half = replace(halved(flat), stages=max(config.stages, _AHEAD))
    of_slice = max(config.bk // config.slice_k, _LEAST_BK)
    warps, deep = replace(flat, bm=config.wm, bn=config.wn), max(config.bk, _DEEP)
    tiles = {of_slice: (flat, half, warps), config.bk: (flat,), deep: (flat, warps, half), 2 * deep: (half,)}
    for tile, bk in [(tile, bk) for bk, those in tiles.items() for tile in those]:
        whole = replace(tile, bk=bk, unroll_k=min(tile.unroll_k, bk))
        if not any(value not in PARAMETER[name].values for name, value in whole.to_dict().items()):
            yield whole
            if chunk:
                yield in_chunks(whole)


def in_chunks(config: Config) -> Config:
    """The config with splits that are chunks, and as many blocks per SM as share them out best."""
    in_block = (config.bm // config.wm) * (config.bn // config.wn) * WARP
    blocks = [n for n in PARAMETER["min_blocks"].values if isinstance(n, int) and n * in_block <= _RESIDENT]
    return replace(config, reduction="chunks", split_k=1, min_blocks=max(blocks, default=1))


def in_ways(config: Config, ways: Sequence[Value]) -> Iterator[Config]:
    """The config, or those that stand for it if its way to split k is not among these."""
    if config.reduction in ways:
        yield config
        return
    if "chunks" in ways:
        yield in_chunks(config)
    if "chunks" not in ways or config.split_k <= _FEW_SPLITS:
        yield replace(config, reduction="none", split_k=1)


def fitted(config: Config, layout: str, limits: DeviceLimits, widest: int = 4) -> Config | None:
    """The config with the widest legal vectors (no wider than its own, nor than `widest`), the padding that
    the layout needs, and no more of the GPU's resources than there are. None if no such config is legal."""
    vectors = {
        name: [v for v in (4, 2, 1) if v <= getattr(config, name)] for name in ("vec_a", "vec_b", "vec_c")
    }
    for name, is_packed in (("vec_a", config.pack_a), ("vec_b", config.pack_b), ("vec_c", False)):
        if not is_packed:  # copies have aligned rows whatever the operand's
            vectors[name] = [v for v in vectors[name] if v <= widest]
    pads = dict.fromkeys((config.pad, 4, 8, 0))
    for smaller in _reduced(config, limits):
        for vec_a, vec_b, vec_c, pad in product(*vectors.values(), pads):
            has_narrow_vectors = (vec_a, vec_b, vec_c) != (config.vec_a, config.vec_b, config.vec_c)
            min_blocks = min(smaller.min_blocks, _NARROW_BLOCKS) if has_narrow_vectors else smaller.min_blocks
            found = replace(smaller, vec_a=vec_a, vec_b=vec_b, vec_c=vec_c, pad=pad, min_blocks=min_blocks)
            if not broken_rules(found, limits, example(layout), kinds=("template", "device")):
                return found
    return None


def _reduced(config: Config, limits: DeviceLimits) -> Iterator[Config]:
    """The config, then with fewer stages, fewer resident blocks, one fragment buffer and less depth. Through
    registers, in two stages, if nothing can be copied asynchronously; its splits in a second pass, if there
    are no clusters; its FMAs packed if they can be."""
    if not limits.has_async_copy:
        config = replace(config, copy_a="register", copy_b="register", stages=min(config.stages, 2))
    if config.reduction == "cluster" and not limits.has_clusters:
        config = replace(config, reduction="two_pass")
    config = in_pairs(config, are_packed=limits.has_packed_fma)
    depths = [bk for bk in (config.bk, config.bk // 2) if bk in PARAMETER["bk"].values]
    buffers = dict.fromkeys((config.frag_buffers, 1))
    blocks = [n for n in range(config.min_blocks, 0, -1) if n in PARAMETER["min_blocks"].values]
    stages = dict.fromkeys((config.stages, min(config.stages, 3), min(config.stages, 2)))
    for bk, frag_buffers, min_blocks, num_stages in product(depths, buffers, blocks, stages):
        unroll_k = min(config.unroll_k, bk // config.slice_k)
        yield replace(config, bk=bk, unroll_k=unroll_k, frag_buffers=frag_buffers, min_blocks=min_blocks,
                      stages=num_stages)  # fmt: skip


SIDE = 768  # of C: whole tiles of most sizes, where it must be
DEPTH = 512  # k, at least


def small_problem(layout: str, config: Config, limits: DeviceLimits) -> Gemm | None:
    """The problem on which a kernel is verified: as ragged as the kernel allows, and the same for most
    kernels, so that its operands are prepared once. None where the kernel serves no such problem."""
    depth, trans_a, trans_b = max(DEPTH, 8 * config.bk * config.split_k), layout[0] == "T", layout[1] == "T"
    # where rows are read by fours
    along_m, along_k = (4 if trans_a else 1), (4 if trans_b or not trans_a else 1)
    for m, n, k in (
        (SIDE + 1, SIDE + 1, depth + 1),
        (SIDE + along_m, SIDE + 4, depth + along_k),
        (SIDE, SIDE, depth),
        (2 * config.bm, 2 * config.bn, depth),
    ):
        gemm = Gemm(m, n, k, trans_a, trans_b)
        if not broken_rules(config, limits, gemm):
            return gemm
    return None

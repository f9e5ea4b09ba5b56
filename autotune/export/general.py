"""Kernels for shapes that were not tuned: legal relatives of tuned configs, and of tiles known to do well.

Relatives predicate their edges. Those that do not split k come once more with sums in blocks (flush_k), for
a deep k. All come twice, for operands with aligned rows and for any; with a handicap, by which a step of
theirs is taken to last longer than that of the config they descend from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ..device import DeviceLimits
from ..gemm import Gemm
from ..kernel.config import Config
from ..kernel.families import GENERAL, General
from ..kernel.rules import broken_rules

_FLUSHED = 1.03  # 0 to 3 % were measured (decision 0017)
# All unmeasured.
_PREDICATED = 1.03
_NARROWER = 1.05  # per operand with narrower vectors
UNTIMED = 1.15  # against figures of thumb: so that a kernel with times wins where they are close

_FLUSHES = ((64, 256), (math.inf, 1024))  # of k, by the shorter side of a tile (depth.py)
_NARROW_BLOCKS = 4  # resident blocks to ask for at most where narrower copies take more registers


def stand_in(layout: str) -> Gemm:
    """A problem of this layout, for rules and sizes that depend on the layout only."""
    return Gemm(4096, 4096, 4096, layout[0] == "T", layout[1] == "T")


def twins(config: Config, layout: str, limits: DeviceLimits) -> Iterator[tuple[Config, float]]:
    """Relatives of a tuned config that serve more shapes, and handicaps."""
    predicating = _PREDICATED if config.edges == "exact" else 1
    for variant, flushing in _variants(config):
        for twin in _relatives(variant, layout, limits):
            yield twin, flushing * predicating * _NARROWER ** _num_narrower(twin, config)


def family_kernels(layout: str, limits: DeviceLimits) -> Iterator[tuple[Config, float]]:
    """A few kernels for each kind of shape (families.GENERAL), and handicaps: none of them was timed."""
    for family in GENERAL:
        for tile in _launched(family):
            for variant, flushing in _variants(tile) if family.splits == (1,) else [(tile, 1.0)]:
                for kernel in _relatives(variant, layout, limits):
                    yield kernel, UNTIMED * flushing


def _variants(config: Config) -> Iterator[tuple[Config, float]]:
    """The config and, where its sums are as deep as k, the same in blocks; handicaps."""
    yield config, 1.0
    if config.flush_k == 0 and config.reduction in ("none", "last_wave"):
        side = min(config.bm, config.bn)  # of a tile: it serves a C that has a side as short
        yield replace(config, flush_k=next(flush for most, flush in _FLUSHES if side <= most)), _FLUSHED


def _launched(family: General) -> Iterator[Config]:
    """The tile as it is where it is to be used in one part, and in parts, whose number is an argument."""
    if 1 in family.splits:
        yield family.tile
    parts = [split_k for split_k in family.splits if split_k > 1]
    if parts:  # two_pass against last_block: decision 0022
        yield replace(family.tile, reduction="two_pass", split_k=parts[0])


def _relatives(config: Config, layout: str, limits: DeviceLimits) -> Iterator[Config]:
    """The config with predicated edges, for operands with aligned rows and for any."""
    for widest in (4, 1):
        twin = _fitted(replace(config, edges="predicated"), layout, limits, widest)
        if twin is not None:
            is_narrower = _num_narrower(twin, config) > 0
            yield replace(twin, min_blocks=min(twin.min_blocks, _NARROW_BLOCKS)) if is_narrower else twin


def _num_narrower(twin: Config, config: Config) -> int:
    return sum(getattr(twin, name) < getattr(config, name) for name in ("vec_a", "vec_b", "vec_c"))


def _fitted(config: Config, layout: str, limits: DeviceLimits, widest: int) -> Config | None:
    """The config with the widest legal vectors up to `widest`, padding as its layout needs it, and no
    more of the GPU than this one has. None if nothing of the kind is legal."""
    widths = [width for width in (4, 2, 1) if width <= widest]
    widths_a = [4, 2, 1] if config.pack_a else widths  # copies have aligned rows whatever the operand's
    widths_b = [4, 2, 1] if config.pack_b else widths
    pads = dict.fromkeys((config.pad, 4, 8, 0))
    for smaller in _ever_smaller(config, limits):
        for vec_a, vec_b, vec_c, pad in product(widths_a, widths_b, widths, pads):
            fitted = replace(smaller, vec_a=vec_a, vec_b=vec_b, vec_c=vec_c, pad=pad)
            if not broken_rules(fitted, limits, stand_in(layout), kinds=("template", "device")):
                return fitted
    return None


def _ever_smaller(config: Config, limits: DeviceLimits) -> Iterator[Config]:
    """The config, then with fewer stages, fewer resident blocks, one fragment buffer and less depth.
    Through registers, in two stages, where nothing can be copied asynchronously."""
    if not limits.has_async_copy:
        config = replace(config, copy_a="register", copy_b="register", stages=min(config.stages, 2))
    depths = (config.bk, config.bk // 2)
    buffers = dict.fromkeys((config.frag_buffers, 1))
    blocks = range(config.min_blocks, 0, -1)
    stages = dict.fromkeys((config.stages, min(config.stages, 3), min(config.stages, 2)))
    for bk, frag_buffers, min_blocks, num_stages in product(depths, buffers, blocks, stages):
        unroll_k = min(config.unroll_k, bk // config.slice_k)
        yield replace(config, bk=bk, unroll_k=unroll_k, frag_buffers=frag_buffers, min_blocks=min_blocks,
                      stages=num_stages)  # fmt: skip

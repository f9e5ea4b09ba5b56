"""The starting points of a search of our kernel: configs that are expected to do well, as points of its
feasible set.

Each is mapped to the nearest point, so that a card without cp.async or a matrix with odd rows starts from its
closest relative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...kernel.config import PACKED_ORDERS, WARP, Config, Value, lanes_k, threads_along_k
from ...kernel.feasible_set import FeasibleSet
from ...kernel.relatives import in_pairs
from ...kernel.templates import AnyConfig
from .candidates import Candidates

_TILE = ("tm", "tn", "wm", "wn", "bm", "bn", "bk", "slice_k", "reduction")
_LEAST_BK = 8  # that is searched
_FEW_SPLITS = 4  # with which none, in place of chunks, may be as fast


def seeds(space: FeasibleSet, configs: Iterable[AnyConfig]) -> Iterator[int]:
    """Numbers of points to start with, in the order of these configs, one for each tile and way to split k.

    Where the set has no config with its way to split k, a config stands for its tile with splits that are
    chunks, or without splits; where none shares out k among threads, for a tile that does not; where the GPU
    does FMAs in pairs, for itself with pairs. It is left out if its nearest point has another tile or another
    way to split k: a recorded sample may hold nothing similar, and a distant relative is no better
    than a random point. None for a space that is not of our kernels, as in recordings of other tools. Those
    of the kernel on tensor cores count as they are. Each is computed when it is requested.
    """
    if not space.is_autotune or not len(space):
        yield from (n for n in space.find_all([c.to_dict() for c in configs]) if n is not None)
        return
    candidates = Candidates(space)
    ways, slices, orders = (
        next(factor for factor in space.factors if name in factor.names).reached(name)
        for name in ("reduction", "slice_k", "order")
    )
    here: Iterable[Config] = (c for c in configs if isinstance(c, Config))
    if slices == [1]:
        here = (other for c in here for other in _side_by_side(c))
    here = (other for c in here for other in _in_ways(c, ways))
    if not set(PACKED_ORDERS).isdisjoint(orders):
        here = (in_pairs(c, are_packed=True) for c in here)
    for config in one_per_tile(here):
        wanted = config.to_dict()
        number = candidates.nearest(wanted)
        if _tile(space.point(number)) == _tile(wanted) and space.are_points(np.array([number]))[0]:
            yield number


def _side_by_side(config: Config) -> Iterator[Config]:
    """The config; if its threads share out k, those with about as large tiles whose threads lie side by side
    instead, where splits take the place of lanes."""
    depth = max(config.bk // config.slice_k, _LEAST_BK)
    flat = replace(config, slice_k=1, bk=depth, unroll_k=depth)
    if threads_along_k(config) == 1:
        yield config
    elif lanes_k(config) == 1:
        yield flat
    else:
        for down in (1, 4, WARP):
            wm, wn = config.tm * down, config.tn * (WARP // down)
            sizes = {"wm": wm, "wn": wn, "bm": max(config.bm, wm), "bn": max(config.bn, wn)}
            yield replace(flat, **sizes, reduction="two_pass", split_k=WARP)


def _in_ways(config: Config, ways: Sequence[Value]) -> Iterator[Config]:
    """The config, or those that stand for it if its way to split k is not among these."""
    if config.reduction in ways:
        yield config
        return
    if "chunks" in ways:
        yield replace(config, reduction="chunks", split_k=1)
    if "chunks" not in ways or config.split_k <= _FEW_SPLITS:
        yield replace(config, reduction="none", split_k=1)


def one_per_tile(configs: Iterable[Config]) -> Iterator[Config]:
    """The first of each tile and way to split k."""
    tried = set()
    for config in configs:
        if (tile := _tile(config.to_dict())) not in tried:
            tried.add(tile)
            yield config


def _tile(point: Mapping[str, Value]) -> tuple[Value, ...]:
    return tuple(point[name] for name in _TILE)

"""The starting points of a search of our kernel: configs that are expected to do well, as points of its
feasible set.

Each is mapped to the nearest point, so that a card without cp.async or a matrix with odd rows starts from its
closest relative.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...kernel.config import PACKED_ORDERS, Config, Value
from ...kernel.feasible_set import FeasibleSet
from ...kernel.launch import num_splits
from ...kernel.relatives import in_pairs, in_ways, shrunk, side_by_side
from ...kernel.rules import MANY_SUMS
from ...kernel.scaled_config import AnyConfig
from .candidates import Candidates

_TILE = ("tm", "tn", "wm", "wn", "bm", "bn", "bk", "slice_k", "reduction")


def seeds(space: FeasibleSet, configs: Iterable[AnyConfig], k: int = 0) -> Iterator[int]:
    """Numbers of points to start with, in the order of these configs, one for each tile and way to split k.

    Where the set has no config with its way to split k, a config stands for its tile with splits that are
    chunks, or without splits; where none shares out k among threads, for a tile that does not, and for a
    smaller one where work is scarce; where the GPU does FMAs in pairs, for itself with pairs. It is left out
    if its nearest point has another tile or another way to split k: a recorded sample may hold nothing
    similar, and a distant relative is no better than a random point. None for a space that is not of our
    kernels, as in recordings of other tools. Those of the kernel on tensor cores count as they are. Each is
    computed when it is requested.
    """
    if not space.is_autotune or not len(space):
        yield from (n for n in space.find_all([c.to_dict() for c in configs]) if n is not None)
        return
    candidates = Candidates(space)
    ways, slices, orders, lengths = (
        next(factor for factor in space.factors if name in factor.names).reached(name)
        for name in ("reduction", "slice_k", "order", "flush_k")
    )
    here: Iterable[Config] = (c for c in configs if isinstance(c, Config))
    if slices == [1]:
        least = Config.from_dict(space.point(candidates.nearest({"tm": 1, "tn": 1})))
        if least.tm * least.tn < MANY_SUMS:  # each SM has little work
            parts = num_splits(int(lengths[0]), 1, k) if "chunks" in ways else 1
            here = (small for c in here for small in shrunk(c, parts))
        here = (other for c in here for other in side_by_side(c))
    here = (other for c in here for other in in_ways(c, ways))
    if not set(PACKED_ORDERS).isdisjoint(orders):
        here = (in_pairs(c, are_packed=True) for c in here)
    for config in one_per_tile(here):
        wanted = config.to_dict()
        number = candidates.nearest(wanted)
        if _tile(space.point(number)) == _tile(wanted) and space.are_points(np.array([number]))[0]:
            yield number


def one_per_tile(configs: Iterable[Config]) -> Iterator[Config]:
    """The first of each tile and way to split k."""
    tried = set()
    for config in configs:
        if (tile := _tile(config.to_dict())) not in tried:
            tried.add(tile)
            yield config


def _tile(point: Mapping[str, Value]) -> tuple[Value, ...]:
    return tuple(point[name] for name in _TILE)

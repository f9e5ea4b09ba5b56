"""Where a search of our kernel starts: shapes of kernel that are known to do well somewhere.

Each is mapped to the nearest point of the feasible set, so a card without cp.async or a matrix with
odd rows starts from its closest relative.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...device import DeviceLimits
from ...gemm import Gemm
from ...kernel import resources
from ...kernel.config import PARAMETER, Config, Value
from ...kernel.families import DEEP_K, FEW_COLUMNS, FEW_ROWS, LARGE, MEDIUM, TILES, dot_products
from ...kernel.feasible_set import FeasibleSet
from ...kernel.rules import FEW, LEAST_DEPTH
from .candidates import Candidates

_SHORT = 64  # a side of C up to here is served by thin tiles
_DEEP = 8  # k over the longer side of C (of all products) from here on: few tiles, long sums
_LONG_SUMS = 2048  # k from here on is worth summing in blocks
_FLUSH_K, _NUM_FLUSHED = 1024, 4
_ESSENTIAL = ("tm", "tn", "wm", "wn", "bm", "bn", "bk", "slice_k", "reduction")
_DOT_SPLITS = 4
_SPLITS = (("two_pass", 1), ("last_block", 1), ("two_pass", 2))  # and the waves of blocks that they make


def known_good(space: FeasibleSet, gemm: Gemm, limits: DeviceLimits) -> list[int]:
    """Numbers of the points to start with, most promising first, each once.

    A wish is left out where its nearest point has another tile or another way to split k: a recorded
    sample may hold nothing like it, and a distant relative is worth no more than a point at random.
    Empty for a space that is not of our kernel, as in recordings of other tools.
    """
    return _nearest(space, wishes(gemm, limits))


def known_elsewhere(
    space: FeasibleSet, gemm: Gemm, limits: DeviceLimits, suited: Collection[int]
) -> list[int]:
    """As `known_good`, from what suits any kind of problem, less these points: to try now and then. A tile
    that leads on some shape often does on shapes of other kinds (decision 0025), in the splits that it needs
    there."""
    found = _nearest(space, (_split_where_few(tile, gemm, limits) for tile in TILES))
    return [number for number in found if number not in suited]


def _nearest(space: FeasibleSet, wanted: Iterable[dict[str, Value]]) -> list[int]:
    if set(space.names) != set(PARAMETER) or not len(space):
        return []
    candidates = Candidates(space)
    nearest = ((wish, candidates.nearest(wish)) for wish in wanted)
    return list(dict.fromkeys(number for wish, number in nearest if _is_kin(wish, space.point(number))))


def _is_kin(wish: Mapping[str, Value], point: Mapping[str, Value]) -> bool:
    return all(wish[name] == point[name] for name in _ESSENTIAL if name in wish)


def wishes(gemm: Gemm, limits: DeviceLimits) -> list[dict[str, Value]]:
    """Configs that suit this kind of problem, feasible or not, most promising first."""
    tiles = [*LARGE, *MEDIUM]
    if gemm.m <= _SHORT:
        tiles = [*FEW_ROWS, *MEDIUM]
    elif gemm.n <= _SHORT:
        tiles = [*FEW_COLUMNS, *MEDIUM]
    found = [tile.to_dict() for tile in tiles]
    is_deep = gemm.k >= _DEEP * max(gemm.m, gemm.n) * gemm.batch
    if is_deep or min(gemm.m, gemm.n) <= _SHORT:
        tiles_of_splits = [*DEEP_K, MEDIUM[0], *tiles[:2]]
        splits = [
            {**tile.to_dict(), "reduction": reduction, "split_k": filling_splits(tile, gemm, limits, waves)}
            for tile in tiles_of_splits
            for reduction, waves in _SPLITS
        ]
        if is_deep:  # unsplit, few tiles leave the GPU idle, and one long sum is inaccurate
            return [*_dots(gemm), *splits]
        found += splits
    if gemm.k >= _LONG_SUMS:  # some of these as accurate as a library that splits k
        found += [{**tile.to_dict(), "flush_k": _FLUSH_K} for tile in tiles[:_NUM_FLUSHED]]
    return [*_dots(gemm), *found]


def _dots(gemm: Gemm) -> list[dict[str, Value]]:
    """Configs whose lanes share out k, for a C so narrow that this may pay; also split."""
    tiles = [*dot_products(gemm.n)] if gemm.n <= FEW and not gemm.trans_a else []
    tiles += dot_products(gemm.m, are_rows=True) if gemm.m <= FEW and gemm.trans_b else []
    split = [{**tile.to_dict(), "reduction": "two_pass", "split_k": _DOT_SPLITS} for tile in tiles]
    return [*(tile.to_dict() for tile in tiles), *split]


def filling_splits(tile: Config, gemm: Gemm, limits: DeviceLimits, waves: int) -> int:
    """Splits of k by which this tile's blocks fill so many waves, if k is long enough; two at least."""
    registers = resources.expected_registers(tile, limits)
    resident = max(1, int(resources.blocks_per_sm(tile, limits, gemm, registers)))
    filling = waves * limits.num_sms * resident // int(resources.tiles(tile, gemm))
    return max(2, min(filling, gemm.k // LEAST_DEPTH))


def _split_where_few(tile: Config, gemm: Gemm, limits: DeviceLimits) -> dict[str, Value]:
    """The tile; in splits that fill a wave, where its blocks alone fill a third of one at most and share out
    no k."""
    splits = filling_splits(tile, gemm, limits, waves=1)
    if tile.reduction in ("none", "last_wave") and splits > 2:
        return {**tile.to_dict(), "reduction": "two_pass", "split_k": splits}
    return tile.to_dict()

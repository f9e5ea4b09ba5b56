"""Where a search of our kernel starts: shapes of kernel that are known to do well somewhere.

Each is mapped to the nearest point of the feasible set, so a card without cp.async or a matrix with
odd rows starts from its closest relative.
"""

from __future__ import annotations

from ..config import PARAMETER, Value
from ..families import DEEP_K, FEW_COLUMNS, FEW_ROWS, LARGE, MEDIUM
from ..gemm import Gemm
from ..space import FeasibleSet
from .candidates import Candidates

_SHORT = 64  # a side of C up to here is served by thin tiles
_DEEP = 8  # k over the longer side of C from here on: few tiles, long sums

_LONG_SUMS = 1536  # k from here on is worth summing in blocks
_FLUSH_K, _NUM_FLUSHED = 512, 4

_SPLITS = (("last_block", 4), ("last_block", 16), ("two_pass", 64))


def known_good(space: FeasibleSet, gemm: Gemm) -> list[int]:
    """Numbers of the points to start with, most promising first, each once. Empty for a space that is
    not of our kernel, as in recordings of other tools."""
    if set(space.names) != set(PARAMETER) or not len(space):
        return []
    candidates = Candidates(space)
    return list(dict.fromkeys(candidates.nearest(wish) for wish in wishes(gemm)))


def wishes(gemm: Gemm) -> list[dict[str, Value]]:
    """Configs that suit this kind of problem, feasible or not."""
    tiles = [*LARGE, *MEDIUM]
    if gemm.m <= _SHORT:
        tiles = [*FEW_ROWS, *MEDIUM]
    elif gemm.n <= _SHORT:
        tiles = [*FEW_COLUMNS, *MEDIUM]
    found = [tile.to_dict() for tile in tiles]
    if gemm.k >= _DEEP * max(gemm.m, gemm.n) or min(gemm.m, gemm.n) <= _SHORT:
        split = [*DEEP_K, *tiles[:2], MEDIUM[0]]
        found += [{**t.to_dict(), "reduction": r, "split_k": s} for t in split for r, s in _SPLITS]
    if gemm.k >= _LONG_SUMS:  # some of these as accurate as a library that splits k
        found += [{**tile.to_dict(), "flush_k": _FLUSH_K} for tile in tiles[:_NUM_FLUSHED]]
    return found

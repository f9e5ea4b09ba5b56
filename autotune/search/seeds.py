"""Where a search of our kernel starts: shapes of kernel that are known to do well somewhere.

Each is mapped to the nearest point of the feasible set, so a card without cp.async or a matrix with
odd rows starts from its closest relative.
"""

from __future__ import annotations

from ..gemm import Gemm
from ..space import PARAMETER, Config, FeasibleSet, Value
from .candidates import Candidates

_SHORT = 64  # a side of C up to here is served by thin tiles
_DEEP = 8  # k over the longer side of C from here on: few tiles, long sums

_PROBE = Config()  # 64x128x16, 8x8 per thread, 128 threads, 3 stages: best of a first probe on an H200

# Square tiles, in the order of their names in public SGEMM kernels.
_LARGE = (
    _PROBE,
    # 128x256x8, 16x8 per thread, 256 threads, asynchronous copies (salykova)
    Config(bm=128, bn=256, bk=8, wm=64, wn=64, tm=16, tn=8, unroll_k=8, stages=2, min_blocks=1),
    Config(bm=128, bn=256, bk=8, wm=64, wn=64, tm=16, tn=8, unroll_k=8, stages=4, min_blocks=1),
    # 128x128x8, 8x8 per thread, 256 threads, double buffer through registers (CUTLASS, siboehm)
    Config(
        bm=128, bn=128, bk=8, wm=32, wn=64, tm=8, tn=8, unroll_k=8, stages=2, frag_buffers=2,
        copy_a="register", copy_b="register", vec_a=4, bursts=1, min_blocks=2,
    ),
    # the same tile with asynchronous copies
    Config(bm=128, bn=128, bk=8, wm=32, wn=64, tm=8, tn=8, unroll_k=8, stages=3, min_blocks=2),
    Config(bm=128, bn=128, bk=16, wm=64, wn=64, tm=16, tn=8, stages=3, min_blocks=2),
)  # fmt: skip
_MEDIUM = (
    Config(bm=64, bn=64, bk=16, wm=32, wn=32, tm=8, tn=4, stages=3, min_blocks=4),
    Config(bm=32, bn=64, bk=32, wm=16, wn=32, tm=4, tn=4, stages=3, unroll_k=32, min_blocks=4),
)
_FEW_ROWS = (
    Config(bm=16, bn=128, bk=32, wm=16, wn=32, tm=4, tn=4, unroll_k=32, stages=4, min_blocks=2),
    Config(bm=1, bn=128, bk=32, wm=1, wn=32, tm=1, tn=1, unroll_k=32, stages=4, min_blocks=2),
    Config(bm=4, bn=128, bk=32, wm=4, wn=32, tm=1, tn=4, unroll_k=32, stages=4, min_blocks=2),
)
_FEW_COLUMNS = (
    Config(bm=128, bn=16, bk=32, wm=32, wn=16, tm=4, tn=4, unroll_k=32, stages=4, min_blocks=2),
    Config(bm=128, bn=4, bk=32, wm=32, wn=4, tm=4, tn=1, unroll_k=32, stages=4, min_blocks=2),
)
_SPLITS = (4, 16, 64)


def known_good(space: FeasibleSet, gemm: Gemm) -> list[int]:
    """Numbers of the points to start with, most promising first, each once. Empty for a space that is
    not of our kernel, as in recordings of other tools."""
    if set(space.names) != set(PARAMETER) or not len(space):
        return []
    candidates = Candidates(space)
    return list(dict.fromkeys(candidates.nearest(wish) for wish in wishes(gemm)))


def wishes(gemm: Gemm) -> list[dict[str, Value]]:
    """Configs that suit this kind of problem, feasible or not."""
    tiles = [*_LARGE, *_MEDIUM]
    if gemm.m <= _SHORT:
        tiles = [*_FEW_ROWS, *_MEDIUM, _PROBE]
    elif gemm.n <= _SHORT:
        tiles = [*_FEW_COLUMNS, *_MEDIUM, _PROBE]
    found = [tile.to_dict() for tile in tiles]
    if gemm.k >= _DEEP * max(gemm.m, gemm.n) or min(gemm.m, gemm.n) <= _SHORT:
        split = [*tiles[:2], *_MEDIUM]
        found += [{**t.to_dict(), "reduction": "two_pass", "split_k": s} for t in split for s in _SPLITS]
    return found

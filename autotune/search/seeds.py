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

# Square tiles. The first three led timed sweeps of 4096^3 on an H200 (NN, TN and NT); then come the tiles
# that public SGEMM kernels are known by.
_LARGE = (
    Config(
        bm=128, bn=256, bk=16, wm=32, wn=128, tm=16, tn=8, stages=3, bursts=2, frag_buffers=2,
        min_blocks=1, group=4,
    ),
    Config(
        bm=128, bn=128, bk=32, wm=64, wn=32, tm=8, tn=8, unroll_k=32, stages=2, bursts=4, frag_buffers=2,
        min_blocks=2, group=4,
    ),
    Config(
        bm=256, bn=128, bk=16, wm=128, wn=32, tm=16, tn=8, stages=3, bursts=4, frag_buffers=2,
        min_blocks=1, group=4,
    ),
    # the tiles of the last wave shared out: led at 4097^3
    Config(
        bm=128, bn=64, bk=16, wm=64, wn=32, tm=8, tn=8, stages=6, bursts=8, frag_buffers=2, min_blocks=3,
        group=16, reduction="last_wave", split_k=2,
    ),
    # 64x128x16, 8x8 per thread, 128 threads, four blocks per SM
    Config(stages=2, copy_b="register", bursts=1, frag_buffers=2),
    Config(),
    # 128x256x8, 16x8 per thread, 256 threads, asynchronous copies (salykova)
    Config(bm=128, bn=256, bk=8, wm=64, wn=64, tm=16, tn=8, unroll_k=8, stages=4, min_blocks=1),
    # 128x128x8, 8x8 per thread, 256 threads, double buffer through registers (CUTLASS, siboehm)
    Config(
        bm=128, bn=128, bk=8, wm=32, wn=64, tm=8, tn=8, unroll_k=8, stages=2, frag_buffers=2,
        copy_a="register", copy_b="register", vec_a=4, bursts=1, min_blocks=2,
    ),
)  # fmt: skip
# Slices of k give a small C enough warps: these led at 1024^3, 512^3 and 256^3 on an H200.
_MEDIUM = (
    Config(
        bm=32, bn=256, bk=32, wm=16, wn=128, tm=8, tn=8, slice_k=2, stages=4, frag_buffers=2,
        order="pair_snake", min_blocks=1,
    ),
    Config(
        bm=32, bn=64, bk=64, wm=32, wn=64, tm=8, tn=8, slice_k=4, stages=3, bursts=8, order="col_snake",
        min_blocks=1,
    ),
    Config(
        bm=32, bn=32, bk=64, wm=32, wn=16, tm=2, tn=8, slice_k=2, unroll_k=32, stages=6, bursts=1, pad=2,
        frag_buffers=2, min_blocks=1,
    ),
    Config(
        bm=64, bn=128, bk=8, wm=64, wn=32, tm=8, tn=8, slice_k=2, unroll_k=4, stages=2, bursts=1,
        frag_buffers=2, order="col_snake", min_blocks=1,
    ),
    Config(bm=64, bn=64, bk=16, wm=32, wn=32, tm=8, tn=4, stages=3, bursts=1, min_blocks=4),
)  # fmt: skip
_FEW_ROWS = (
    Config(
        bm=1, bn=32, bk=64, wm=1, wn=32, tm=1, tn=1, slice_k=8, unroll_k=8, stages=6, bursts=1, pad=1,
        vec_c=1, frag_buffers=2, order="zigzag", min_blocks=4,
    ),
    Config(
        bm=16, bn=256, bk=8, wm=8, wn=128, tm=8, tn=4, unroll_k=8, stages=4, bursts=1, frag_buffers=2,
        min_blocks=1,
    ),
    Config(
        bm=8, bn=128, bk=64, wm=8, wn=64, tm=4, tn=4, slice_k=2, unroll_k=32, stages=3, bursts=1,
        frag_buffers=2, min_blocks=1,
    ),
    Config(
        bm=48, bn=64, bk=16, wm=16, wn=64, tm=16, tn=2, slice_k=2, unroll_k=8, stages=2, bursts=1,
        frag_buffers=2, copy_a="register", vec_a=4, vec_c=2, min_blocks=3,
    ),
)  # fmt: skip
_FEW_COLUMNS = (
    Config(
        bm=64, bn=64, bk=64, wm=32, wn=64, tm=8, tn=8, slice_k=4, stages=3, bursts=8, frag_buffers=2,
        order="pair_snake", min_blocks=1,
    ),
    Config(
        bm=96, bn=32, bk=32, wm=96, wn=8, tm=6, tn=4, unroll_k=32, stages=2, bursts=1, pad=2,
        copy_a="register", vec_a=4, frag_buffers=2, order="pair_snake", min_blocks=1,
    ),
    Config(
        bm=64, bn=64, bk=16, wm=64, wn=16, tm=8, tn=4, stages=2, bursts=1, copy_a="register", vec_a=4,
        min_blocks=6,
    ),
    Config(bm=128, bn=16, bk=32, wm=32, wn=16, tm=4, tn=4, unroll_k=32, stages=4, bursts=1, min_blocks=2),
)  # fmt: skip
_DEEP_K = (
    Config(
        bm=32, bn=64, bk=32, wm=32, wn=32, tm=2, tn=16, slice_k=8, unroll_k=4, stages=4, bursts=1, pad=2,
        frag_buffers=2, order="zigzag", min_blocks=1,
    ),
)  # fmt: skip
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
    tiles = [*_LARGE, *_MEDIUM]
    if gemm.m <= _SHORT:
        tiles = [*_FEW_ROWS, *_MEDIUM]
    elif gemm.n <= _SHORT:
        tiles = [*_FEW_COLUMNS, *_MEDIUM]
    found = [tile.to_dict() for tile in tiles]
    if gemm.k >= _DEEP * max(gemm.m, gemm.n) or min(gemm.m, gemm.n) <= _SHORT:
        split = [*_DEEP_K, *tiles[:2], _MEDIUM[0]]
        found += [{**t.to_dict(), "reduction": r, "split_k": s} for t in split for r, s in _SPLITS]
    return found

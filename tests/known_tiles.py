"""Configs of many kinds that tests stand on: each led on some shape, or is known from public kernels."""

from __future__ import annotations

from autotune.kernel.config import Config

# Square tiles. The first three led timed sweeps of 4096^3 on an H200 (NN, TN and NT); then come the tiles
# that public SGEMM kernels are known by.
LARGE = (
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
    # A packed, and so transposed before the product: led at 4096^3 and, with B packed too, at 4097^3
    Config(
        bm=128, bn=128, bk=32, wm=16, wn=128, tm=8, tn=8, unroll_k=32, stages=2, bursts=2, frag_buffers=2,
        min_blocks=2, pack_a=1, vec_a=4, pad=0, order="col_snake", reduction="last_wave", split_k=6,
    ),
    Config(
        bm=128, bn=128, bk=32, wm=16, wn=128, tm=8, tn=8, unroll_k=32, stages=2, bursts=4, frag_buffers=2,
        min_blocks=2, pack_a=1, pack_b=1, vec_a=4, pad=0, reduction="last_wave", split_k=4,
    ),
    # the largest thread tile, its main loop short enough for the instruction cache: led at 6336x6144x4096
    Config(
        bm=192, bn=256, bk=8, wm=96, wn=64, tm=12, tn=16, unroll_k=8, stages=4, bursts=2, min_blocks=1,
        pack_a=1, vec_a=4, pad=0, order="col_snake", group=4,
    ),
    # the tiles of the last wave shared out
    Config(
        bm=128, bn=64, bk=16, wm=64, wn=32, tm=8, tn=8, stages=6, bursts=8, frag_buffers=2, min_blocks=3,
        group=16, reduction="last_wave", split_k=2,
    ),
    # sums flushed, the tiles of the last wave split: led at 2048x11008x4096
    Config(
        bm=128, bn=128, bk=16, wm=64, wn=64, tm=16, tn=8, stages=3, bursts=8, flush_k=1024, frag_buffers=2,
        min_blocks=1, pack_a=1, vec_a=4, pad=0, group=16, reduction="last_wave", split_k=8,
    ),
    # two slices of k in a block: led at 3072^3 and, with B packed too, at 4097^3
    Config(
        bm=64, bn=128, bk=32, wm=16, wn=128, tm=8, tn=8, slice_k=2, stages=2, bursts=2, frag_buffers=2,
        min_blocks=2, pack_a=1, vec_a=4, pad=0, order="col_snake", raster="m", reduction="last_wave",
        split_k=4,
    ),
    Config(
        bm=128, bn=64, bk=32, wm=32, wn=64, tm=8, tn=8, slice_k=2, stages=4, bursts=2, frag_buffers=2,
        min_blocks=2, pack_a=1, pack_b=1, vec_a=4, pad=0, reduction="last_wave", split_k=4,
    ),
    # led at 5124x700x2048
    Config(
        bm=96, bn=64, bk=32, wm=48, wn=64, tm=12, tn=8, slice_k=2, stages=2, bursts=8, min_blocks=3,
        reduction="last_wave", split_k=2,
    ),
    # sums flushed, rows of a warp as long as the tile: led at 2048^3
    Config(
        bm=128, bn=256, bk=16, wm=16, wn=256, tm=16, tn=8, stages=3, flush_k=1024, frag_buffers=2,
        min_blocks=1, group=16,
    ),
    # small tiles, many per SM, for a C that takes longer to store than to compute: led at 16384x16384x64
    Config(
        bm=64, bn=64, bk=16, wm=32, wn=64, tm=8, tn=8, stages=2, bursts=1, frag_buffers=2, min_blocks=5,
        pack_a=1, vec_a=4, pad=0, order="col_snake",
    ),
    # 64x128x16, 8x8 per thread, 128 threads, four blocks per SM
    Config(),
    # 128x256x8, 16x8 per thread, 256 threads, asynchronous copies (salykova)
    Config(bm=128, bn=256, bk=8, wm=64, wn=64, tm=16, tn=8, unroll_k=8, stages=4, min_blocks=1),
    # 128x128x8, 8x8 per thread, 256 threads, double buffer through registers (CUTLASS, siboehm)
    Config(
        bm=128, bn=128, bk=8, wm=32, wn=64, tm=8, tn=8, unroll_k=8, stages=2, frag_buffers=2,
        copy_a="register", copy_b="register", vec_a=4, bursts=1, min_blocks=2,
    ),
)  # fmt: skip
# Slices of k give a small C enough warps: the first three led at 1024^3, 512^3 and 256^3 on an H200.
MEDIUM = (
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
    # clusters of two or four that split k: led at 512^3 and 1760x128x1760
    Config(
        bm=32, bn=128, bk=32, wm=16, wn=128, tm=8, tn=8, slice_k=2, stages=3, bursts=8, frag_buffers=2,
        min_blocks=3, reduction="cluster", split_k=2,
    ),
    # led at 256^3, in two searches of two
    Config(
        bm=32, bn=32, bk=32, wm=32, wn=16, tm=2, tn=8, slice_k=2, stages=6, bursts=1, pad=2, frag_buffers=2,
        order="pair_snake", min_blocks=1, reduction="cluster", split_k=2,
    ),
    # led at 1536^3, close at 3072^3
    Config(
        bm=32, bn=256, bk=32, wm=32, wn=64, tm=8, tn=8, slice_k=2, stages=2, bursts=2, copy_a="register",
        vec_a=4, frag_buffers=2, order="col_snake", min_blocks=2, group=16, reduction="last_wave", split_k=4,
    ),
    # led at 1024^3, close at 1000^3
    Config(
        bm=32, bn=256, bk=32, wm=8, wn=256, tm=8, tn=8, slice_k=2, stages=4, bursts=4, frag_buffers=2,
        order="col_snake", min_blocks=1, group=8,
    ),
    # tiles of 48 rows, by which a C comes out in whole waves: led at 1536^3 and 3072x128x1024
    Config(
        bm=48, bn=128, bk=32, wm=48, wn=64, tm=12, tn=8, slice_k=2, stages=2, bursts=8, min_blocks=1,
        group=16,
    ),
    Config(
        bm=48, bn=64, bk=64, wm=48, wn=32, tm=6, tn=8, slice_k=4, stages=3, bursts=4, pad=2, frag_buffers=2,
        order="col_snake", min_blocks=2,
    ),
    # as many threads, grouped otherwise: led later at 3072x128x1024 and at 512^3
    Config(
        bm=48, bn=128, bk=32, wm=48, wn=32, tm=6, tn=8, slice_k=2, stages=3, bursts=4, pad=2, frag_buffers=2,
        order="col_snake", min_blocks=1, reduction="cluster", split_k=2,
    ),
    Config(
        bm=32, bn=64, bk=64, wm=16, wn=64, tm=8, tn=4, slice_k=2, unroll_k=32, stages=3, bursts=8,
        order="zigzag", min_blocks=1, group=16,
    ),
)  # fmt: skip
FEW_ROWS = (
    Config(
        bm=1, bn=32, bk=64, wm=1, wn=32, tm=1, tn=1, slice_k=8, unroll_k=8, stages=6, bursts=1, pad=1,
        vec_c=1, frag_buffers=2, order="zigzag", min_blocks=4,
    ),
    Config(
        bm=16, bn=256, bk=8, wm=8, wn=128, tm=8, tn=4, unroll_k=8, stages=4, bursts=1, frag_buffers=2,
        min_blocks=1,
    ),
    # short sums, as accurate as a library that splits k: led at 16x11008x4096
    Config(
        bm=16, bn=128, bk=32, wm=16, wn=64, tm=8, tn=4, slice_k=2, stages=3, bursts=1, flush_k=256,
        frag_buffers=2, copy_a="register", vec_a=4, order="zigzag", min_blocks=1, raster="m",
        reduction="cluster", split_k=4,
    ),
    # led at 35x700x2048
    Config(
        bm=48, bn=64, bk=16, wm=48, wn=16, tm=6, tn=4, stages=4, bursts=1, pad=2, frag_buffers=2,
        order="zigzag", min_blocks=1, raster="m", reduction="two_pass", split_k=12,
    ),
    # led there later, with two slices of k
    Config(
        bm=48, bn=64, bk=16, wm=48, wn=32, tm=6, tn=8, slice_k=2, unroll_k=8, stages=4, bursts=1, pad=2,
        frag_buffers=2, order="zigzag", min_blocks=3, group=4, reduction="two_pass", split_k=12,
    ),
    # led at 1x4096x4096
    Config(
        bm=1, bn=64, bk=64, wm=1, wn=64, tm=1, tn=2, slice_k=4, stages=6, bursts=1, pad=1, vec_c=2,
        frag_buffers=2, order="zigzag", min_blocks=1, raster="m", reduction="cluster", split_k=2,
    ),
)  # fmt: skip
FEW_COLUMNS = (
    Config(
        bm=64, bn=64, bk=64, wm=32, wn=64, tm=8, tn=8, slice_k=4, stages=3, bursts=8, frag_buffers=2,
        order="pair_snake", min_blocks=1,
    ),
    # led at 2560x64x2560, 5 % before what a search without it chose
    Config(
        bm=32, bn=64, bk=32, wm=32, wn=64, tm=8, tn=8, slice_k=2, stages=2, order="pair_snake", min_blocks=5,
        group=2, reduction="two_pass", split_k=6,
    ),
    Config(
        bm=64, bn=64, bk=16, wm=64, wn=16, tm=8, tn=4, stages=2, bursts=1, copy_a="register", vec_a=4,
        min_blocks=6,
    ),
    Config(bm=128, bn=16, bk=32, wm=32, wn=16, tm=4, tn=4, unroll_k=32, stages=4, bursts=1, min_blocks=2),
    # led at 65536x64x64
    Config(
        bm=64, bn=64, bk=16, wm=32, wn=64, tm=8, tn=8, stages=2, bursts=1, copy_a="register", vec_a=4,
        frag_buffers=2, min_blocks=8,
    ),
    # led at 100000x32x256
    Config(
        bm=192, bn=32, bk=16, wm=48, wn=32, tm=6, tn=8, stages=2, bursts=2, pad=2, copy_a="register", vec_a=4,
        frag_buffers=2, order="col_snake", min_blocks=4, raster="m",
    ),
    # led there later, with two slices of k
    Config(
        bm=96, bn=32, bk=32, wm=96, wn=16, tm=6, tn=8, slice_k=2, stages=2, bursts=1, pad=2,
        copy_a="register", vec_a=4, frag_buffers=2, order="zigzag", min_blocks=3, raster="m",
    ),
    # led at 7680x64x2560
    Config(
        bm=128, bn=64, bk=32, wm=32, wn=64, tm=8, tn=8, slice_k=2, stages=3, bursts=8, frag_buffers=2,
        min_blocks=1, group=8, reduction="cluster", split_k=2,
    ),
)  # fmt: skip
DEEP_K = (
    # led at 64x64x100000, in 128 splits
    Config(
        bm=32, bn=64, bk=32, wm=32, wn=64, tm=8, tn=8, slice_k=4, unroll_k=8, stages=3, min_blocks=1, group=2,
    ),
    # led there before, in 64 splits
    Config(
        bm=32, bn=64, bk=64, wm=32, wn=64, tm=16, tn=4, slice_k=8, unroll_k=8, stages=3, bursts=1,
        frag_buffers=2, min_blocks=1,
    ),
    # led at 512x512x16384, in 16 splits
    Config(
        bm=128, bn=256, bk=16, wm=16, wn=256, tm=16, tn=8, stages=3, flush_k=1024, frag_buffers=2,
        min_blocks=1, order="pair_snake", raster="m",
    ),
)  # fmt: skip

// two_pass, chunks: every split stores a plane of sums in the workspace, and a second kernel adds the planes.
//
//   sgemm          split 0 ─► plane 0 ┐
//                  split 1 ─► plane 1 ├─► sgemm_reduce: element by element, in a fixed order ─► epilogue
//                  split 2 ─► plane 2 ┘
//
// A plane is row-major over whole tiles. In the second pass a thread adds one element of C over the planes of its
// group. A large C is one group. Where C is small and its splits are many, groups of threads share them out, and
// the first adds what the others found to its own, through shared memory (64x64x100000 in 128 splits on an H200: 25.5
// us, in one group 32.8). Loops are not unrolled further: the kernel runs for a microsecond or two, and its code
// is fetched first.
//
// Chunks are added one after another, the first chunk's first, and scaled in the end: so the order is the same for any
// C. Their groups share out the loads alone, and pass the sum on: one group would wait for memory 13 times for the 196
// chunks of 64x64x100000.
#pragma once

#include "config.cuh"
#include "epilogue.cuh"
#include "primitives.cuh"
#include "thread_tile.cuh"

// The first pass: stores the block's tile, times alpha unless it is a chunk, in the plane of its split: in vectors,
// since planes are whole tiles. Chunks are multiplied by a one of which the compiler does not know (thread_tile.cuh).
__device__ __forceinline__ void store_plane(const float (&sums)[TM][TN], const ThreadTile& thread, int origin_m,
                                            int origin_n, float alpha, float* plane, int padded_n) {
    if (thread.gave_sums()) return;
    if constexpr (ARE_CHUNKS) {
        alpha = SCALED;
        forget(alpha);
    }
    thread.for_each_vector<CHUNK_N>(sums, [&](int row, int column, Vec<CHUNK_N> product) {
        store_global<CHUNK_N>(plane + static_cast<long long>(origin_m + row) * padded_n + origin_n + column,
                              scaled(product, alpha));
    });
}

#include "reduce_planes.cuh"

// SLICE_K: the sums of a block's slices become one.
//
// Each slice of warps has multiplied its own part of every tile's k, so a block holds SLICE_K sets of sums of the same
// tile of C. One slice after another lays its sums down in shared memory, and the threads of slice 0 add them
// to theirs: in the order of the slices, so that results repeat bit by bit.
//
//   slice 3 ─┐
//   slice 2 ─┼─► shared memory (element, thread) ─► slice 0, which goes on alone
//   slice 1 ─┘   (neighbouring threads touch neighbouring banks)
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "thread_tile.cuh"

__device__ __forceinline__ void add_slices(float (&sums)[TM][TN], const ThreadTile& thread) {
    if constexpr (SLICE_K == 1) return;
    float* const own = shared_memory() + ThreadTile::owner();
    for (int slice = 1; slice < SLICE_K; ++slice) {
        barrier();  // WAR: the last tile, or the slice before, has been read by all
        if (thread.slice == slice && ThreadTile::is_first_lane()) {
#pragma unroll
            for (int e = 0; e < TM * TN; ++e)
                store_shared<1>(own + e * OWNERS, {sums[e / TN][e % TN]});
        }
        barrier();  // RAW: the sums of the slice are written before slice 0 reads them
        if (!thread.gave_sums()) {
#pragma unroll
            for (int e = 0; e < TM * TN; ++e)
                sums[e / TN][e % TN] += load_shared<1>(own + e * OWNERS).v[0];
        }
    }
}

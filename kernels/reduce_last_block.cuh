// last_block, last_wave: the block that comes last for a tile adds the sums of all splits.
//
// Every split stores its sums in the workspace, then draws a ticket from the tile's counter. Who draws the
// highest ticket knows that all others have stored theirs: it adds them in the order of the splits, whoever
// was last, so that results repeat bit by bit, and goes on to the epilogue. The others end.
//
//   split 0   sums ─► workspace   ticket 1   ends
//   split 1   sums ─► workspace   ticket 0   ends
//   split 2   sums ─► workspace   ticket 2   0 + 1 + 2 ─► epilogue
//
// Workspace: sums as (split, tile, element, thread), so that each access of a warp is contiguous; after them a
// counter per tile, zero before and after every launch. `tile` counts the tiles that are split.
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "thread_tile.cuh"

// Returns whether this block is the last one, and then holds in `sums` those of all splits.
__device__ __forceinline__ bool add_splits(float (&sums)[TM][TN], const ThreadTile& thread, int tile, int tiles,
                                           int split, int splits, float* workspace) {
    constexpr int TILE = BM * BN;
    float* const own = workspace + static_cast<long long>(tile) * TILE + ThreadTile::owner();
    const long long plane = static_cast<long long>(tiles) * TILE;  // floats from one split to the next
    unsigned* const counters = reinterpret_cast<unsigned*>(workspace + plane * splits);
    if (!thread.gave_sums()) {
#pragma unroll
        for (int e = 0; e < TM * TN; ++e)
            store_global<1>(own + split * plane + e * OWNERS, {sums[e / TN][e % TN]});
    }
    fence_global();  // RAW: this thread's sums are out before its block is counted
    unsigned* const ticket = reinterpret_cast<unsigned*>(shared_memory());
    barrier();  // RAW: sums of all threads are out; WAR: shared memory is no longer read
    if (thread_index() == 0) *ticket = atomic_add(counters + tile, 1);
    barrier();  // RAW: the ticket is written
    if (*ticket != static_cast<unsigned>(splits - 1)) return false;
    fence_global();  // RAW: sums of the other blocks are read after their counting was seen
    if (thread_index() == 0) counters[tile] = 0;  // zero again for the next launch
    if (thread.gave_sums()) return true;
#pragma unroll
    for (int e = 0; e < TM * TN; ++e) sums[e / TN][e % TN] = 0;
    for (int z = 0; z < splits; ++z) {
#pragma unroll
        for (int e = 0; e < TM * TN; ++e)
            sums[e / TN][e % TN] += load_l2<1>(own + z * plane + e * OWNERS).v[0];
    }
    return true;
}

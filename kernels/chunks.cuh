// chunks: blocks share out the chunks of all tiles evenly, and the sum of each chunk is a plane of its own.
//
// A block has a chunk of a tile (the grid's y is the chunk). Where such blocks fill no whole wave, there are as many as
// stay on the GPU at once instead, along x alone, and each takes as many steps of k as any other, of one tile after the
// other. So a share may begin and end within a chunk: then the block before has begun it, and hands over its
// sums, with which this block goes on. What is added is added in the same order as by one block. For 3 tiles of
// 4 chunks, 5 steps deep, of which the first is 2 deep, and 10 blocks of 5 steps:
//
//   tile     0                   1                   2
//   chunk    0 |1    |2    |3    |0 |1    |2    |3    |0 |1    |2    |3
//   step     --|-----|-----|-----|--|-----|-----|-----|--|-----|-----|-----
//   block    0    |1    |2    |3    |4    |5    |6    |7    |8    |9    |
//
// A block begins with its last chunk, and ends with its first: what the next one waits for comes first, what it waits
// for itself comes last. Shares are as deep as a chunk at least, so that two blocks at most have part of one, and no
// block waits before it has handed over. It waits for a block that was launched before it; and as many are launched as
// are resident together.
//
// Workspace: planes as of two_pass; then the sums that each block hands over, as (block, element, thread); then a
// counter for each block: 1 while these are to be taken, zero before and after every launch.
#pragma once

#include "config.cuh"
#include "flush.cuh"
#include "main_loop.cuh"
#include "primitives.cuh"
#include "reduce_two_pass.cuh"
#include "schedule.cuh"
#include "thread_tile.cuh"

#if REDUCTION == REDUCTION_CHUNKS  // others are spared its compile

// Part of a chunk, of one tile: steps of its k, counted from the tile's first.
struct ChunkPart {
    int tile;
    int chunk;
    int first;
    int end;
    bool is_begun;  // by the block before
    bool goes_on;   // in the next one
};

// The steps of all tiles, one behind the other, and a block's share of them: begin to end.
struct ChunkShare {
    int steps;        // of a tile; one, which is empty, where k is 0
    int first_steps;  // of its first chunk
    long long begin;
    long long end;

    __device__ __forceinline__ ChunkShare(int tiles, int chunks, int k_tiles)
        : steps(max_of(k_tiles, 1)), first_steps(steps - (chunks - 1) * FLUSH_TILES) {
        if (grid_y() == chunks) {
            begin = static_cast<long long>(block_index_x()) * steps + begin_of(block_index_y());
            end = begin + (block_index_y() == 0 ? first_steps : FLUSH_TILES);
        } else {
            const long long all = static_cast<long long>(tiles) * steps;
            begin = all * block_index_x() / grid_x();
            end = all * (block_index_x() + 1) / grid_x();
        }
    }

    // The step with which a chunk begins.
    __device__ __forceinline__ int begin_of(int chunk) const {
        return chunk == 0 ? 0 : first_steps + (chunk - 1) * FLUSH_TILES;
    }

    // What the share has of the chunk that holds the step before `stop`.
    __device__ __forceinline__ ChunkPart part_before(long long stop) const {
        const int tile = static_cast<int>((stop - 1) / steps);
        const long long first_of_tile = static_cast<long long>(tile) * steps;
        const int last = static_cast<int>(stop - 1 - first_of_tile);
        const int chunk = last < first_steps ? 0 : (last - first_steps) / FLUSH_TILES + 1;
        const bool is_begun = first_of_tile + begin_of(chunk) < begin;
        const int first = is_begun ? static_cast<int>(begin - first_of_tile) : begin_of(chunk);
        return {tile, chunk, first, last + 1, is_begun, last + 1 < begin_of(chunk + 1)};
    }
};

// What blocks hand over to the next, in the workspace behind the planes.
struct HandedSums {
    float* sums;
    unsigned* counters;

    __device__ __forceinline__ HandedSums(float* workspace, int tiles, int chunks) {
        constexpr int TILE = BM * BN;
        sums = workspace + static_cast<long long>(tiles) * chunks * TILE;
        counters = reinterpret_cast<unsigned*>(sums + static_cast<long long>(grid_x()) * TILE);
    }

    __device__ __forceinline__ float* of(int block) const {
        return sums + static_cast<long long>(block) * (BM * BN) + ThreadTile::owner();
    }

    // To the next block.
    __device__ __forceinline__ void give(const float (&own)[TM][TN]) const {
        float one = SCALED, *const to = of(block_index_x());
        forget(one);  // as store_plane does
#pragma unroll
        for (int e = 0; e < TM * TN; ++e) store_global<1>(to + e * OWNERS, {own[e / TN][e % TN] * one});
        fence_global();  // RAW: this thread's sums are out before its block is counted
        barrier();       // RAW: sums of all threads are out
        if (thread_index() == 0) atomic_add(counters + block_index_x(), 1);
    }

    // From the block before, which has them soon.
    __device__ __forceinline__ void take(float (&own)[TM][TN]) const {
        unsigned* const counter = counters + block_index_x() - 1;
        if (thread_index() == 0) wait_for_counter(counter);
        barrier();       // RAW: the sums are out
        fence_global();  // RAW: they are read after their counting was seen
        if (thread_index() == 0) *counter = 0;  // zero again for the next launch
        const float* const from = of(block_index_x() - 1);
#pragma unroll
        for (int e = 0; e < TM * TN; ++e) own[e / TN][e % TN] = load_l2<1>(from + e * OWNERS).v[0];
    }
};

// The first pass: planes of all chunks. Arguments as of `sgemm`; C comes in the second pass.
__device__ __forceinline__ void multiply_chunks(int m, int n, int k, float alpha, const float* READ_ONLY a,
                                                long long lda, const float* READ_ONLY b, long long ldb,
                                                float* __restrict__ workspace, int chunks, const Schedule& schedule,
                                                const Batch& batch) {
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN, tiles = tiles_m * tiles_n;
    const int all_tiles = IS_BATCHED ? tiles * batch.products : tiles;
    const int k_tiles = k / STEP_K + (k % STEP_K != 0), ragged = k - (k_tiles - 1) * STEP_K;
    const ChunkShare share(all_tiles, chunks, k_tiles);
    const HandedSums handed(workspace, all_tiles, chunks);
    const ThreadTile thread;
    wait_for_kernels_before();
    let_next_kernel_begin();
#pragma unroll 1
    for (long long stop = share.end; stop > share.begin;) {
        const ChunkPart part = share.part_before(stop);
        stop -= part.end - part.first;
        const int product = IS_BATCHED ? schedule.product.quotient(part.tile) : 0;
        const TileCoord tile = tile_coord(part.tile - product * tiles, schedule);
        const int origin_m = tile.m * BM, origin_n = tile.n * BN;
        const int k_begin = part.first == 0 ? 0 : ragged + (part.first - 1) * STEP_K;
        float sums[TM][TN] = {};
        if (part.is_begun) handed.take(sums);
        if (k_tiles > 0 && alpha != 0) {
            const float* const own_a = IS_BATCHED ? a + product * batch.stride_a : a;
            const float* const own_b = IS_BATCHED ? b + product * batch.stride_b : b;
            Pipeline pipeline{CopyA(own_a, lda, origin_m, m, k_begin), CopyB(own_b, ldb, origin_n, n, k_begin),
                              part.end - part.first};
            multiply_all(pipeline, thread, part.first == 0 ? ragged : STEP_K, sums);
        }
        if (part.goes_on) {
            handed.give(sums);
        } else {
            const long long plane = static_cast<long long>(tiles_m * BM) * (tiles_n * BN);
            float* const own = workspace + (static_cast<long long>(product) * chunks + part.chunk) * plane;
            store_plane(sums, thread, origin_m, origin_n, alpha, own, tiles_n * BN);
        }
        barrier();  // WAR: all have read the last tile before the next part's first one is copied
    }
}

#else
__device__ void multiply_chunks(int, int, int, float, const float*, long long, const float*, long long, float*, int,
                                const Schedule&, const Batch&);
#endif

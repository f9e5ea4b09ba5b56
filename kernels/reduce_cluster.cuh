// cluster: the blocks that share out k of a tile run at the same time and read one another's shared memory.
//
// Every split lays its sums down in its own shared memory, as (vector, thread). Then all splits add, each of
// them every CLUSTER-th vector: it reads that of every split, in their order, so that results repeat bit by bit, and
// hands the total to the epilogue. The slices of a block share that out once more. Where the sums do not fit in
// shared memory at once this takes several rounds. Neither workspace nor second launch is needed.
//
//             vector 0   1   2   3   4 ...
//   split 0          ▓   ░   ▓   ░   ▓        ▓: split 0 adds this vector of both splits and stores it in C
//   split 1          ▓   ░   ▓   ░   ▓        ░: split 1 does
#pragma once

#include "config.cuh"
#include "epilogue.cuh"
#include "primitives.cuh"
#include "thread_tile.cuh"

// Stands before a kernel whose blocks of one x, `size` of them along y, are a cluster: they run at the same time,
// and block_index_y() is a block's rank in it.
#if REDUCTION == REDUCTION_CLUSTER
#define CLUSTER_OF(size) __cluster_dims__(1, size, 1)
#else
#define CLUSTER_OF(size)  // unknown before sm_90
#endif

__device__ __forceinline__ void add_cluster_and_store(const float (&sums)[TM][TN], const ThreadTile& thread, int split,
                                                      int origin_m, int origin_n, int m, int n, float alpha,
                                                      float beta, float* c, long long ldc) {
    constexpr int IN_ROW = TN / VEC_C, VECTORS = TM * IN_ROW, PITCH = THREADS_PER_SLICE * VEC_C;
    constexpr int FIT = max_of(SHARED_FLOATS / PITCH, 1), ROUND = FIT < VECTORS ? FIT : VECTORS;
    constexpr int ADDERS = CLUSTER * SLICE_K, MOST = (ROUND + ADDERS - 1) / ADDERS;
    const int adder = thread.slice * CLUSTER + split;  // this thread adds vectors adder + i * ADDERS of a round
    float* const own = shared_memory() + thread_index() % THREADS_PER_SLICE * VEC_C;
    barrier();  // WAR: the last tile, or the last slice's sums, have been read by all of the block
#pragma unroll
    for (int first = 0; first < VECTORS; first += ROUND) {
        const int count = first + ROUND < VECTORS ? ROUND : VECTORS - first;
        if (thread.slice == 0) {
#pragma unroll
            for (int at = 0; at < count; ++at) {
                const int i = (first + at) / IN_ROW, j = (first + at) % IN_ROW * VEC_C;
                Vec<VEC_C> vector;
#pragma unroll
                for (int e = 0; e < VEC_C; ++e) vector.v[e] = sums[i][j + e];
                store_shared<VEC_C>(own + at * PITCH, vector);
            }
        }
        cluster_barrier();  // RAW: all splits have written what is read next
        Vec<VEC_C> totals[MOST] = {};
#pragma unroll
        for (int z = 0; z < CLUSTER; ++z) {
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                if (adder + i * ADDERS >= count) continue;
                const Vec<VEC_C> partial = load_cluster<VEC_C>(own + (adder + i * ADDERS) * PITCH, z);
#pragma unroll
                for (int e = 0; e < VEC_C; ++e) totals[i].v[e] += partial.v[e];
            }
        }
        cluster_barrier();  // WAR: all have read before the next round is written, or a block ends
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            const int v = first + adder + i * ADDERS;
            const int at_m = origin_m + thread.row(v / IN_ROW), at_n = origin_n + thread.column(v % IN_ROW * VEC_C);
            if (v >= first + count || (IS_PREDICATED && (at_m >= m || at_n >= n))) continue;
            scale_and_store<VEC_C>(c + at_m * ldc + at_n, totals[i], alpha, beta);
        }
    }
}

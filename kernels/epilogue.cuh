// From sums to C: what the slices of a block, and the blocks of a split, add up to, scaled and stored.
//
// All additions have a fixed order, so results are the same bit by bit from run to run.
#pragma once

#include "config.cuh"
#include "multiply.cuh"
#include "primitives.cuh"

// C = alpha * AB + beta * C for VEC neighbours. BLAS: beta = 0 does not read C, so NaN there stays out.
template <int VEC> __device__ __forceinline__ void scale_and_store(float* c, Vec<VEC> product, float alpha, float beta) {
    Vec<VEC> old = {};
    if (beta != 0) old = load_global<VEC>(c);
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
        const float scaled = alpha * product.v[e];
        product.v[e] = beta != 0 ? multiply_add(beta, old.v[e], scaled) : scaled;
    }
    store_global<VEC>(c, product);
}

// Adds the sums of all slices into those of slice 0, through shared memory: (element, thread), so that
// neighbouring threads touch neighbouring banks.
__device__ __forceinline__ void add_slices(float (&sums)[TM][TN], const Lane& lane) {
    if constexpr (SLICE_K == 1) return;
    float* mine = shared_memory() + thread_index() % THREADS_PER_SLICE;
    for (int slice = 1; slice < SLICE_K; ++slice) {
        barrier();  // WAR: the last tile, or the slice before, has been read by all
        if (lane.slice == slice) {
#pragma unroll
            for (int e = 0; e < TM * TN; ++e)
                store_shared<1>(mine + e * THREADS_PER_SLICE, {sums[e / TN][e % TN]});
        }
        barrier();  // RAW: the sums of the slice are written before slice 0 reads them
        if (lane.slice == 0) {
#pragma unroll
            for (int e = 0; e < TM * TN; ++e)
                sums[e / TN][e % TN] += load_shared<1>(mine + e * THREADS_PER_SLICE).v[0];
        }
    }
}

// Calls visit(row, column, sums of VEC_C neighbours) for all elements of this thread.
template <class Visit>
__device__ __forceinline__ void for_each_vector(const Lane& lane, const float (&sums)[TM][TN], Visit visit) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; j += VEC_C) {
            Vec<VEC_C> product;
#pragma unroll
            for (int e = 0; e < VEC_C; ++e) product.v[e] = sums[i][j + e];
            visit(lane.row(i), lane.column(j), product);
        }
    }
}

// Stores the block's tile of C, whose first element is (origin_m, origin_n).
__device__ __forceinline__ void store_tile(const float (&sums)[TM][TN], const Lane& lane, int origin_m, int origin_n,
                                           int m, int n, float alpha, float beta, float* c, long long ldc) {
    if (lane.slice != 0) return;
    for_each_vector(lane, sums, [&](int row, int column, Vec<VEC_C> product) {
        const int at_m = origin_m + row, at_n = origin_n + column;
        if (IS_PREDICATED && (at_m >= m || at_n >= n)) return;  // edge: C
        scale_and_store<VEC_C>(c + at_m * ldc + at_n, product, alpha, beta);
    });
}

// two_pass: the split's plane of sums, row-major over whole tiles, for sgemm_reduce to add.
__device__ __forceinline__ void store_plane(const float (&sums)[TM][TN], const Lane& lane, int origin_m, int origin_n,
                                            float* plane, int padded_n) {
    if (lane.slice != 0) return;
    for_each_vector(lane, sums, [&](int row, int column, Vec<VEC_C> product) {
        store_global<VEC_C>(plane + static_cast<long long>(origin_m + row) * padded_n + origin_n + column, product);
    });
}

// last_block, last_wave: every split leaves its sums in the workspace; the block that comes last for a
// tile adds them in the order of the splits. Returns whether this block is the one. `tile` counts the
// `tiles` that are split. Planes are kept as (tile, element, thread): each access of a warp is contiguous.
__device__ __forceinline__ bool add_splits(float (&sums)[TM][TN], const Lane& lane, int tile, int tiles, int split,
                                           int splits, float* workspace) {
    constexpr int TILE = BM * BN;
    float* mine = workspace + static_cast<long long>(tile) * TILE + thread_index() % THREADS_PER_SLICE;
    const long long plane = static_cast<long long>(tiles) * TILE;
    unsigned* counters = reinterpret_cast<unsigned*>(workspace + plane * splits);
    if (lane.slice == 0) {
#pragma unroll
        for (int e = 0; e < TM * TN; ++e)
            store_global<1>(mine + split * plane + e * THREADS_PER_SLICE, {sums[e / TN][e % TN]});
    }
    fence_global();  // this thread's sums are out before its block is counted
    unsigned* ticket = reinterpret_cast<unsigned*>(shared_memory());
    barrier();  // sums of all threads are out, and shared memory is no longer read
    if (thread_index() == 0) *ticket = atomic_add(counters + tile, 1);
    barrier();  // the ticket is written
    if (*ticket != static_cast<unsigned>(splits - 1)) return false;
    fence_global();  // sums of the other blocks are read after their counting was seen
    if (thread_index() == 0) counters[tile] = 0;  // zero again for the next launch
    if (lane.slice != 0) return true;
#pragma unroll
    for (int e = 0; e < TM * TN; ++e) sums[e / TN][e % TN] = 0;
    for (int z = 0; z < splits; ++z) {
#pragma unroll
        for (int e = 0; e < TM * TN; ++e)
            sums[e / TN][e % TN] += load_l2<1>(mine + z * plane + e * THREADS_PER_SLICE).v[0];
    }
    return true;
}

// cluster: every split leaves its sums in its shared memory, as (vector, thread); then each split adds every
// CLUSTER-th vector of all splits, in their order, and stores it. The slices share that out. Where the sums do not
// fit at once this takes several rounds.
__device__ __forceinline__ void add_cluster_and_store(const float (&sums)[TM][TN], const Lane& lane, int split,
                                                      int origin_m, int origin_n, int m, int n, float alpha,
                                                      float beta, float* c, long long ldc) {
    constexpr int IN_ROW = TN / VEC_C, VECTORS = TM * IN_ROW, PITCH = THREADS_PER_SLICE * VEC_C;
    constexpr int FIT = max_of(SHARED_FLOATS / PITCH, 1), ROUND = FIT < VECTORS ? FIT : VECTORS;
    constexpr int ADDERS = CLUSTER * SLICE_K, SHARE = (ROUND + ADDERS - 1) / ADDERS;
    const int own = lane.slice * CLUSTER + split;  // this thread adds vectors own + i * ADDERS of a round
    float* mine = shared_memory() + thread_index() % THREADS_PER_SLICE * VEC_C;
    barrier();  // WAR: the last tile, or the last slice's sums, have been read by all of the block
#pragma unroll
    for (int first = 0; first < VECTORS; first += ROUND) {
        const int count = first + ROUND < VECTORS ? ROUND : VECTORS - first;
        if (lane.slice == 0) {
#pragma unroll
            for (int at = 0; at < count; ++at) {
                const int i = (first + at) / IN_ROW, j = (first + at) % IN_ROW * VEC_C;
                Vec<VEC_C> vector;
#pragma unroll
                for (int e = 0; e < VEC_C; ++e) vector.v[e] = sums[i][j + e];
                store_shared<VEC_C>(mine + at * PITCH, vector);
            }
        }
        cluster_barrier();  // RAW: all splits have written what is read next
        Vec<VEC_C> totals[SHARE] = {};
#pragma unroll
        for (int z = 0; z < CLUSTER; ++z) {
#pragma unroll
            for (int i = 0; i < SHARE; ++i) {
                if (own + i * ADDERS >= count) continue;
                const Vec<VEC_C> partial = load_cluster<VEC_C>(mine + (own + i * ADDERS) * PITCH, z);
#pragma unroll
                for (int e = 0; e < VEC_C; ++e) totals[i].v[e] += partial.v[e];
            }
        }
        cluster_barrier();  // WAR: all have read before the next round is written, or a block ends
#pragma unroll
        for (int i = 0; i < SHARE; ++i) {
            const int v = first + own + i * ADDERS;
            const int at_m = origin_m + lane.row(v / IN_ROW), at_n = origin_n + lane.column(v % IN_ROW * VEC_C);
            if (v >= first + count || (IS_PREDICATED && (at_m >= m || at_n >= n))) continue;  // edge: C
            scale_and_store<VEC_C>(c + at_m * ldc + at_n, totals[i], alpha, beta);
        }
    }
}

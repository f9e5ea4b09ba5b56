// From sums to C: C = alpha * AB + beta * C, VEC_C neighbours at a time, and nothing beyond C's edge.
//
// A vector lies inside C or outside it as a whole: the host gives vectors only to rows that are made of them
// (launch.refusal), so the edge is tested once for each.
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "staged_rows.cuh"
#include "thread_tile.cuh"

// What becomes of VEC neighbours of the product. BLAS: beta = 0 does not read C, so NaN there stays out. Sums that
// were scaled before come with alpha = 1.
template <int VEC>
__device__ __forceinline__ void scale_and_store(float* c, Vec<VEC> product, float alpha, float beta) {
    Vec<VEC> old = {};
    if (beta != 0) old = load_global<VEC>(c);
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
        const float scaled = alpha * product.v[e];
        product.v[e] = beta != 0 ? multiply_add(beta, old.v[e], scaled) : scaled;
    }
    store_global<VEC>(c, product);
}

// Stores the block's tile of C by rows, a warp side by side: for a C that takes no vectors.
__device__ __forceinline__ void store_staged(const float (&sums)[TM][TN], const ThreadTile& thread, int origin_m,
                                             int origin_n, int m, int n, float alpha, float beta, float* c,
                                             long long ldc) {
    const StagedRows rows;
#pragma unroll
    for (int first = 0; first < TM; first += STAGED_ROUND) {
        barrier();  // WAR: the last tile, or the round before, has been read by all
        if (thread.slice == 0) StagedRows::write(sums, thread, first, alpha);
        barrier();  // RAW: the rows are whole before they are read
#pragma unroll 1
        for (int at = 0; at < StagedRows::COUNT; at += StagedRows::AT_ONCE) {
            if (StagedRows::COUNT % StagedRows::AT_ONCE != 0 && rows.row + at >= StagedRows::COUNT) break;
            const int at_m = origin_m + StagedRows::row_of_tile(first, rows.row + at);
            if (IS_PREDICATED && at_m >= m) continue;  // edge: C
#pragma unroll
            for (int j = 0; j < BN; j += StagedRows::WIDTH) {
                const int at_n = origin_n + rows.column + j;
                if (IS_PREDICATED && at_n >= n) continue;  // edge: C
                scale_and_store<VEC_C>(c + at_m * ldc + at_n, load_shared<VEC_C>(rows.vector(at, j)), SCALED, beta);
            }
        }
    }
}

// Stores the block's tile of C, whose first element is (origin_m, origin_n).
__device__ __forceinline__ void store_tile(const float (&sums)[TM][TN], const ThreadTile& thread, int origin_m,
                                           int origin_n, int m, int n, float alpha, float beta, float* c,
                                           long long ldc) {
    if constexpr (HAS_STAGED_ROWS) {
        store_staged(sums, thread, origin_m, origin_n, m, n, alpha, beta, c, ldc);
        return;
    }
    if (thread.slice != 0) return;
    thread.for_each_vector<VEC_C>(sums, [&](int row, int column, Vec<VEC_C> product) {
        const int at_m = origin_m + row, at_n = origin_n + column;
        if (IS_PREDICATED && (at_m >= m || at_n >= n)) return;  // edge: C
        scale_and_store<VEC_C>(c + at_m * ldc + at_n, product, alpha, beta);
    });
}

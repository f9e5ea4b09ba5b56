// From sums to C: C = alpha * AB + beta * C, VEC_C neighbours at a time, and nothing beyond C's edge.
//
// A vector lies inside C or outside it as a whole: the host gives vectors only to rows that are made of them
// (launch.refusal), so the edge is tested once for each.
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "thread_tile.cuh"

// What becomes of VEC neighbours of the product. BLAS: beta = 0 does not read C, so NaN there stays out.
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

// Stores the block's tile of C, whose first element is (origin_m, origin_n).
__device__ __forceinline__ void store_tile(const float (&sums)[TM][TN], const ThreadTile& thread, int origin_m,
                                           int origin_n, int m, int n, float alpha, float beta, float* c,
                                           long long ldc) {
    if (thread.slice != 0) return;
    thread.for_each_vector(sums, [&](int row, int column, Vec<VEC_C> product) {
        const int at_m = origin_m + row, at_n = origin_n + column;
        if (IS_PREDICATED && (at_m >= m || at_n >= n)) return;  // edge: C
        scale_and_store<VEC_C>(c + at_m * ldc + at_n, product, alpha, beta);
    });
}

// Sums to C: of a thread, whose Place tells where each belongs.
#pragma once

#include "output.cuh"

// Stores a thread's sums in C, or scaled in the plane of their split, whose rows are whole tiles.
__device__ __forceinline__ void store_sums(const float (&sums)[SUMS], const Place& at, int origin_m, int origin_n,
                                           const Output& output, float* plane, long long padded_n) {
    constexpr int VEC = IS_SPLIT ? 2 : VEC_C;
#pragma unroll
    for (int i = 0; i < SUMS; i += VEC) {
        const int at_m = origin_m + at.row + Place::row_of(i), at_n = origin_n + at.column + Place::column_of(i);
        Vec<VEC> product;
#pragma unroll
        for (int e = 0; e < VEC; ++e) product.v[e] = IS_SPLIT ? output.alpha * sums[i + e] : sums[i + e];
        if constexpr (IS_SPLIT) {
            store_global<VEC>(plane + at_m * padded_n + at_n, product);
        } else {
            if (at_m >= output.m || at_n >= output.n) continue;  // edge: C
            output.store<VEC>(at_m, at_n, product, output.alpha);
        }
    }
}

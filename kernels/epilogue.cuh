// From sums to C: scaled, with what the kernel adds to that, VEC_C neighbours at a time, and nothing beyond C's edge.
//
// A vector lies inside C or outside it as a whole: the host gives vectors only to rows that are made of them
// (launch.refusal), so the edge is tested once for each.
#pragma once

#include "config.cuh"
#include "output.cuh"
#include "primitives.cuh"
#include "staged_rows.cuh"
#include "thread_tile.cuh"

// Stores the block's tile of C by rows, a warp side by side: for a C that takes no vectors.
__device__ __forceinline__ void store_staged(const float (&sums)[TM][TN], const ThreadTile& thread, int origin_m,
                                             int origin_n, const Output& output) {
    const StagedRows rows;
#pragma unroll
    for (int first = 0; first < TM; first += STAGED_ROUND) {
        barrier();  // WAR: the last tile, or the round before, has been read by all
        if (!thread.gave_sums()) StagedRows::write(sums, thread, first, output.alpha);
        barrier();  // RAW: the rows are whole before they are read
#pragma unroll 1
        for (int at = 0; at < StagedRows::COUNT; at += StagedRows::AT_ONCE) {
            if (StagedRows::COUNT % StagedRows::AT_ONCE != 0 && rows.row + at >= StagedRows::COUNT) break;
            const int at_m = origin_m + StagedRows::row_of_tile(first, rows.row + at);
            if (IS_PREDICATED && at_m >= output.m) continue;  // edge: C
#pragma unroll
            for (int j = 0; j < BN; j += StagedRows::WIDTH) {
                const int at_n = origin_n + rows.column + j;
                if (IS_PREDICATED && at_n >= output.n) continue;  // edge: C
                output.store<VEC_C>(at_m, at_n, load_shared<VEC_C>(rows.vector(at, j)), SCALED);
            }
        }
    }
}

// Stores the block's tile of C, whose first element is (origin_m, origin_n).
__device__ __forceinline__ void store_tile(const float (&sums)[TM][TN], const ThreadTile& thread, int origin_m,
                                           int origin_n, const Output& output) {
    if constexpr (HAS_STAGED_ROWS) {
        store_staged(sums, thread, origin_m, origin_n, output);
        return;
    }
    if (thread.gave_sums()) return;
    thread.for_each_vector<VEC_C>(sums, [&](int row, int column, Vec<VEC_C> product) {
        const int at_m = origin_m + row, at_n = origin_n + column;
        if (IS_PREDICATED && (at_m >= output.m || at_n >= output.n)) return;  // edge: C
        output.store<VEC_C>(at_m, at_n, product, output.alpha);
    });
}

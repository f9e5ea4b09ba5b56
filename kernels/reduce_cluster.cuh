// cluster: the blocks that share out k of a tile run at the same time and read one another's shared memory.
//
// Every split writes its sums, times alpha, to its own shared memory, by rows (staged_rows.cuh). Then all splits add,
// each of them its share of the rows: it reads those of every split, in their order, so that results repeat bit by
// bit, and hands the totals to the epilogue. Where the tile does not fit in shared memory at once this takes
// several rounds. Neither workspace nor second launch is needed.
//
//             row 0   1   2   3   4 ...
//   split 0       ▓   ░   ▓   ░   ▓        ▓: split 0 adds this row of both splits and stores it in C
//   split 1       ▓   ░   ▓   ░   ▓        ░: split 1 does
#pragma once

#include "config.cuh"
#include "epilogue.cuh"
#include "primitives.cuh"
#include "staged_rows.cuh"
#include "thread_tile.cuh"

// Stands before a kernel whose blocks of one x, `size` of them along y, are a cluster: they run at the same time,
// and block_index_y() is a block's rank in it.
#if REDUCTION == REDUCTION_CLUSTER
#define CLUSTER_OF(size) __cluster_dims__(1, size, 1)
#else
#define CLUSTER_OF(size)  // unknown before sm_90
#endif

__device__ __forceinline__ void add_cluster_and_store(const float (&sums)[TM][TN], const ThreadTile& thread, int split,
                                                      int origin_m, int origin_n, const Output& output) {
    constexpr int COUNT = StagedRows::COUNT, IN_ROW = StagedRows::IN_ROW, WIDTH = StagedRows::WIDTH;
    constexpr int STEP = StagedRows::AT_ONCE * CLUSTER;        // rows that the cluster touches at once
    constexpr bool IS_EVEN = COUNT % STEP == 0;
    constexpr int MOST = (COUNT + STEP - 1) / STEP * IN_ROW;  // vectors of a thread per round
    StagedRows rows;
    rows.row += split * StagedRows::AT_ONCE;
    barrier();  // WAR: the last tile, or the last slice's sums, have been read by all of the block
#pragma unroll
    for (int first = 0; first < TM; first += STAGED_ROUND) {
        if (!thread.gave_sums()) StagedRows::write(sums, thread, first, output.alpha);
        cluster_barrier();  // RAW: all splits have written what is read next
        Vec<VEC_C> totals[MOST] = {};
#pragma unroll
        for (int z = 0; z < CLUSTER; ++z) {
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                const int at = i / IN_ROW * STEP;
                if (!IS_EVEN && rows.row + at >= COUNT) continue;
                const Vec<VEC_C> partial = load_cluster<VEC_C>(rows.vector(at, i % IN_ROW * WIDTH), z);
#pragma unroll
                for (int e = 0; e < VEC_C; ++e) totals[i].v[e] += partial.v[e];
            }
        }
        cluster_barrier();  // WAR: all have read before the next round is written, or a block ends
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            const int at = rows.row + i / IN_ROW * STEP;
            if (!IS_EVEN && at >= COUNT) continue;
            const int at_m = origin_m + StagedRows::row_of_tile(first, at);
            const int at_n = origin_n + rows.column + i % IN_ROW * WIDTH;
            if (IS_PREDICATED && (at_m >= output.m || at_n >= output.n)) continue;  // edge: C
            output.store<VEC_C>(at_m, at_n, totals[i], SCALED);
        }
    }
}

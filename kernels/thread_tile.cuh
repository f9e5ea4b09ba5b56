// Which elements of its block's tile of C a thread owns: TM x TN of its warp's tile, in chunks.
//
// Worked example: BM 64, BN 128, WM 32, WN 64, TM = TN = 8. Chunks are 4 x 4; the lanes of a warp stand 4 x 8.
//
//    block tile: warps       warp tile: rows 0-15, columns 0-31        thread tile of lane 9
//    ┌────────┬────────┐     ┌──┬──┬──┬──┬──┬──┬──┬──┐                 rows 4-7 and 20-23 of the warp tile,
//    │ warp 0 │ warp 1 │     │ 0│ 1│ 2│ 3│ 4│ 5│ 6│ 7│ lanes,          columns 4-7 and 36-39:
//    ├────────┼────────┤     ├──┼──┼──┼──┼──┼──┼──┼──┤ a chunk         ┌──┐  ┌──┐
//    │ warp 2 │ warp 3 │     │ 8│ 9│10│11│12│13│14│15│ each;           └──┘  └──┘
//    └────────┴────────┘     ├──┼──┼──┼──┼──┼──┼──┼──┤ then again      ┌──┐  ┌──┐
//    slice 1: the same       │16│17│ ...             │ to the right    └──┘  └──┘
//    tile, other warps       └──┴──┴─────────────────┘ and below       the first starts at (thread.m, thread.n)
//
// So the lanes of a warp read neighbouring chunks of a fragment: the 8 lanes that one 16-byte phase of shared
// memory serves touch 8 different (or equal, then broadcast) quads of banks.
#pragma once

#include "config.cuh"
#include "primitives.cuh"

// VEC neighbours of row i, from column j on.
template <int VEC> __device__ __forceinline__ Vec<VEC> vector_of(const float (&sums)[TM][TN], int i, int j) {
    Vec<VEC> vector;
#pragma unroll
    for (int e = 0; e < VEC; ++e) vector.v[e] = sums[i][j + e];
    return vector;
}

constexpr float SCALED = 1.0f;  // alpha, for sums that have been multiplied by it

// What is stored in vectors for others to add is scaled first: a sum that left its register as it is would have to
// lie in an aligned quad of them, and the main loop would wait for register ports (docs/notes/0010, 0028).
template <int VEC> __device__ __forceinline__ Vec<VEC> scaled(Vec<VEC> vector, float alpha) {
#pragma unroll
    for (int e = 0; e < VEC; ++e) vector.v[e] *= alpha;
    return vector;
}

struct ThreadTile {
    int slice;  // which part of BK its warps multiply
    int m;      // first row and column in the block tile
    int n;

    __device__ __forceinline__ ThreadTile() {
        const int in_slice = thread_index() % THREADS_PER_SLICE;
        const int warp = in_slice / WARP;
        const int lane = in_slice % WARP % (LANES_M * LANES_N);
        slice = SLICE_K == 1 ? 0 : thread_index() / THREADS_PER_SLICE;
        m = warp / WARPS_N * WM + lane / LANES_N * CHUNK_M;
        n = warp % WARPS_N * WN + lane % LANES_N * CHUNK_N;
    }

    // Whether its sums have gone to another thread, which goes on alone: those of all slices and lanes are added.
    __device__ __forceinline__ bool gave_sums() const { return slice != 0 || !is_first_lane(); }
    // Whether it is the first of the lanes that share out k: all of them hold the same sums in the end.
    __device__ __forceinline__ static bool is_first_lane() {
        return LANES_K == 1 || thread_index() % LANES_K == 0;
    }
    // The number of its sums among those of its slice, for what lies in memory by thread.
    __device__ __forceinline__ static int owner() { return thread_index() % THREADS_PER_SLICE / LANES_K; }

    // Row (column) in the block tile of the thread's element i (j).
    __device__ __forceinline__ int row(int i) const { return m + i / CHUNK_M * (LANES_M * CHUNK_M) + i % CHUNK_M; }
    __device__ __forceinline__ int column(int j) const { return n + j / CHUNK_N * (LANES_N * CHUNK_N) + j % CHUNK_N; }

    // Calls visit(row, column, VEC neighbours) for all elements of this thread.
    template <int VEC, class Visit>
    __device__ __forceinline__ void for_each_vector(const float (&sums)[TM][TN], Visit visit) const {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN; j += VEC) visit(row(i), column(j), vector_of<VEC>(sums, i, j));
        }
    }
};

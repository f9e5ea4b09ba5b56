// Sums on their way through shared memory, by rows: thread tiles go in, rows come out.
//
// A thread owns a few neighbours of C (CHUNK_N), and the lanes of a warp stand as far apart. Where C takes vectors of
// as many floats, they are stored as they are. Where it does not, say because n is odd, each store of a warp would
// touch every fourth float of four times the sectors. Then sums are written to shared memory, and read so that a warp
// has neighbours in a row of C. The blocks of a cluster use the same rows to share out what they add. An activation of
// many instructions goes by rows too: its code then stands there once per vector of a row, not once per sum.
//
//    thread tiles, in rounds of STAGED_ROUND rows each            rows of C, all threads of all slices
//    ┌──────────────┬──────────────┐                              lane 0 1 2 ...
//    │ 0000    0000 │ 1111    1111 │    ─► shared memory ─►       ┌──────────────────────┐
//    │ 0000    0000 │ 1111    1111 │                              │ one row per access   │
//
// Measured (docs/decisions/0028): 2228x883x122 in 64x128 tiles takes 16.1 us so on an H200, 24.6 straight from
// registers.
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "thread_tile.cuh"

struct StagedRows {
    static constexpr int COUNT = STAGED_ROUND * ROW_GROUPS;        // rows at a time
    static constexpr int VECS = BN / VEC_C;                        // of a row
    static constexpr int LANES = power_of_two_in(VECS, WARP);      // threads side by side in a row
    static constexpr int WIDTH = LANES * VEC_C;                    // floats that they touch at once
    static constexpr int IN_ROW = BN / WIDTH;                      // vectors of a thread in one row
    static constexpr int AT_ONCE = THREADS / LANES;                // rows that the block touches at once

    int row;     // this thread's first of the rows, when it reads
    int column;  // and its first column

    __device__ __forceinline__ StagedRows()
        : row(thread_index() / LANES), column(thread_index() % LANES * VEC_C) {}

    // Writes rows first ... first + STAGED_ROUND - 1 of this thread's sums, times alpha.
    __device__ __forceinline__ static void write(const float (&sums)[TM][TN], const ThreadTile& thread, int first,
                                                 float alpha) {
        const int group = thread.m / WM * LANES_M + thread.m % WM / CHUNK_M;
        float* const own = shared_memory() + group * STAGED_PITCH + thread.n;
#pragma unroll
        for (int i = 0; i < STAGED_ROUND; ++i) {
#pragma unroll
            for (int j = 0; j < TN; j += CHUNK_N)
                store_shared<CHUNK_N>(own + i * ROW_GROUPS * STAGED_PITCH + j * LANES_N,
                                      scaled(vector_of<CHUNK_N>(sums, first + i, j), alpha));
        }
    }

    // Where the vector lies that is `at` rows after this thread's first, and j columns.
    __device__ __forceinline__ const float* vector(int at, int j) const {
        return shared_memory() + (row + at) * STAGED_PITCH + column + j;
    }

    // The row of the block's tile of C that row `at` of the round from `first` on is: groups of lanes that stand along
    // m wrote one row each, then their next. Unsigned, so that powers of two divide by a shift.
    __device__ __forceinline__ static int row_of_tile(int first, unsigned at) {
        const unsigned i = first + at / ROW_GROUPS, group = at % ROW_GROUPS;
        return group / LANES_M * WM + group % LANES_M * CHUNK_M + i / CHUNK_M * (LANES_M * CHUNK_M) + i % CHUNK_M;
    }
};

// Global memory to stages: tiles of A and B by asynchronous copies, as they lie.
//
//   stage      0        1        2        0
//   copied     tile 0   tile 1   tile 2   tile 3 ...    STAGES - 1 ahead of what is multiplied
//
// One barrier per tile does two things. RAW: after it, the copies that each thread waited for are there for everyone. WAR:
// after it, everyone has read the stage that the next copy overwrites.
#pragma once

#include "mma_config.cuh"

// What a thread copies of an operand: of each row of its tiles VEC neighbours, in all rows that are ROWS_AT_ONCE apart.
// EXTENT is the tile's side along m (n).
template <bool IS_K_MAJOR, int EXTENT, int VEC, int PITCH> struct TileCopy {
    const float* next;  // what the thread copies first of the next tile
    long long apart;    // bytes between rows that it copies
    long long along;    // floats from tile to tile
    int left;           // rows or columns of C, and k, from there on
    int left_k;
    float* to;          // in a stage, from the first on

    static constexpr int ACROSS = IS_K_MAJOR ? BK : EXTENT;  // floats of a row
    static constexpr int ROWS = IS_K_MAJOR ? EXTENT : BK;
    static constexpr int ROWS_AT_ONCE = THREADS * VEC / ACROSS;
    static_assert(THREADS * VEC % ACROSS == 0 && ROWS % ROWS_AT_ONCE == 0, "rule mma-warps");

    __device__ __forceinline__ TileCopy(const float* operand, long long ld, int origin, int extent, int k, float* stages) {
        const int row = thread_index() / (ACROSS / VEC), column = thread_index() % (ACROSS / VEC) * VEC;
        const int at = IS_K_MAJOR ? row : column, at_k = IS_K_MAJOR ? column : row;
        next = operand + (IS_K_MAJOR ? (origin + at) * ld + at_k : at_k * ld + origin + at);
        apart = ROWS_AT_ONCE * ld * 4;
        along = IS_K_MAJOR ? BK : BK * ld;
        left = extent - origin - at;
        left_k = k - at_k;
        to = stages + row * PITCH + column;
    }

    __device__ __forceinline__ void copy(int stage) {
#pragma unroll
        for (int i = 0; i < ROWS / ROWS_AT_ONCE; ++i) {
            const int at = i * ROWS_AT_ONCE;
            const bool is_valid = left > (IS_K_MAJOR ? at : 0) && left_k > (IS_K_MAJOR ? 0 : at);  // edge: m, n, k
            const GlobalAddress from = global_address(next) + (is_valid ? i * apart : 0);
            copy_async<VEC>(to + stage * STAGE_FLOATS + at * PITCH, from, is_valid);
        }
        next += along;
        left_k -= BK;
    }
};

struct Stages {
    TileCopy<IS_K_MAJOR_A, BM, VEC_A, PITCH_A> a;
    TileCopy<IS_K_MAJOR_B, BN, VEC_B, PITCH_B> b;
    int num_tiles;
    int num_copied = 0;
    int write = 0;  // stage that the next tile goes to
    int read = 0;   // stage that is multiplied

    // Starts to copy the next tile, if there is one. Its copies form a group, even where there are none: groups count
    // tiles.
    __device__ __forceinline__ void start_copy() {
        if (num_copied < num_tiles) {
            a.copy(write);
            b.copy(write);
        }
        commit_copies();
        ++num_copied;
        write = write == STAGES - 1 ? 0 : write + 1;
    }
    __device__ __forceinline__ void fill() {
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; ++stage) start_copy();
    }
    // Where flushed sums lie, behind all stages.
    __device__ __forceinline__ static float* flushed() { return shared_memory() + STAGES * STAGE_FLOATS; }
    // Waits for the oldest tile that has not been multiplied, and starts a copy to where the one before it was.
    __device__ __forceinline__ const float* next() {
        wait_copies<STAGES - 2>();
        barrier();  // RAW: the tile is whole before anyone reads it; WAR: the one before has been read
        start_copy();
        const float* const tile = shared_memory() + read * STAGE_FLOATS;
        read = read == STAGES - 1 ? 0 : read + 1;
        return tile;
    }
};

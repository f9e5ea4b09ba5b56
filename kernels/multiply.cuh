// From shared memory to sums: a thread's fragments of A and B, and their outer product.
//
// A thread owns TM x TN elements of its warp tile: rows in chunks of CHUNK_M neighbours, chunks
// LANES_M * CHUNK_M apart, columns likewise. So the lanes of a warp read neighbouring chunks: the 8
// lanes that one 16-byte phase serves touch 8 different (or equal, then broadcast) quads of banks.
#pragma once

#include "config.cuh"
#include "primitives.cuh"

// Where this thread stands in its block.
struct Lane {
    int slice;  // which part of BK its warp group takes
    int m;      // first row and column in the block tile
    int n;

    __device__ __forceinline__ Lane() {
        const int in_slice = thread_index() % THREADS_PER_SLICE;
        const int warp = in_slice / WARP;
        const int lane = in_slice % WARP;
        slice = SLICE_K == 1 ? 0 : thread_index() / THREADS_PER_SLICE;
        m = warp / WARPS_N * WM + lane / LANES_N * CHUNK_M;
        n = warp % WARPS_N * WN + lane % LANES_N * CHUNK_N;
    }

    // Row (column) in the block tile of the thread's element i (j).
    __device__ __forceinline__ int row(int i) const { return m + i / CHUNK_M * (LANES_M * CHUNK_M) + i % CHUNK_M; }
    __device__ __forceinline__ int column(int j) const { return n + j / CHUNK_N * (LANES_N * CHUNK_N) + j % CHUNK_N; }
};

struct Fragments {
    float a[TM];
    float b[TN];

    // Reads row k of both tiles of a stage; `a_row` and `b_row` point at this thread's first element.
    __device__ __forceinline__ void load(const float* a_row, const float* b_row) {
#pragma unroll
        for (int i = 0; i < TM; i += CHUNK_M) {
            const Vec<CHUNK_M> chunk = load_shared<CHUNK_M>(a_row + i * LANES_M);
#pragma unroll
            for (int e = 0; e < CHUNK_M; ++e) a[i + e] = chunk.v[e];
        }
#pragma unroll
        for (int j = 0; j < TN; j += CHUNK_N) {
            const Vec<CHUNK_N> chunk = load_shared<CHUNK_N>(b_row + j * LANES_N);
#pragma unroll
            for (int e = 0; e < CHUNK_N; ++e) b[j + e] = chunk.v[e];
        }
    }
};

// The order in which the thread tile is walked decides how ptxas places operands in register banks and
// which it can reuse: up to 15 % of the speed on sm_90 (same config, order alone changed). A snake
// turns round at the end of a row, so that each step keeps one operand of the step before.
struct Cell {
    int i;
    int j;
};

__device__ __forceinline__ constexpr int snake(int position, int length, int turn) {
    return turn % 2 == 0 ? position : length - 1 - position;
}

__device__ __forceinline__ constexpr Cell cell(int step) {
    if (ORDER == ORDER_ROW_SNAKE) return {step / TN, snake(step % TN, TN, step / TN)};
    if (ORDER == ORDER_COL_SNAKE) return {snake(step % TM, TM, step / TM), step / TM};
    if (ORDER == ORDER_ZIGZAG) {
        // squares of 2 x 2 (or strips, where the tile is one wide), each walked in a U
        constexpr int HEIGHT = TM % 2 == 0 ? 2 : 1;
        constexpr int WIDTH = TN % 2 == 0 ? 2 : 1;
        const int square = step / (HEIGHT * WIDTH), within = step % (HEIGHT * WIDTH);
        const int i = within / WIDTH, j = snake(within % WIDTH, WIDTH, i);
        return {square / (TN / WIDTH) * HEIGHT + i, square % (TN / WIDTH) * WIDTH + j};
    }
    if (ORDER == ORDER_PAIR_SNAKE) {
        // two rows at a time, column by column, up and down in turn
        constexpr int HEIGHT = TM % 2 == 0 ? 2 : 1;
        const int pair = step / (HEIGHT * TN), within = step % (HEIGHT * TN), column = within / HEIGHT;
        return {pair * HEIGHT + snake(within % HEIGHT, HEIGHT, column), snake(column, TN, pair)};
    }
    return {step / TN, step % TN};
}

// sums += a * b^T, an outer product of one k.
__device__ __forceinline__ void multiply(float (&sums)[TM][TN], const Fragments& f) {
#pragma unroll
    for (int step = 0; step < TM * TN; ++step) {
        const Cell c = cell(step);
        sums[c.i][c.j] = multiply_add(f.a[c.i], f.b[c.j], sums[c.i][c.j]);
    }
}

// sums += a * b^T: the outer product of a thread's fragments, TM x TN FMAs, and the order of these.
//
// The order of a 4 x 4 thread tile, by the number of the FMA:
//
//    ROW            ROW_SNAKE      COL_SNAKE      ZIGZAG         PAIR_SNAKE
//    0  1  2  3     0  1  2  3     0  7  8 15     0  1  4  5     0  3  4  7
//    4  5  6  7     7  6  5  4     1  6  9 14     3  2  7  6     1  2  5  6
//    8  9 10 11     8  9 10 11     2  5 10 13     8  9 12 13    15 12 11  8
//   12 13 14 15    15 14 13 12     3  4 11 12    11 10 15 14    14 13 10  9
//
// It decides how ptxas places operands in register banks and which it can reuse: up to 15 % of the speed on
// sm_90 (same config, order alone changed). A snake reverses at the end of a line, so that each FMA keeps one
// operand of the FMA before.
//
// Compute capability 10.x reaches its rate only with two FMAs in an instruction, of which the compiler makes none by
// itself (docs/decisions/0075). The packed orders walk over pairs of neighbours in a row, or in a column where the
// thread tile's width is odd; one whose both sides are odd has none.
#pragma once

#include "config.cuh"
#include "fragments.cuh"
#include "primitives.cuh"

// An element of the thread tile.
struct Cell {
    int i;
    int j;
};

// A position along a line of this length, counted from its other end in every second line.
__device__ __forceinline__ constexpr int snake(int position, int length, int line) {
    return line % 2 == 0 ? position : length - 1 - position;
}

// The element of FMA number `step`.
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

constexpr int PAIR_N = TN % 2 == 0 ? 2 : 1;  // extent of a pair
constexpr int PAIR_M = PAIR_N == 1 && TM % 2 == 0 ? 2 : 1;
constexpr bool IS_PACKED =
    (ORDER == ORDER_PACKED_ROW_SNAKE || ORDER == ORDER_PACKED_COL_SNAKE) && PAIR_M * PAIR_N == 2;

// The first element of packed FMA number `step`.
__device__ __forceinline__ constexpr Cell packed_cell(int step) {
    constexpr int HEIGHT = TM / PAIR_M, WIDTH = TN / PAIR_N;
    if (ORDER == ORDER_PACKED_COL_SNAKE)
        return {snake(step % HEIGHT, HEIGHT, step / HEIGHT) * PAIR_M, step / HEIGHT * PAIR_N};
    return {step / WIDTH * PAIR_M, snake(step % WIDTH, WIDTH, step / WIDTH) * PAIR_N};
}

__device__ __forceinline__ void multiply(float (&sums)[TM][TN], const Fragments& f) {
    if constexpr (IS_PACKED) {
#pragma unroll
        for (int step = 0; step < TM * TN / 2; ++step) {
            const Cell c = packed_cell(step);
            const int i = c.i + PAIR_M - 1, j = c.j + PAIR_N - 1;  // the second
            multiply_add_packed(f.a[c.i], f.a[i], f.b[c.j], f.b[j], sums[c.i][c.j], sums[i][j]);
        }
    } else {
#pragma unroll
        for (int step = 0; step < TM * TN; ++step) {
            const Cell c = cell(step);
            sums[c.i][c.j] = multiply_add(f.a[c.i], f.b[c.j], sums[c.i][c.j]);
        }
    }
}

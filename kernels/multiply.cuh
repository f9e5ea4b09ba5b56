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

__device__ __forceinline__ void multiply(float (&sums)[TM][TN], const Fragments& f) {
#pragma unroll
    for (int step = 0; step < TM * TN; ++step) {
        const Cell c = cell(step);
        sums[c.i][c.j] = multiply_add(f.a[c.i], f.b[c.j], sums[c.i][c.j]);
    }
}

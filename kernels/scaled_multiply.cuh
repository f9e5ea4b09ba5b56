// The multiplying warpgroups: sums += A's tile * B's tile, tile after tile.
//
//   high high' + (high low' + low high') / 2^12     times the divisors of row and column, which are powers of two
//
// What is left out, low low', is at most 2^-22 of the product. Tensor cores add without rounding to the nearest, and what a
// sum loses grows with the additions it meets while it is large (tensor_multiply.cuh): so small products have sums of
// their own, and sums leave the tensor cores after PROMOTE_K. Each thread adds them up to the nearest, unscaled.
//
// A block of an operand with numbers beyond the range of FP16 was left as it is: its part of the product is computed by FMAs
// in FP32, from what the other operand is. So an infinity or a NaN becomes what it does in SGEMM. A thread keeps the
// elements of C that it has of an instruction, so that sums need not move.
#pragma once

#include "output.cuh"
#include "scaled_config.cuh"
#include "scaled_load.cuh"
#include "scaled_primitives.cuh"

// The elements of C of a thread: rows r and r + 8, of each eight columns two neighbours.
struct Place {
    int row;     // r, within the tile
    int column;  // the first

    __device__ __forceinline__ explicit Place(int warpgroup) {
        const int thread = thread_index() % WARPGROUP, lane = thread % WARP;
        row = warpgroup * MMA_M + thread / WARP * (MMA_M / 4) + lane / 4;
        column = lane % 4 * 2;
    }
    __device__ __forceinline__ static constexpr int row_of(int i) { return i / 2 % 2 * SWIZZLED_ROWS; }
    __device__ __forceinline__ static constexpr int column_of(int i) { return i / 4 * SWIZZLED_ROWS + i % 2; }
};

// An operand's tile, and what its numbers were divided by.
struct Tile {
    const float* words;
    const float* divisors;

    // Whether the block with this row was left as it is.
    __device__ __forceinline__ bool is_exact(int row) const {
        return load_shared<1>(divisors + row / BLOCK * BLOCK).v[0] == 0;
    }
    // A number as it was, where its block was left so, or as its parts are.
    __device__ __forceinline__ float number(int row, int p, bool is_exact) const {
        const int in_block = row % BLOCK;
        const float* const block = words + row / BLOCK * BLOCK_WORDS;
        if (is_exact) return load_shared<1>(block + p * EXACT_ROW + in_block).v[0];
        const int in_group = in_block % SWIZZLED_ROWS, word = p / 2, shift = p % 2 * 16;
        const float* const at = block + in_block / SWIZZLED_ROWS * 2 * PART + in_group * ROW +
                                (word / CHUNK ^ in_group) * CHUNK + word % CHUNK;
        const float high = float_of_half(bits_of(load_shared<1>(at).v[0]) >> shift);
        const float low = float_of_half(bits_of(load_shared<1>(at + PART).v[0]) >> shift);
        return multiply_add(low, 1 / LOW_SCALE, high) * load_shared<1>(divisors + row).v[0];
    }
};

// Adds what the tensor cores have summed, times `scale`, in terms of the numbers as they were.
__device__ __forceinline__ void promote(const float (&tensor_sums)[SUMS], float scale, const Tile& a, const Tile& b,
                                        const Place& at, float (&sums)[SUMS]) {
    const float of_rows[2] = {scale * load_shared<1>(a.divisors + at.row).v[0],
                              scale * load_shared<1>(a.divisors + at.row + SWIZZLED_ROWS).v[0]};
#pragma unroll
    for (int i = 0; i < SUMS; i += 4) {
        const Vec<2> of_columns = load_shared<2>(b.divisors + at.column + Place::column_of(i));
#pragma unroll
        for (int e = 0; e < 4; ++e)
            sums[i + e] = multiply_add(tensor_sums[i + e] * of_columns.v[e % 2], of_rows[e / 2], sums[i + e]);
    }
}

// One tile on the tensor cores.
__device__ __forceinline__ void multiply_tile(const Tile& a, const Tile& b, const Place& at, int warpgroup,
                                              float (&sums)[SUMS]) {
    constexpr int AT_ONCE = PROMOTE_K / MMA_K;
    const Rows rows_a(a.words + warpgroup * MMA_M * BK), rows_b(b.words);
#pragma unroll
    for (int first = 0; first < STEPS; first += AT_ONCE) {
        float tensor_sums[SETS][SUMS];
        begin_multiplying();
#pragma unroll
        for (int step = first; step < first + AT_ONCE; ++step) {
            multiply_step(tensor_sums[0], rows_a.at(1, step), rows_b.at(0, step), step > first);
            multiply_step(tensor_sums[0], rows_a.at(0, step), rows_b.at(1, step), true);
        }
        if constexpr (SETS == 1) {
            end_multiplying();
            wait_for_sums();
            promote(tensor_sums[0], 1 / LOW_SCALE, a, b, at, sums);
            begin_multiplying();
        }
#pragma unroll
        for (int step = first; step < first + AT_ONCE; ++step)
            multiply_step(tensor_sums[SETS - 1], rows_a.at(0, step), rows_b.at(0, step), step > first);
        end_multiplying();
        wait_for_sums();
        if constexpr (SETS == 2) {
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                tensor_sums[1][i] = multiply_add(tensor_sums[0][i], 1 / LOW_SCALE, tensor_sums[1][i]);
        }
        promote(tensor_sums[SETS - 1], 1, a, b, at, sums);
    }
}

// One tile by FMAs, of operands that were left as they are, or one of them was.
__device__ __forceinline__ void multiply_exactly(const Tile& a, const Tile& b, const Place& at, bool is_exact_a,
                                                 float (&sums)[SUMS]) {
    constexpr int OF_BLOCK = SUMS * BLOCK / BN;  // of a thread's sums
#pragma unroll
    for (int first = 0; first < SUMS; first += OF_BLOCK) {
        const bool is_exact_b = b.is_exact(Place::column_of(first));
        float products[OF_BLOCK] = {};
#pragma unroll 1
        for (int p = 0; p < BK; ++p) {
            const float of_rows[2] = {a.number(at.row, p, is_exact_a), a.number(at.row + SWIZZLED_ROWS, p, is_exact_a)};
#pragma unroll
            for (int i = 0; i < OF_BLOCK; i += 4) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float of_column = b.number(at.column + Place::column_of(first + i) + e, p, is_exact_b);
                    products[i + e] = multiply_add(of_rows[0], of_column, products[i + e]);
                    products[i + 2 + e] = multiply_add(of_rows[1], of_column, products[i + 2 + e]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < OF_BLOCK; ++i) sums[first + i] += products[i];
    }
}

// Adds to `sums` the product of all tiles.
__device__ __forceinline__ void multiply_tiles(const Stages& stages, const Place& at, int warpgroup, int num_tiles,
                                               float (&sums)[SUMS]) {
    Turn turn;
    for (int tile = 0; tile < num_tiles; ++tile) {
        const int stage = turn.stage;
        stages.filled[stage].wait(turn.is_odd);
        const Tile a{stages.tile_a(stage), stages.divisors_a(stage)};
        const Tile b{stages.tile_b(stage), stages.divisors_b(stage)};
        const bool is_exact_a = a.is_exact(at.row);
        bool is_exact_b = false;
#pragma unroll
        for (int column = 0; column < BN; column += BLOCK) is_exact_b |= b.is_exact(column);
        if (!is_exact_a && !is_exact_b) {
            multiply_tile(a, b, at, warpgroup, sums);
        } else {
            multiply_exactly(a, b, at, is_exact_a, sums);
        }
        warp_barrier();  // WAR: all lanes have read the stage
        if (thread_index() % WARP == 0) stages.freed[stage].arrive();
        turn.advance();
    }
}

#include "scaled_store.cuh"

// A stage to sums: sums += A's slice * B's slice, slice after slice.
//
//   high high' + (high low' + low high') / 2^12     times the divisors of row and column, which are powers of two
//
// As in scaled_multiply.cuh: small products have sums of their own, sums leave the tensor cores after DEPTH of k, and a thread
// adds them up to the nearest, unscaled. A block of an operand with numbers beyond the range of FP16 was left as it is: its
// part of the product is computed by FMAs in FP32, from what is packed in global memory.
#pragma once

#include "halves_config.cuh"
#include "halves_load.cuh"
#include "halves_primitives.cuh"
#include "output.cuh"

// The elements of C of a thread: of each MMA_M x MMA_N rows r and r + 8, two neighbours each.
struct Place {
    int row;     // r, within the tile
    int column;  // the first
    int word;    // where the lane's words are in a SLICE of row r, or of column r of B

    __device__ __forceinline__ Place() {
        const int lane = thread_index() % WARP, warp = thread_index() / WARP, in_group = lane / LANES_K;
        row = warp / WARPS_N * WM + in_group;
        column = warp % WARPS_N * WN + lane % LANES_K * 2;
        const int first = lane % LANES_K * STEPS;
        word = in_group * SLICE + (first / CHUNK ^ in_group % SLICE_CHUNKS) * CHUNK + first % CHUNK;
    }
    __device__ __forceinline__ static constexpr int row_of(int i) {
        return i / (TILES_N * TILE_SUMS) * MMA_M + i / 2 % 2 * SWIZZLED_ROWS;
    }
    __device__ __forceinline__ static constexpr int column_of(int i) { return i / TILE_SUMS % TILES_N * MMA_N + i % 2; }
};

// A slice of an operand's tile.
struct Slice {
    const float* words;     // in shared memory
    const float* divisors;  // of rows, there
    const float* blocks;    // of BK of k, in global memory
    int first_p;            // of the slice, in these

    // A lane's words of eight rows from here on, of high parts (0) or low ones (1).
    __device__ __forceinline__ Vec<STEPS> rows(const Place& at, int first_row, int part) const {
        return load_shared<STEPS>(words + (first_row / SWIZZLED_ROWS * 2 + part) * (SWIZZLED_ROWS * SLICE) + at.word);
    }
    __device__ __forceinline__ float divisor(int row) const { return load_shared<1>(divisors + row).v[0]; }
    // A number as it was, where its block was left so, or as its parts are.
    __device__ __forceinline__ float number(int row, int p, bool is_exact) const {
        const int in_block = row % BLOCK;
        const float* const block = blocks + row / BLOCK * BLOCK_WORDS;
        if (is_exact) return load_global<1>(block + p * EXACT_ROW + in_block).v[0];
        const int in_group = in_block % SWIZZLED_ROWS, word = p / 2, shift = p % 2 * 16;
        const float* const at = block + in_block / SWIZZLED_ROWS * 2 * PART + in_group * ROW +
                                (word / CHUNK ^ in_group) * CHUNK + word % CHUNK;
        const float high = float_of_half(bits_of(load_global<1>(at).v[0]) >> shift);
        const float low = float_of_half(bits_of(load_global<1>(at + PART).v[0]) >> shift);
        return multiply_add(low, 1 / LOW_SCALE, high) * divisor(row);
    }
};

__device__ __forceinline__ void multiply_slice(const Slice& a, const Slice& b, const Place& at, float (&sums)[SUMS]) {
    constexpr int ACROSS = TILES_N * TILE_SUMS;
    const int first_row = at.row / SWIZZLED_ROWS * SWIZZLED_ROWS, first_column = at.column / WN * WN;
    Vec<STEPS> of_b[TILES_N][2];
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
        for (int part = 0; part < 2; ++part) of_b[j][part] = b.rows(at, first_column + j * MMA_N, part);
    }
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
        Vec<STEPS> of_a[2][2];  // (half, part)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int part = 0; part < 2; ++part)
                of_a[half][part] = a.rows(at, first_row + i * MMA_M + half * SWIZZLED_ROWS, part);
        }
        float small[TILES_N][TILE_SUMS], large[TILES_N][TILE_SUMS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
                multiply_step(small[j], of_a[0][1].v[step], of_a[1][1].v[step], of_b[j][0].v[step], step > 0);
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
                multiply_step(large[j], of_a[0][0].v[step], of_a[1][0].v[step], of_b[j][0].v[step], step > 0);
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
                multiply_step(small[j], of_a[0][0].v[step], of_a[1][0].v[step], of_b[j][1].v[step], true);
        }
        const float of_rows[2] = {a.divisor(at.row + i * MMA_M), a.divisor(at.row + i * MMA_M + SWIZZLED_ROWS)};
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            const Vec<2> of_columns = load_shared<2>(b.divisors + at.column + j * MMA_N);
#pragma unroll
            for (int e = 0; e < TILE_SUMS; ++e) {
                const float product = multiply_add(small[j][e], 1 / LOW_SCALE, large[j][e]);
                float& sum = sums[i * ACROSS + j * TILE_SUMS + e];
                sum = multiply_add(product * of_columns.v[e % 2], of_rows[e / 2], sum);
            }
        }
    }
}

// One slice by FMAs, of operands that were left as they are, or one of them was.
__device__ __forceinline__ void multiply_exactly(const Slice& a, const Slice& b, const Place& at, bool is_exact_a,
                                                 bool is_exact_b, float (&sums)[SUMS]) {
    constexpr int ACROSS = TILES_N * TILE_SUMS;
#pragma unroll
    for (int first = 0; first < SUMS; first += ACROSS) {
        const int row = at.row + Place::row_of(first);
        float products[ACROSS] = {};
#pragma unroll 1
        for (int p = a.first_p; p < a.first_p + DEPTH; ++p) {
            const float of_rows[2] = {a.number(row, p, is_exact_a), a.number(row + SWIZZLED_ROWS, p, is_exact_a)};
#pragma unroll
            for (int i = 0; i < ACROSS; i += TILE_SUMS) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float of_column = b.number(at.column + Place::column_of(i) + e, p, is_exact_b);
                    products[i + e] = multiply_add(of_rows[0], of_column, products[i + e]);
                    products[i + 2 + e] = multiply_add(of_rows[1], of_column, products[i + 2 + e]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ACROSS; ++i) sums[first + i] += products[i];
    }
}

// Adds to `sums` the product of all slices from the first to the one before the last.
__device__ __forceinline__ void multiply_slices(Stages& stages, const Place& at, int first, int last, float (&sums)[SUMS]) {
    if (first < last) {
        stages.load(first);
        stages.store(first);
    }
#pragma unroll 1
    for (int slice = first; slice < last; ++slice) {
        barrier();  // RAW: the stage is whole before it is read; WAR: the other one has been read before it is filled
        const bool has_next = slice + 1 < last;
        if (has_next) stages.load(slice + 1);
        const float* const stage = Stages::stage(slice);
        const int first_p = slice % SLICES * DEPTH;
        const Slice a{stage, stage + STAGE_TILES, stages.a.blocks_of(slice), first_p};
        const Slice b{stage + STAGE_A, stage + STAGE_TILES + BM, stages.b.blocks_of(slice), first_p};
        const bool is_exact_a = a.divisor(at.row) == 0, is_exact_b = b.divisor(at.column) == 0;
        if (!is_exact_a && !is_exact_b) {
            multiply_slice(a, b, at, sums);
        } else {
            multiply_exactly(a, b, at, is_exact_a, is_exact_b, sums);
        }
        if (has_next) stages.store(slice + 1);
    }
}

#include "scaled_store.cuh"

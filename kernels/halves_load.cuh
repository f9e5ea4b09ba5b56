// Packed operands to stages, through registers: sm_75 has no asynchronous copies.
//
//   multiplied   slice 0    slice 1    slice 2 ...
//   loaded       slice 1    slice 2    slice 3 ...    to registers before, to the other stage after
//
// A block of a packed operand (scaled_layout.cuh) has for each row and part BK of k in ROW words, whose chunk c lies at
// c ^ g in row g of eight. So slice s is the SLICE of the row that is s ^ g / SLICE_CHUNKS, and in it chunk c lies at
// c ^ g % SLICE_CHUNKS. A stage has these words as they are, row after row.
//
// Where a block was left as it was, what is copied of it is not looked at (halves_multiply.cuh).
#pragma once

#include "halves_config.cuh"
#include "halves_primitives.cuh"

// Rows of a packed operand, those of a tile of C.
template <int ROWS> struct PackedTile {
    const float* blocks;
    const float* divisors;
    int padded;

    static constexpr int COPIES = ROWS * DEPTH / CHUNK / THREADS;  // chunks that a thread copies of a slice
    Vec<CHUNK> held[COPIES];

    static_assert(ROWS * DEPTH / CHUNK % THREADS == 0, "rule halves-warps");

    __device__ __forceinline__ PackedTile(const float* operand, int k, int padded, int origin) : padded(padded) {
        blocks = operand + static_cast<long long>(origin) * BK;
        divisors = operand + first_divisor(k, padded) + origin;
    }
    __device__ __forceinline__ const float* blocks_of(int slice) const {
        return blocks + static_cast<long long>(slice / SLICES) * BK * padded;
    }
    __device__ __forceinline__ const float* divisors_of(int slice) const {
        return divisors + static_cast<long long>(slice / SLICES) * padded;
    }
    __device__ __forceinline__ void load(int slice) {
        const int row = thread_index() / SLICE_CHUNKS, in_group = row % SWIZZLED_ROWS;  // rows of both parts
        const int own = slice % SLICES ^ in_group / SLICE_CHUNKS;
        const float* const from = blocks_of(slice) + row * ROW + own * SLICE + thread_index() % SLICE_CHUNKS * CHUNK;
#pragma unroll
        for (int i = 0; i < COPIES; ++i)
            held[i] = load_operand<CHUNK>(global_address(from) + i * (THREADS / SLICE_CHUNKS * ROW * 4));
    }
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) store_shared<CHUNK>(to + (thread_index() + i * THREADS) * CHUNK, held[i]);
    }
};

struct Stages {
    PackedTile<BM> a;
    PackedTile<BN> b;
    static constexpr int COPIES = (DIVISORS + THREADS - 1) / THREADS;
    float divisors[COPIES];

    __device__ __forceinline__ Stages(PackedTile<BM> a, PackedTile<BN> b) : a(a), b(b) {}
    __device__ __forceinline__ static float* stage(int slice) { return shared_memory() + slice % STAGES * STAGE_FLOATS; }
    __device__ __forceinline__ void load(int slice) {
        a.load(slice);
        b.load(slice);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int row = thread_index() + i * THREADS;
            const float* const from = row < BM ? a.divisors_of(slice) + row : b.divisors_of(slice) + row - BM;
            if (row < DIVISORS) divisors[i] = load_operand<1>(global_address(from)).v[0];
        }
    }
    __device__ __forceinline__ void store(int slice) const {
        a.store(stage(slice));
        b.store(stage(slice) + STAGE_A);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int row = thread_index() + i * THREADS;
            if (row < DIVISORS) store_shared<1>(stage(slice) + STAGE_TILES + row, {divisors[i]});
        }
    }
};

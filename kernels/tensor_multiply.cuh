// The multiplying warpgroups: sums += A's tile * B's tile, tile after tile, in the products of their parts that count.
//
//   for each tile      split       what was read of A, in registers
//                      multiply    small products of all steps first, high high' of all steps last
//                      read        A's next tile, while the tensor cores work
//                      wait        for them; the stage is free
//                      promote     after PROMOTE_K: their sums are added to the thread's own
//                      flush       after FLUSH_K: these go on to sums in shared memory
//
// Tensor cores add without rounding to the nearest: what a sum loses grows with the additions that it meets while it is
// large. So the small products come first, and sums leave the tensor cores often. Each thread then adds to the nearest, as
// any sum in FP32, and what that loses grows with their number: so long ones are flushed (docs/notes/0076 has the
// figures). While one warpgroup adds and splits, the other's products are under way.
#pragma once

#include "tensor_config.cuh"
#include "tensor_split.cuh"
#include "tensor_stages.cuh"

// What a lane reads of A's tile: rows r and r + 8, of which eight k each.
struct ReadA {
    int row;
    int lane_k;
    float value[2][CHUNKS];

    __device__ __forceinline__ explicit ReadA(int warpgroup) {
        const int thread = thread_index() % WARPGROUP, lane = thread % WARP;
        row = warpgroup * MMA_M + thread / WARP * (MMA_M / 4) + lane / 4;
        lane_k = lane % 4;
    }
    __device__ __forceinline__ void read(const float* tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = row + half * 8;
#pragma unroll
            for (int i = 0; i < CHUNKS; i += IS_K_MAJOR_A ? CHUNK * PER_WORD_A : 1) {
                const int k = k_of(i, lane_k);
                if constexpr (IS_K_MAJOR_A) {
                    const Vec<CHUNK> x = load_shared<CHUNK>(tile + at * PITCH_A + k / PER_WORD_A);
#pragma unroll
                    for (int e = 0; e < CHUNK * PER_WORD_A; ++e)
                        value[half][i + e] = element_of_a(x.v[e / PER_WORD_A], e % PER_WORD_A);
                } else {
                    const Vec<1> x = load_shared<1>(tile + k * PITCH_A + at / PER_WORD_A);
                    value[half][i] = element_of_a(x.v[0], at % PER_WORD_A);
                }
            }
        }
    }
};

struct SplitA {
    MmaFragment part[PARTS_A][STEPS];

    __device__ __forceinline__ void split_all(const ReadA& a) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float x[PACKED];
#pragma unroll
                for (int i = 0; i < PACKED; ++i) x[i] = a.value[e % 2][(2 * step + e / 2) * PACKED + i];
                const Parts words = packed(x);
#pragma unroll
                for (int at = 0; at < PARTS_A; ++at) part[at][step].bits[e] = words.bits[at];
            }
        }
    }
};

// A thread's sums in shared memory, the neighbour's beside each.
struct FlushedSums {
    float* own;

    __device__ __forceinline__ explicit FlushedSums(const Stages& stages)
        : own(stages.flushed + thread_index() - LOADING) {}

    // Adds sums to those here, or begins them, and leaves zeros.
    __device__ __forceinline__ void flush(float (&sums)[SUMS], bool adds) const {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            float* const at = own + i * MULTIPLIERS * WARPGROUP;
            store_shared<1>(at, {adds ? load_shared<1>(at).v[0] + sums[i] : sums[i]});
            sums[i] = 0;
        }
    }
    __device__ __forceinline__ void add_to(float (&sums)[SUMS]) const {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] += load_shared<1>(own + i * MULTIPLIERS * WARPGROUP).v[0];
    }
};

// One tile in products of parts; sums leave the tensor cores within it, or where `promotes`. `adds`: to what is in
// there. Between the last multiplication and its sums, `meanwhile` is called.
template <class Meanwhile>
__device__ __forceinline__ void multiply_tile(const SplitA& a, const Plane& b, bool adds, bool promotes,
                                              float (&tensor_sums)[SUMS], float (&sums)[SUMS], Meanwhile meanwhile) {
    constexpr int AT_ONCE = PROMOTE_K < BK ? PROMOTE_K / MMA_K : STEPS;
#pragma unroll
    for (int first = 0; first < STEPS; first += AT_ONCE) {
        begin_multiplying();
#pragma unroll
        for (int smallest = PARTS - 1; smallest >= 0; --smallest) {
#pragma unroll
            for (int step = first; step < first + AT_ONCE; ++step) {
#pragma unroll
                for (int of_a = PARTS_A - 1; of_a >= 0; --of_a) {
                    if (of_a > smallest) continue;
                    const bool is_first = smallest == PARTS - 1 && of_a == PARTS_A - 1 && step == first;
                    multiply_step(tensor_sums, a.part[of_a][step], b.at(smallest - of_a, step), !is_first || adds);
                }
            }
        }
        end_multiplying();
        if (first + AT_ONCE == STEPS) meanwhile();
        wait_for_sums();
        if (!promotes) continue;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] += tensor_sums[i];
    }
}

// Adds to `sums` the product of all tiles.
__device__ __forceinline__ void multiply_tiles(const Stages& stages, ReadA& a, int num_tiles, float (&sums)[SUMS]) {
    constexpr int TILES = PROMOTE_K < BK ? 1 : PROMOTE_K / BK;  // until sums leave the tensor cores
    const FlushedSums flushed(stages);
    float tensor_sums[SUMS];
    SplitA parts;
    Turn turn;
    if (num_tiles > 0) {
        stages.filled[0].wait(0);
        a.read(stages.tile_a(0));
    }
    for (int tile = 0; tile < num_tiles; ++tile) {
        const bool is_last = tile + 1 == num_tiles;
        const int stage = turn.stage;
        turn.advance();
        parts.split_all(a);
        multiply_tile(parts, Plane(stages.plane(stage)), tile % TILES > 0, is_last || (tile + 1) % TILES == 0,
                      tensor_sums, sums, [&] {
                          if (is_last) return;
                          stages.filled[turn.stage].wait(turn.is_odd);
                          a.read(stages.tile_a(turn.stage));
                      });
        if (thread_index() % WARPGROUP == 0) stages.freed[stage].arrive();
        if constexpr (FLUSH_K > 0) {
            const int depth = (tile + 1) * BK;
            if (depth % FLUSH_K == 0 && !is_last) flushed.flush(sums, depth > FLUSH_K);
        }
    }
    if (FLUSH_K > 0 && num_tiles * BK > FLUSH_K) flushed.add_to(sums);
}

// Stores a thread's sums: of each eight columns two neighbours, in rows r and r + 8. In C, or scaled in the plane of
// their split, whose rows are whole tiles.
__device__ __forceinline__ void store_sums(const float (&sums)[SUMS], const ReadA& a, int origin_m, int origin_n,
                                           const Output& output, float* plane, long long padded_n) {
    constexpr int VEC = IS_SPLIT ? 2 : VEC_C;
#pragma unroll
    for (int i = 0; i < SUMS; i += VEC) {
        const int at_m = origin_m + a.row + i / 2 % 2 * 8, at_n = origin_n + i / 4 * 8 + a.lane_k * 2 + i % 2;
        Vec<VEC> product;
#pragma unroll
        for (int e = 0; e < VEC; ++e) product.v[e] = IS_SPLIT ? output.alpha * sums[i + e] : sums[i + e];
        if constexpr (IS_SPLIT) {
            store_global<VEC>(plane + at_m * padded_n + at_n, product);
        } else {
            if (at_m >= output.m || at_n >= output.n) continue;  // edge: C
            output.store<VEC>(at_m, at_n, product, output.alpha);
        }
    }
}

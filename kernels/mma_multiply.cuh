// A stage to sums: sums += A's tile * B's tile, in the products of their parts that count, and in the end to C.
//
//   for PROMOTE_K of k        tensor cores begin at 0
//     for each GROUP          read and split    B's, of all columns of the warp tile
//       for 16 rows           read and split    A's
//                             multiply          small products first, high high' last
//                             promote           after PROMOTE_K: what the tensor cores have is added to the thread's sums
//   flush                     after FLUSH_K: these go on to sums in shared memory
//
// Tensor cores add without rounding to the nearest: what a sum loses grows with the additions that it meets while it is
// large (tensor_multiply.cuh). So the small products come first, and sums leave the tensor cores often; each thread adds
// them up to the nearest, as any sum in FP32, and what that loses grows with their number: so long ones are flushed.
#pragma once

#include "mma_config.cuh"
#include "mma_load.cuh"
#include "mma_primitives.cuh"
#include "output.cuh"
#include "tensor_split.cuh"

// A lane's elements of C: rows r and r + 8 of each MMA_M, of each MMA_N columns two neighbours.
struct Place {
    int row;     // of A's tile, that it reads first, and r
    int column;  // of B's tile, that it reads first
    int first;   // column of C
    int lane_k;

    __device__ __forceinline__ Place() {
        const int lane = thread_index() % WARP, warp = thread_index() / WARP;
        row = warp / WARPS_N * WM + lane / LANES_K;
        const int origin = warp % WARPS_N * WN;
        column = origin + lane / LANES_K;
        lane_k = lane % LANES_K;
        first = origin + lane_k * 2;
    }
};

// What a lane holds of a group of a row: of k the first and the three that are LANES_K apart.
template <bool IS_K_MAJOR, int PITCH>
__device__ __forceinline__ void read(const float* tile, int row, int k, float (&x)[VALUES]) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
        const int at_k = k + i * LANES_K;
        x[i] = load_shared<1>(tile + (IS_K_MAJOR ? row * PITCH + at_k : at_k * PITCH + row)).v[0];
    }
}

// The word of each part that stands for place `word` of a row of an instruction.
__device__ __forceinline__ Parts split_word(const float (&x)[VALUES], int word) {
    float neighbours[PACKED];
#pragma unroll
    for (int i = 0; i < PACKED; ++i) neighbours[i] = x[word * PACKED + i];
    return packed(neighbours);
}

struct SplitA {
    FragmentA part[PARTS][STEPS];

    __device__ __forceinline__ SplitA(const float* tile, int row, int k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float x[VALUES];
            read<IS_K_MAJOR_A, PITCH_A>(tile, row + half * 8, k, x);
#pragma unroll
            for (int word = 0; word < 2 * STEPS; ++word) {
                const Parts words = split_word(x, word);
#pragma unroll
                for (int at = 0; at < PARTS; ++at) part[at][word / 2].bits[word % 2 * 2 + half] = words.bits[at];
            }
        }
    }
};

struct SplitB {
    FragmentB part[PARTS][STEPS];

    __device__ __forceinline__ void take(const float* tile, int column, int k) {
        float x[VALUES];
        read<IS_K_MAJOR_B, PITCH_B>(tile, column, k, x);
#pragma unroll
        for (int word = 0; word < 2 * STEPS; ++word) {
            const Parts words = split_word(x, word);
#pragma unroll
            for (int at = 0; at < PARTS; ++at) part[at][word / 2].bits[word % 2] = words.bits[at];
        }
    }
};

using Sums = float[TILES_M][TILES_N][SUMS];

// One group: products of parts, the smallest of both steps first.
__device__ __forceinline__ void multiply_group(const float* tile, const Place& at, int k, bool adds, Sums& tensor_sums) {
    SplitB b[TILES_N];
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) b[j].take(tile + STAGE_A, at.column + j * MMA_N, k);
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
        const SplitA a(tile, at.row + i * MMA_M, k);
#pragma unroll
        for (int smallest = PARTS - 1; smallest >= 0; --smallest) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                for (int of_a = smallest; of_a >= 0; --of_a) {
                    const bool is_first = smallest == PARTS - 1 && of_a == smallest && step == 0;
#pragma unroll
                    for (int j = 0; j < TILES_N; ++j) {
                        multiply_step(tensor_sums[i][j], a.part[of_a][step], b[j].part[smallest - of_a][step],
                                      !is_first || adds);
                    }
                }
            }
        }
    }
}

__device__ __forceinline__ void multiply_tile(const float* tile, const Place& at, Sums& sums) {
#pragma unroll
    for (int first = 0; first < BK; first += PROMOTE_K) {
        Sums tensor_sums;
#pragma unroll
        for (int k = 0; k < PROMOTE_K; k += GROUP) multiply_group(tile, at, first + k + at.lane_k, k > 0, tensor_sums);
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
                for (int e = 0; e < SUMS; ++e) sums[i][j][e] += tensor_sums[i][j][e];
            }
        }
    }
}

// A thread's sums in shared memory, which no other touches; its neighbour's lie beside each.
struct FlushedSums {
    float* own;

    // Adds sums to those here, or begins them, and leaves zeros.
    __device__ __forceinline__ void flush(Sums& sums, bool adds) const {
#pragma unroll
        for (int i = 0; i < TILES_M * TILES_N * SUMS; ++i) {
            float& sum = sums[i / (TILES_N * SUMS)][i / SUMS % TILES_N][i % SUMS];
            store_shared<1>(own + i * THREADS, {adds ? load_shared<1>(own + i * THREADS).v[0] + sum : sum});
            sum = 0;
        }
    }
    __device__ __forceinline__ void add_to(Sums& sums) const {
#pragma unroll
        for (int i = 0; i < TILES_M * TILES_N * SUMS; ++i)
            sums[i / (TILES_N * SUMS)][i / SUMS % TILES_N][i % SUMS] += load_shared<1>(own + i * THREADS).v[0];
    }
};

// Adds to `sums` the product of all tiles.
__device__ __forceinline__ void multiply_tiles(Stages& stages, const Place& at, Sums& sums) {
    const FlushedSums flushed{Stages::flushed() + thread_index()};
    stages.fill();
#pragma unroll 1
    for (int tile = 0; tile < stages.num_tiles; ++tile) {
        multiply_tile(stages.next(), at, sums);
        if constexpr (FLUSH_K > 0) {
            const int depth = (tile + 1) * BK;
            if (depth % FLUSH_K == 0 && tile + 1 < stages.num_tiles) flushed.flush(sums, depth > FLUSH_K);
        }
    }
    if (FLUSH_K > 0 && stages.num_tiles * BK > FLUSH_K) flushed.add_to(sums);
}

// Stores a thread's sums in C, or scaled in the plane of their split, whose rows are whole tiles.
__device__ __forceinline__ void store_sums(const Sums& sums, const Place& at, int origin_m, int origin_n,
                                           const Output& output, float* plane, long long padded_n) {
    constexpr int VEC = IS_SPLIT ? 2 : VEC_C;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
            for (int e = 0; e < SUMS; e += VEC) {
                const int at_m = origin_m + at.row + i * MMA_M + e / 2 * 8;
                const int at_n = origin_n + at.first + j * MMA_N + e % 2;
                Vec<VEC> product;
#pragma unroll
                for (int v = 0; v < VEC; ++v)
                    product.v[v] = IS_SPLIT ? output.alpha * sums[i][j][e + v] : sums[i][j][e + v];
                if constexpr (IS_SPLIT) {
                    store_global<VEC>(plane + at_m * padded_n + at_n, product);
                } else {
                    if (at_m >= output.m || at_n >= output.n) continue;  // edge: C
                    output.store<VEC>(at_m, at_n, product, output.alpha);
                }
            }
        }
    }
}

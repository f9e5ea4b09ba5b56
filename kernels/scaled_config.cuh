// The parameters of the kernel on scaled operands, their rules, and what follows from them.
//
//   macro          meaning                                                  legal values (rule)
//   BN             columns of C per block; there are BM = 128 rows          64 128 192
//   STAGES         tiles of both operands in shared memory                  2 ... 6 (scaled-stages)
//   PROMOTE_K      k after which sums leave the tensor cores                16 32 64
//   VEC_C          floats per access to C                                   1 2
//   REDUCTION      how the sums of splits of k are added: in a second pass, or there are none          as in config.cuh
//   TRANS_A TRANS_B  the operand is stored transposed: the pass before reads it so
//   BATCHED BIAS ACTIVATION KEEPS   as in variant.cuh
#pragma once

#include "primitives.cuh"
#include "variant.cuh"

#define REDUCTION_NONE 0  // macros, since the preprocessor asks for these
#define REDUCTION_TWO_PASS 1
#define REDUCTION_CHUNKS 5
#define PACK_A 1  // always, by scaled_pack.cuh
#define PACK_B 1
#define SCALED_OPERANDS 1
constexpr bool ARE_CHUNKS = false;  // as in config.cuh
constexpr bool IS_SPLIT = REDUCTION == REDUCTION_TWO_PASS;
constexpr bool LAST_LETS_NEXT_BEGIN = false;
constexpr float SCALED = 1.0f;  // alpha, for sums that have been multiplied by it

constexpr int WARP = 32;
constexpr int WARPGROUP = 128;
constexpr int BM = 128, BK = 64;
constexpr int MULTIPLIERS = 2;                // warpgroups that multiply, MMA_M rows of C each
constexpr int MMA_M = 64, MMA_K = 16;         // of an instruction, which takes all BN columns
constexpr int STEPS = BK / MMA_K;             // of k, of a tile
constexpr int SUMS = MMA_M * BN / WARPGROUP;  // of C, of a multiplying thread
constexpr int THREADS = (1 + MULTIPLIERS) * WARPGROUP;
constexpr int LOADING_REGISTERS = 24, MULTIPLYING_REGISTERS = 240;  // of a thread

static_assert(BN == 64 || BN == 128 || BN == 192, "rule scaled-width");
static_assert(PROMOTE_K == 16 || PROMOTE_K == 32 || PROMOTE_K == 64, "rule scaled-promote");

// Sums of small products and of large ones have registers of their own, where there are so many.
constexpr int SETS = BN <= 128 ? 2 : 1;

#include "scaled_layout.cuh"
constexpr int TILE_A = BM * BK, TILE_B = BN * BK;       // words
constexpr int DIVISORS = BM + BN;                       // of a stage
constexpr int TILE_ALIGNMENT = 1024;                    // bytes: of PART

// Shared memory: tiles of A and B of all stages, their divisors, two barriers per stage.
constexpr int SHARED_FLOATS = STAGES * (TILE_A + TILE_B + DIVISORS + 2 * 2) + TILE_ALIGNMENT / 4;
static_assert(SHARED_FLOATS * 4 <= 227 * 1024, "rule scaled-stages");

// Floats of a packed operand of one product, as launch.packed_floats has it, and the tiles of k.
__device__ __forceinline__ constexpr int tiles_of_k(int k) { return k / BK + (k % BK != 0); }
__device__ __forceinline__ long long first_divisor(int k, int padded) {
    return static_cast<long long>(tiles_of_k(k)) * BK * padded;
}

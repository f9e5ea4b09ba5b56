// The parameters of the kernel on scaled operands without warpgroups, their rules, and what follows from them.
//
//   macro          meaning                                                  legal values (rule)
//   BM BN          block tile of C                                          64 128
//   WM             rows of C per warp; there are WN = 32 columns            32 64 (halves-warps, halves-registers)
//   DEPTH          k per stage, after which sums leave the tensor cores     16 32 (halves-stages)
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
constexpr int WN = 32, WARPS_N = BN / WN;
constexpr int THREADS = BM / WM * WARPS_N * WARP;
constexpr int MMA_M = 16, MMA_N = 8;                       // of an instruction, for 8 of k
constexpr int TILES_M = WM / MMA_M, TILES_N = WN / MMA_N;  // of a warp
constexpr int TILE_SUMS = MMA_M * MMA_N / WARP;            // of C, of a thread and such a tile
constexpr int SUMS = TILES_M * TILES_N * TILE_SUMS;

static_assert(BM % WM == 0 && THREADS >= 4 * WARP, "rule halves-warps");
static_assert(DEPTH == 16 || DEPTH == 32, "DEPTH");

constexpr int BK = 64;  // of a packed block
#include "scaled_layout.cuh"

// A stage has SLICE of each row and part of a block: DEPTH of its k. Rows of a block are swizzled by chunks, so which SLICE
// of a row that is depends on the row (halves_load.cuh).
constexpr int SLICES = BK / DEPTH;
constexpr int SLICE = ROW / SLICES;            // words
constexpr int SLICE_CHUNKS = SLICE / CHUNK;    // also the words of a lane, of four that share out a slice
constexpr int LANES_K = 4;
constexpr int STEPS = SLICE / LANES_K;         // instructions: each takes a word of each lane
constexpr int STAGES = 2;
constexpr int STAGE_A = BM * DEPTH;            // words; then B's, then what rows of A and of B were divided by
constexpr int STAGE_TILES = STAGE_A + BN * DEPTH;
constexpr int DIVISORS = BM + BN;
constexpr int STAGE_FLOATS = STAGE_TILES + DIVISORS;

// Floats of a packed operand of one product, as launch.packed_floats has it, and the tiles of k.
__device__ __forceinline__ constexpr int tiles_of_k(int k) { return k / BK + (k % BK != 0); }
__device__ __forceinline__ long long first_divisor(int k, int padded) {
    return static_cast<long long>(tiles_of_k(k)) * BK * padded;
}

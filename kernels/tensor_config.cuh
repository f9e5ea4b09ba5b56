// The parameters of the kernel on tensor cores, their rules, and what follows from them.
//
//   macro          meaning                                                  legal values (rule)
//   BN             columns of C per block; there are BM = 128 rows          64 128
//   STAGES         tiles of A and planes of B in shared memory              2 ... 6
//   PROMOTE_K      k after which sums leave the tensor cores               MMA_K 16, multiples of BK (tensor-promote)
//   FLUSH_K        k after which they go on to shared memory, 0: never     multiple of PROMOTE_K and BK (tensor-flush)
//   LOADERS        warpgroups that load                                     1 2
//   AHEAD          tiles of B that a loading thread has on their way        1 ... 4, 6
//   SCHEME         of which parts a float is, and which of their products count (tensor_split.cuh)        0 1
//   VEC_A VEC_B    words of 4 bytes per copy from global memory             1 4
//   VEC_C          floats per access to C                                   1 2
//   PACK_A PACK_B  the operand is copied first, by k, then m (n): rows of vectors, whatever its own are  0 1
//   REDUCTION      how the sums of splits of k are added: in a second pass, or there are none          as in config.cuh
//   TRANS_A TRANS_B  the operand is stored transposed
//   A_TYPE         of A's elements: 0 FP32, 1 BF16, 2 FP16, which PACK_A does not take (tensor-type)     default 0
//   BATCHED BIAS ACTIVATION KEEPS   as in variant.cuh
#pragma once

#include "primitives.cuh"
#include "variant.cuh"

#define REDUCTION_NONE 0  // macros, since the preprocessor asks for these
#define REDUCTION_TWO_PASS 1
#define REDUCTION_CHUNKS 5
#define SCHEME_TF32X3 0  // two parts of 11 bits, three products
#define SCHEME_BF16X6 1  // three of 8 bits, six products
#define A_FP32 0
#define A_BF16 1
#define A_FP16 2
#ifndef A_TYPE
#define A_TYPE A_FP32
#endif
constexpr bool ARE_CHUNKS = false;  // as in config.cuh
constexpr bool IS_SPLIT = REDUCTION == REDUCTION_TWO_PASS;
constexpr bool LAST_LETS_NEXT_BEGIN = false;
constexpr float SCALED = 1.0f;  // alpha, for sums that have been multiplied by it

constexpr int WARP = 32;
constexpr int WARPGROUP = 128;
constexpr int BM = 128, BK = 32;
constexpr int MULTIPLIERS = 2;                  // warpgroups that multiply, MMA_M rows of C each
constexpr int PARTS = SCHEME == SCHEME_BF16X6 ? 3 : 2;   // of a float
constexpr int PACKED = SCHEME == SCHEME_BF16X6 ? 2 : 1;  // parts of neighbours along k in a word
// Those of A's elements that may be other than 0: BF16 is one part of either scheme, FP16 one of TF32 or two of BF16.
constexpr int PARTS_A = A_TYPE == A_FP32 ? PARTS : A_TYPE == A_FP16 && SCHEME == SCHEME_BF16X6 ? 2 : 1;
constexpr int PER_WORD_A = A_TYPE == A_FP32 ? 1 : 2;  // elements of A in 4 bytes
constexpr int MMA_M = 64, MMA_K = 8 * PACKED;   // of an instruction, which takes all BN columns
constexpr int STEPS = BK / MMA_K;               // of k, of a tile
constexpr int SUMS = MMA_M * BN / WARPGROUP;    // of C, of a multiplying thread
constexpr int LOADING = LOADERS * WARPGROUP;    // threads
constexpr int THREADS = LOADING + MULTIPLIERS * WARPGROUP;

static_assert(SCHEME == SCHEME_TF32X3 || SCHEME == SCHEME_BF16X6, "SCHEME");
static_assert(A_TYPE == A_FP32 || !PACK_A, "rule tensor-type");
static_assert(BN == 64 || BN == 128, "rule tensor-width");
static_assert(PROMOTE_K < BK ? PROMOTE_K == MMA_K || PROMOTE_K == 16 : PROMOTE_K % BK == 0,
              "rule tensor-promote");
static_assert(FLUSH_K % BK == 0 && FLUSH_K % PROMOTE_K == 0, "rule tensor-flush");

// Registers of a thread: those that multiply hold two sets of sums, and what they have read and split of A. Where that is
// more than a thread is given, they take it of those that load.
constexpr int GIVEN_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr int MULTIPLYING_REGISTERS = 2 * SUMS + 64;
constexpr bool MOVES_REGISTERS = MULTIPLYING_REGISTERS > GIVEN_REGISTERS;
constexpr int LOADING_REGISTERS =
    (GIVEN_REGISTERS * (LOADERS + MULTIPLIERS) - MULTIPLYING_REGISTERS * MULTIPLIERS) / LOADERS / 8 * 8;

// A's tile is kept as it is in global memory, along k or along m, with rows so far apart that the lanes of a warp, eight
// rows by four k, touch different banks. Elements of two bytes are neighbours in words: rows of half as many.
constexpr bool IS_K_MAJOR_A = !TRANS_A && !PACK_A, IS_K_MAJOR_B = TRANS_B && !PACK_B;
constexpr int PITCH_A = (IS_K_MAJOR_A ? BK + (PER_WORD_A == 1 ? 4 : 0) : BM + 8) / PER_WORD_A;  // words
constexpr int TILE_A = (IS_K_MAJOR_A ? BM : BK) * PITCH_A;

// B's tile is split on its way: a plane for each part, rows along k for each column of C. A word holds the parts of PACKED
// elements, a chunk four words. The chunks of eight rows are swizzled, as the tensor cores read them: 128 bytes of a row,
// or 64 bytes of two.
constexpr int CHUNK = 4;                                    // words, or floats in memory
constexpr int CHUNKS = BK / CHUNK;                          // of floats in a row
constexpr int ROW = BK / PACKED;                            // words of a plane
constexpr int SWIZZLED_ROWS = 8;
constexpr int PLANE = BN * ROW;                             // words
constexpr int PLANE_ALIGNMENT = 1024;                       // bytes: of SWIZZLED_ROWS of the longest
constexpr int TASKS = BN * BK / (LOADING * CHUNK * CHUNK);  // of a loading thread and tile: 4 x 4 elements of B each

// Which k the element `at` of a row's chunk holds, where a word is one element; where it is two, word `at` of a chunk
// holds those that two neighbouring chunks would. Four lanes of a warp read A for the same step, and where A is along
// k each of them reads eight neighbours, so the k of a step are eight apart; B follows. What is summed in which step
// is free: the order within what leaves the tensor cores at a time is promised nowhere.
__device__ constexpr int k_of(int chunk, int at) { return IS_K_MAJOR_A ? chunk + CHUNKS * at : CHUNK * chunk + at; }
// The same for a place in a row of all elements.
__device__ constexpr int k_at(int place) {
    return k_of(place / (CHUNK * PACKED) * PACKED + place % PACKED, place / PACKED % CHUNK);
}

// Shared memory: planes of all stages, then tiles of A, flushed sums, and two barriers per stage.
constexpr int FLUSHED = FLUSH_K > 0 ? BM * BN : 0;  // floats
constexpr int SHARED_FLOATS = STAGES * (PARTS * PLANE + TILE_A) + FLUSHED + STAGES * 2 * 2 + PLANE_ALIGNMENT / 4;
static_assert(SHARED_FLOATS * 4 <= 227 * 1024, "rule tensor-stages");

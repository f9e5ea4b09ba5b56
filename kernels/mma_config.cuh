// The parameters of the kernel on tensor cores of any GPU since sm_80, their rules, and what follows from them.
//
//   macro          meaning                                                  legal values (rule)
//   BM BN BK       block tile of C, and depth of k per stage                64 128, 64 128, 16 32
//   WM WN          warp tile                                                32 64 (mma-warps, mma-registers)
//   STAGES         tiles of A and B in shared memory                        2 ... 5 (mma-stages)
//   PROMOTE_K      k after which sums leave the tensor cores                16 32, divides BK (mma-promote)
//   FLUSH_K        k after which they go on to shared memory, 0: never      multiple of BK (mma-flush)
//   SCHEME         of which parts a float is, and which of their products count (tensor_split.cuh)        0 1
//   VEC_A VEC_B    floats per copy from global memory                       1 4
//   VEC_C          floats per access to C                                   1 2
//   PACK_A PACK_B  the operand is copied first, by k, then m (n): rows of vectors, whatever its own are  0 1
//   REDUCTION      how the sums of splits of k are added: in a second pass, or there are none          as in config.cuh
//   TRANS_A TRANS_B  the operand is stored transposed
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
#define A_TYPE A_FP32  // of A's elements, as tensor_split.cuh asks: floats alone (mma-type)
constexpr bool ARE_CHUNKS = false;  // as in config.cuh
constexpr bool IS_SPLIT = REDUCTION == REDUCTION_TWO_PASS;
constexpr bool LAST_LETS_NEXT_BEGIN = false;
constexpr float SCALED = 1.0f;  // alpha, for sums that have been multiplied by it

static_assert(SCHEME == SCHEME_TF32X3 || SCHEME == SCHEME_BF16X6, "SCHEME");
static_assert(BM % WM == 0 && BN % WN == 0 && (BM / WM) * (BN / WN) >= 4, "rule mma-warps");
static_assert(BK % PROMOTE_K == 0 && PROMOTE_K % 16 == 0, "rule mma-promote");
static_assert(FLUSH_K % BK == 0, "rule mma-flush");
#ifdef __CUDA_ARCH__
static_assert(__CUDA_ARCH__ >= 800, "rule mma-device");
#endif

constexpr int WARP = 32;
constexpr int WARPS_N = BN / WN;
constexpr int THREADS = BM / WM * WARPS_N * WARP;
constexpr int PARTS = SCHEME == SCHEME_BF16X6 ? 3 : 2;   // of a float
constexpr int PACKED = SCHEME == SCHEME_BF16X6 ? 2 : 1;  // parts of neighbours in a word
constexpr int MMA_M = 16, MMA_N = 8, MMA_K = 8 * PACKED;  // of an instruction
constexpr int TILES_M = WM / MMA_M, TILES_N = WN / MMA_N;  // of a warp
constexpr int SUMS = MMA_M * MMA_N / WARP;                // of C, of a thread and such a tile

// A warp has GROUP of k in registers at a time: a step of BF16 or two of TF32. Of a row (m of A, n of B) four lanes share
// them out. Which k stand for which of an instruction is free, if A's and B's agree: lane q takes q, q + 4, q + 8, q + 12.
constexpr int GROUP = 16, LANES_K = 4;
constexpr int VALUES = GROUP / LANES_K;
constexpr int STEPS = GROUP / MMA_K;

// Tiles are kept as they are in global memory, along k or along m (n). Rows are so far apart that the lanes of a warp, eight
// rows by four k, touch different banks: 4 floats more than a multiple of 16 along k (8 rows by 20 or 36, and 4
// neighbours, are all 32 banks), 8 more than a multiple of 32 otherwise.
constexpr bool IS_K_MAJOR_A = !TRANS_A && !PACK_A, IS_K_MAJOR_B = TRANS_B && !PACK_B;
constexpr int PITCH_A = IS_K_MAJOR_A ? BK + 4 : BM + 8, PITCH_B = IS_K_MAJOR_B ? BK + 4 : BN + 8;
constexpr int STAGE_A = (IS_K_MAJOR_A ? BM : BK) * PITCH_A;  // floats of A's tile in a stage; B's lies after it
constexpr int STAGE_FLOATS = STAGE_A + (IS_K_MAJOR_B ? BN : BK) * PITCH_B;

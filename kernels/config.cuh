// The parameters of one instance, the rules that they obey, and what follows from them.
//
// All arrive as macros (`-DBM=64`), written by autotune/kernel/template.py from one Config.
//
//   macro          meaning                                             legal values (rule)
//   BM BN BK       block tile of C, and depth of k per stage           (block-warps-m/n, slices)
//   WM WN          warp tile: of all lanes, or of one where lanes share out k     (warp-lanes, lanes-along-k)
//   TM TN          thread tile                                         1 2 4 6 8 12 16
//   SLICE_K        slices: groups of warps that share out BK           divides BK (slices)
//   FLUSH_K        k after which sums are flushed, or split; 0: never  multiple of BK (flush)
//   UNROLL_K       k unrolled in the main loop                         divides BK / SLICE_K (unroll)
//   FRAG_BUFFERS   register buffers per operand fragment               1 2 (fragment-parity)
//   BURSTS         parts in which a tile's copies start                1 2 4 8 (bursts)
//   STAGES         tiles of A and B in shared memory                   1 ... 8
//   PAD            floats after each shared row of a K-major operand   (pad-a, pad-b)
//   PACK_A PACK_B  1: copied by k, then m or n, before the product     0 1 (pack-workspace)
//   COPY_A COPY_B  0 through registers, 1 asynchronous                 (async-transpose-a/b)
//   VEC_A VEC_B    floats per copy from global memory                  1 2 4 (vector-a, vector-b)
//   VEC_C          floats per access to C                              1 2 4 (vector-c)
//   ORDER          0 row 1 row_snake 2 col_snake 3 zigzag 4 pair_snake, 5 packed_row_snake 6 packed_col_snake (packed-device)
//   MIN_BLOCKS     blocks per SM that registers must allow
//   EDGES          0 exact: tiles fit C;  1 predicated
//   REDUCTION      of split-K: 0 none, 1 two_pass, 2 last_block, 3 last_wave, 4 cluster, 5 chunks (chunks)
//   CLUSTER        blocks that share out k, for REDUCTION cluster       2 4 8 (cluster-size), else 1
//   TRANS_A TRANS_B  the operand is stored transposed
//   WIDE           leading dimensions of 2^29 and more
//   BATCHED        1: a batch of products, operands a stride apart             0 1, default 0
//   BIAS           added to the product: 0 none, 1 rows, a value for each row of C, 2 columns    default 0
//   ACTIVATION     of what is stored in C: 0 none, 1 relu, 2 gelu, 3 gelu_tanh                   default 0
//   KEEPS          1: what the activation is given is stored, too              0 1, default 0
//
// Worked example, the defaults BM 64, BN 128, BK 16, WM 32, WN 64, TM = TN = 8, STAGES 3, PAD 4, NN:
//
//   warps    2 x 2, THREADS 128; the lanes of a warp stand 4 x 8
//   thread   CHUNK_M = CHUNK_N = 4: it owns rows 0-3 and 16-19 and columns 0-3 and 32-35 of its warp tile, plus 4
//            for each row (column) of lanes before its own
//   stage    A is K-major, so its rows are padded: ROW_A = 68, ROW_B = 128; 16 * (68 + 128) floats = 12.25 KB,
//            three stages 36.75 KB
//   slices   with SLICE_K 2: 256 threads, of which the first 128 multiply k 0-7 of each tile, the others k 8-15
#pragma once

#include "primitives.cuh"
#include "variant.cuh"

constexpr int WARP = 32;
constexpr int MAX_THREADS = 1024;

// ------------------------------------------------------------- words that macros stand for, by number

enum { COPY_REGISTER = 0, COPY_ASYNC = 1 };
enum { EDGES_EXACT, EDGES_PREDICATED };
enum {
    ORDER_ROW, ORDER_ROW_SNAKE, ORDER_COL_SNAKE, ORDER_ZIGZAG, ORDER_PAIR_SNAKE, ORDER_PACKED_ROW_SNAKE,
    ORDER_PACKED_COL_SNAKE
};
#define REDUCTION_NONE 0  // macros, since the preprocessor asks for these
#define REDUCTION_TWO_PASS 1
#define REDUCTION_LAST_BLOCK 2
#define REDUCTION_LAST_WAVE 3
#define REDUCTION_CLUSTER 4
#define REDUCTION_CHUNKS 5

// ------------------------------------------------------------------------------------ tiles and threads

static_assert(WM % TM == 0 && WN % TN == 0 &&
              ((WM / TM) * (WN / TN) == WARP || (WM / TM) * (WN / TN) == 1),
              "rule warp-lanes");
static_assert(BM % WM == 0, "rule block-warps-m");
static_assert(BN % WN == 0, "rule block-warps-n");
static_assert(BK % SLICE_K == 0, "rule slices");
static_assert((BK / SLICE_K) % UNROLL_K == 0, "rule unroll");
static_assert(FRAG_BUFFERS == 1 || UNROLL_K % 2 == 0, "rule fragment-parity");

// Widest of 4, 2, 1 floats that divides a thread's extent: one access to shared memory.
__device__ constexpr int chunk_of(int extent) { return extent % 4 == 0 ? 4 : extent % 2 == 0 ? 2 : 1; }

constexpr int LANES_M = WM / TM;
constexpr int LANES_N = WN / TN;
constexpr int LANES_K = LANES_M * LANES_N == 1 ? WARP : 1;  // lanes that share out k (dot_products.cuh)
constexpr int WARPS_N = BN / WN;
constexpr int THREADS_PER_SLICE = (BM / WM) * (BN / WN) * WARP;
constexpr int THREADS = THREADS_PER_SLICE * SLICE_K;
constexpr int OWNERS = THREADS_PER_SLICE / LANES_K;  // threads whose sums are of different elements of C
constexpr int SLICE_BK = BK / SLICE_K;
constexpr int STEP_K = BK * LANES_K;  // depth of a step of the main loop
constexpr int CHUNK_M = chunk_of(TM);
constexpr int CHUNK_N = chunk_of(TN);

static_assert(THREADS <= MAX_THREADS, "rule threads");
static_assert(CHUNK_N % VEC_C == 0, "rule vector-c");
static_assert(FLUSH_K % BK == 0, "rule flush");

// ---------------------------------------------------------------------------------- copies and stages

// Shared memory holds both operands by k, then m or n, whatever their layout in global memory. A K-major operand is
// contiguous along k in global memory: it is transposed on its way, and its rows are padded, so that the threads that
// store neighbours along k meet different banks. One that was packed before (pack.cuh) is K-major no longer.
constexpr bool IS_K_MAJOR_A = !TRANS_A && !PACK_A;
constexpr bool IS_K_MAJOR_B = TRANS_B && !PACK_B;
constexpr int ROW_A = BM + (IS_K_MAJOR_A ? PAD : 0);  // floats from one k to the next
constexpr int ROW_B = BN + (IS_K_MAJOR_B ? PAD : 0);
constexpr int STAGE_A = BK * ROW_A;  // floats of A's tile in a stage; B's lies after it
constexpr int STAGE_FLOATS = LANES_K == 1 ? STAGE_A + BK * ROW_B : 0;

static_assert((IS_K_MAJOR_A ? BK : BM) % VEC_A == 0, "rule vector-a");
static_assert((IS_K_MAJOR_B ? BK : BN) % VEC_B == 0, "rule vector-b");
static_assert(COPY_A != COPY_ASYNC || VEC_A == 1 || !IS_K_MAJOR_A, "rule async-transpose-a");
static_assert(COPY_B != COPY_ASYNC || VEC_B == 1 || !IS_K_MAJOR_B, "rule async-transpose-b");
static_assert(!IS_K_MAJOR_A || PAD % CHUNK_M == 0, "rule pad-a");
static_assert(!IS_K_MAJOR_B || PAD % CHUNK_N == 0, "rule pad-b");
static_assert(BURSTS == 1 || (UNROLL_K == SLICE_BK && UNROLL_K % (2 * BURSTS) == 0 && STAGES > 1), "rule bursts");

constexpr bool HAS_ASYNC = COPY_A == COPY_ASYNC || COPY_B == COPY_ASYNC;
#ifdef __CUDA_ARCH__
static_assert(!HAS_ASYNC || __CUDA_ARCH__ >= 800, "rule async-device");
static_assert(ORDER < ORDER_PACKED_ROW_SNAKE || __CUDA_ARCH__ / 100 == 10, "rule packed-device");
#endif

constexpr bool IS_PREDICATED = EDGES == EDGES_PREDICATED;
constexpr bool HAS_EDGES_A = IS_PREDICATED && !PACK_A;  // packed operands are whole tiles
constexpr bool HAS_EDGES_B = IS_PREDICATED && !PACK_B;

#if WIDE
using Stride = long long;
#else
using Stride = int;  // in bytes: leading dimensions below 2^29 floats
#endif

// ------------------------------------------------------------------------------- reductions and launches

// With chunks every split is FLUSH_K deep, whatever k is: the order of all sums depends on k alone.
constexpr bool ARE_CHUNKS = REDUCTION == REDUCTION_CHUNKS;
constexpr bool HAS_PLANES = REDUCTION == REDUCTION_TWO_PASS || ARE_CHUNKS;  // a second kernel adds the splits
constexpr bool HAS_FLUSHES = FLUSH_K > 0 && !ARE_CHUNKS;
static_assert(!ARE_CHUNKS || (FLUSH_K > 0 && SLICE_K == 1 && LANES_K == 1), "rule chunks");
static_assert(REDUCTION == REDUCTION_CLUSTER ? CLUSTER == 2 || CLUSTER == 4 || CLUSTER == 8 : CLUSTER == 1,
              "rule cluster-size");
#ifdef __CUDA_ARCH__
static_assert(REDUCTION != REDUCTION_CLUSTER || __CUDA_ARCH__ >= 900, "rule cluster-device");
#endif

// Which kernels let the next one on the stream begin early: those whose next is of the same call. The last one of
// a call may do so too, for any call after it: its blocks then wait in places that other streams could use.
constexpr bool LAST_LETS_NEXT_BEGIN = false;
constexpr bool LETS_NEXT_BEGIN = HAS_PLANES || LAST_LETS_NEXT_BEGIN;

// ------------------------------------------------------------------------------------------ shared memory

// The stages, and flushed sums after them; or what sums go through once the tiles are read: the slices take the whole
// tile of C; rows on their way to C (staged_rows.cuh) as many at a time as there is room for, one of each thread at
// least. They lie so far apart that lanes in different rows touch different banks.
__device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
constexpr bool HAS_LONG_ACTIVATION = ACTIVATION == ACTIVATION_GELU || ACTIVATION == ACTIVATION_GELU_TANH;
constexpr bool HAS_STAGED_ROWS =
    REDUCTION == REDUCTION_CLUSTER ||
    (!HAS_PLANES && (VEC_C < CHUNK_N || HAS_LONG_ACTIVATION));
constexpr int ROW_GROUPS = BM / TM;  // lanes of the block that stand along m
constexpr int STAGED_PITCH = BN + (LANES_N * CHUNK_N + WARP * MAX_THREADS - BN) % WARP;
constexpr int STAGED_FLOATS = HAS_STAGED_ROWS ? ROW_GROUPS * STAGED_PITCH : 0;
constexpr int SLICES_FLOATS = SLICE_K > 1 || LANES_K > 1 ? BM * BN : 0;
constexpr int FLUSH_FLOATS = HAS_FLUSHES ? THREADS * TM * TN : 0;
constexpr int SHARED_FLOATS =
    max_of(STAGES * STAGE_FLOATS + FLUSH_FLOATS, max_of(SLICES_FLOATS, STAGED_FLOATS));

// The most rows of a thread, `rows` at most, that fit at once and divide TM.
__device__ constexpr int staged_round(int rows) {
    return TM % rows == 0 && rows * STAGED_FLOATS <= SHARED_FLOATS ? rows : staged_round(rows - 1);
}
constexpr int STAGED_ROUND = staged_round(TM);  // rows of each thread that go through shared memory at a time

// The largest power of two, `most` at most, that divides `count`.
__device__ constexpr int power_of_two_in(int count, int most) {
    return count % most == 0 ? most : power_of_two_in(count, most / 2);
}

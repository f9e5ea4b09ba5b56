// C = alpha * op(A) * op(B) + beta * C, in FP32 on CUDA cores: strict FMA, every sum in a fixed order.
//
//   C is m x n, op(A) is m x k, op(B) is k x n, all row-major:
//     C[i][j] = c[i * ldc + j]
//     A[i][p] = a[i * lda + p], or a[p * lda + i] if TRANS_A
//     B[p][j] = b[p * ldb + j], or b[j * ldb + p] if TRANS_B
//
//   A kernel for batches computes many such products, A, B and C of each a stride from those of the one before. An
//   epilogue adds a bias, keeps the result, and applies an activation, where the kernel is compiled with them.
//
//             n                        grid   one block per BM x BN tile of C (and per split of k)
//        ┌────┬────┬────┐              block  warps of WM x WN; SLICE_K groups of them share out BK
//      m │    │ BN │    │              warp   32 lanes as LANES_M x LANES_N, or all along k
//        │    ├────┤    │              thread TM x TN sums in registers, in chunks of up to 4 x 4
//        │ BM │####│    │
//        │    ├─┬──┤    │     ┌──WN──┐       k runs in steps of BK: a tile of A (BM x BK) and one of B
//        │    │ │  │    │     │∙∙∙∙∙∙│WM     (BK x BN) are copied to one of STAGES stages in shared
//        └────┴─┴──┴────┘     └──────┘       memory while earlier ones are multiplied.
//
// The words: k runs over the depth. A *tile* is what a block computes of C, or copies of A and B per step of k. A
// *stage* is a place in shared memory for one tile of A and one of B. A *fragment* is what a thread reads of it for
// one k. A *split* is a block's share of k (split-K), a *slice* the share that a group of warps has of each tile's k.
// A *wave* is all blocks that the GPU holds at once.
//
// The files, in the order in which the kernel below goes through them:
//
//   config.cuh            parameters, rules, and what follows from them, with a worked example
//   tile_scheduler.cuh    a block's tile of C, and its split
//   thread_tile.cuh       which elements of the tile a thread owns
//   tile_copy.cuh         one operand's tile: global to shared memory, edges, transposing on the way
//   pipeline.cuh          stages: when tiles are copied, waited for, and overwritten, drawn over time
//   main_loop.cuh         copy, advance, load, multiply: tile after tile
//     fragments.cuh       shared memory to registers
//     multiply.cuh        the FMAs and their order
//     flush.cuh           blocked summation, around the main loop
//   chunks.cuh            the same, of the chunks that a block has, and sums handed from block to block
//   dot_products.cuh      the main loop where lanes share out k: no copies, no shared memory
//   reduce_*.cuh          sums of slices; of splits: two_pass and chunks, last_block and last_wave, cluster
//   epilogue.cuh          scale, bias, activation, store
//     staged_rows.cuh     through shared memory, for a C that takes no vectors, and for clusters
//   pack.cuh              before all this: an operand copied to where tiles are read best
//   primitives.cuh        all that is asked of the hardware
//
// Sources: the hierarchy of tiles is CUTLASS's (Kerr et al., "CUTLASS: Fast Linear Algebra in CUDA
// C++", 2017); the multistage pipeline of cp.async is described in the CUTLASS 2.x documentation; the
// classic steps towards it in S. Boehm, "How to Optimize a CUDA Matmul Kernel", 2022. docs/ladder.md walks
// through the files along these steps.
#include "chunks.cuh"
#include "config.cuh"
#include "dot_products.cuh"
#include "epilogue.cuh"
#include "main_loop.cuh"
#include "pack.cuh"
#include "primitives.cuh"
#include "reduce_cluster.cuh"
#include "reduce_last_block.cuh"
#include "reduce_slices.cuh"
#include "reduce_two_pass.cuh"
#include "staged_rows.cuh"
#include "tile_scheduler.cuh"

// Launch: grid and workspace as launch.Grid says, THREADS threads, the shared memory of resources.smem_bytes.
// All kernels wait for those before them on the stream, so that they may be launched early (LaunchSpec.overlaps).
// m and n are at least 1; k = 0 and alpha = 0 scale C and read neither A nor B. A packed operand comes as
// sgemm_pack left it: its rows are along k, and its leading dimension is whole tiles. `batch` and `epilogue` are read
// by kernels that have them.
extern "C" __global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(THREADS, MIN_BLOCKS)
    sgemm(int m, int n, int k, float alpha, const float* READ_ONLY a, long long lda, const float* READ_ONLY b,
          long long ldb, float beta, float* __restrict__ c, long long ldc, float* __restrict__ workspace, int splits,
          Schedule schedule, Batch batch, Epilogue epilogue) {
    if constexpr (ARE_CHUNKS) {  // a block may have part of several tiles, and more than one chunk
        multiply_chunks(m, n, k, alpha, a, lda, b, ldb, workspace, splits, schedule, batch);
        return;
    }
    // 1. The block's tile of C, of which product, and its split.
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN, tiles = tiles_m * tiles_n;
    const WorkTile work(IS_BATCHED ? tiles * batch.products : tiles, splits);
    const int product = IS_BATCHED ? schedule.product.quotient(work.tile) : 0;
    const TileCoord tile = tile_coord(work.tile - product * tiles, schedule);
    const int origin_m = tile.m * BM, origin_n = tile.n * BN;
    if constexpr (IS_BATCHED) {
        a += product * batch.stride_a;
        b += product * batch.stride_b;
    }
    const Output output(m, n, alpha, beta, c, ldc, batch.stride_c, product, epilogue);

    // 2. The split's share of k, in tiles (of BK, times the lanes that share out k). The first tile of all is the
    //    ragged one, k % BK deep where that is not 0: all others are full, and the main loop tests nothing. For
    //    k = 70, BK = 16 and two splits:
    //
    //    k   0    6        22       38       54       70
    //        ├────┼────────┼────────┼────────┼────────┤
    //        │ split 0              │ split 1         │
    const int k_tiles = alpha == 0 ? 0 : k / STEP_K + (k % STEP_K != 0);
    const int ragged = k - (k_tiles - 1) * STEP_K;
    const int most = (k_tiles + work.splits - 1) / work.splits, first = most * work.split;
    const int num_tiles = first + most < k_tiles ? most : k_tiles - first;
    const int k_begin = first == 0 ? 0 : ragged + (first - 1) * STEP_K;

    // 3. The main loop: each thread has the sums of its slice over the split's k.
    const ThreadTile thread;
    float sums[TM][TN] = {};
    Pipeline pipeline{CopyA(a, lda, origin_m, m, k_begin), CopyB(b, ldb, origin_n, n, k_begin), num_tiles};
    wait_for_kernels_before();
    if constexpr (LETS_NEXT_BEGIN) let_next_kernel_begin();
    if (num_tiles > 0) {
        const int first_depth = first == 0 ? ragged : STEP_K;
        if constexpr (LANES_K > 1) {
            DotProducts lines{LinesA(a, lda, origin_m, m, k_begin), LinesB(b, ldb, origin_n, n, k_begin), num_tiles};
            multiply_all(lines, thread, first_depth, sums);
        } else {
            multiply_all(pipeline, thread, first_depth, sums);
        }
    }

    // 4. The slices of the block become one.
    add_slices(sums, thread);

    // 5. The splits become one: here, in the block that comes last, or in the next kernel.
    if constexpr (HAS_PLANES) {
        const long long plane = static_cast<long long>(tiles_m * BM) * (tiles_n * BN);
        store_plane(sums, thread, origin_m, origin_n, alpha, workspace + (product * splits + work.split) * plane,
                    tiles_n * BN);
        return;
    }
    if constexpr (REDUCTION == REDUCTION_LAST_BLOCK || REDUCTION == REDUCTION_LAST_WAVE) {
        if (work.splits > 1 &&
            !add_splits(sums, thread, work.tile - work.whole, work.split_tiles, work.split, splits, workspace))
            return;
    }
    if constexpr (REDUCTION == REDUCTION_CLUSTER) {
        add_cluster_and_store(sums, thread, work.split, origin_m, origin_n, output);
        return;
    }

    // 6. The epilogue: scale, what the kernel adds to that, and store.
    store_tile(sums, thread, origin_m, origin_n, output);
}

// C = alpha * op(A) * op(B) + beta * C, in FP32 on tensor cores of any GPU since sm_80: products of TF32 or BF16 parts.
//
//   Operands and layouts as in sgemm.cu, and its launch: the same arguments, one block per BM x BN tile of C.
//
//             n                        block     (BM / WM) x (BN / WN) warps, all of which copy and multiply
//        ┌────┬────┬────┐              warp      WM x WN of the tile, by instructions for 16 x 8 of it and 8 (TF32) or
//      m │    │ BN │    │                        16 (BF16) of k
//        │    ├────┤    │              thread    WM * WN / 32 sums, twice: the tensor cores', and its own, to which those
//        │ BM │####│    │                        are added after PROMOTE_K
//        └────┴────┴────┘              stage     a tile of A and one of B as they are in memory: floats, which each warp
//                                                splits in registers (tensor_split.cuh)
//
// The files, in the order in which the kernel goes through them:
//
//   mma_config.cuh      parameters, rules, and what follows from them
//   schedule.cuh        which tile of C a block takes
//   mma_load.cuh        global memory to a stage
//   tensor_split.cuh    a float as two of 11 bits, or three of 8
//   mma_multiply.cuh    a stage to sums, and these to C
//   output.cuh          scale, bias, activation, store
//   pack.cuh            before it, for operands without aligned rows; reduce_planes.cuh behind it, for splits of k
//   mma_primitives.cuh  all that is asked of the hardware beyond primitives.cuh
//
// Sources: those of tensor_sgemm.cu; where a lane's elements are, PTX ISA, "Matrix Fragments for mma.m16n8k8" and k16.
#include "mma_config.cuh"
#include "mma_load.cuh"
#include "mma_multiply.cuh"
#include "output.cuh"
#include "pack.cuh"
#include "primitives.cuh"
#include "reduce_planes.cuh"
#include "schedule.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sgemm(int m, int n, int k, float alpha, const float* READ_ONLY a, long long lda, const float* READ_ONLY b,
          long long ldb, float beta, float* __restrict__ c, long long ldc, float* __restrict__ workspace, int splits,
          Schedule schedule, Batch batch, Epilogue epilogue) {
    // 1. The block's tile of C, of which product, and its split.
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN, tiles = tiles_m * tiles_n;
    const int product = IS_BATCHED ? schedule.product.quotient(block_index_x()) : 0;
    const TileCoord tile = tile_coord(block_index_x() - product * tiles, schedule);
    const int origin_m = tile.m * BM, origin_n = tile.n * BN;
    if constexpr (IS_BATCHED) {
        a += product * batch.stride_a;
        b += product * batch.stride_b;
    }
    const int k_tiles = alpha == 0 ? 0 : k / BK + (k % BK != 0);
    int num_tiles = k_tiles;
    if constexpr (IS_SPLIT) {
        const int most = (k_tiles + splits - 1) / splits, first = most * block_index_y();
        num_tiles = first + most < k_tiles ? most : k_tiles - first;  // 0 or less: others have it all
        a += IS_K_MAJOR_A ? first * BK : first * BK * lda;
        b += IS_K_MAJOR_B ? first * BK : first * BK * ldb;
        k -= first * BK;  // what is beyond this split is in tiles that it does not load
    }
    wait_for_kernels_before();
    if constexpr (IS_SPLIT) let_next_kernel_begin();

    // 2. Tile after tile.
    Stages stages{{a, lda, origin_m, m, k, shared_memory()}, {b, ldb, origin_n, n, k, shared_memory() + STAGE_A}, num_tiles};
    const Place at;
    Sums sums = {};
    multiply_tiles(stages, at, sums);

    // 3. To C, or to the plane of this split.
    const Output output(m, n, alpha, beta, c, ldc, batch.stride_c, product, epilogue);
    const long long padded_n = tiles_n * BN, plane = tiles_m * BM * padded_n;
    store_sums(sums, at, origin_m, origin_n, output,
               IS_SPLIT ? workspace + (product * splits + block_index_y()) * plane : nullptr, padded_n);
}

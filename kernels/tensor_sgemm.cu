// C = alpha * op(A) * op(B) + beta * C, in FP32 on tensor cores: three products of TF32 parts for one of floats.
//
//   Operands and layouts as in sgemm.cu, and its launch: the same arguments, one block per BM x BN tile of C. A may be of
//   BF16 or FP16, whose elements are fewer parts, and multiplied by fewer instructions: exactly all the same.
//
//             n                        block        warpgroups of 128 threads: LOADERS that load, two that multiply
//        ┌────┬────┬────┐              warpgroup    MMA_M x BN of the tile, by one instruction for MMA_K of k
//      m │    │ BN │    │              thread       SUMS sums, twice: the tensor cores', and its own, to which those
//        │    ├────┤    │                           are added after PROMOTE_K
//        │ BM │####│    │              stage        a tile of A as it is in memory, and two planes of B: the high and
//        └────┴────┴────┘                           the low parts of its tile (tensor_split.cuh)
//
// The files, in the order in which the kernel goes through them:
//
//   tensor_config.cuh      parameters, rules, and what follows from them
//   schedule.cuh           which tile of C a block takes
//   tensor_stages.cuh      what passes between warpgroups that load and those that multiply
//   tensor_load.cuh        global memory to a stage
//   tensor_split.cuh       a float as two of 11 bits
//   tensor_multiply.cuh    a stage to sums, and these to C
//   output.cuh             scale, bias, activation, store
//   pack.cuh               before it, for operands without aligned rows; reduce_planes.cuh behind it, for splits of k
//   tensor_primitives.cuh  all that is asked of the hardware beyond primitives.cuh
//
// Sources: splitting, and which products count, M. Fasi, N. Higham, F. Lopez, T. Mary and M. Mikaitis, "Matrix
// Multiplication in Multiword Arithmetic", 2023; sums that leave the tensor cores, H. Ootomo and R. Yokota, "Recovering
// Single Precision Accuracy from Tensor Cores While Surpassing the FP32 Theoretical Peak Performance", 2022; warpgroups
// that load and such that multiply, CUTLASS 3.x ("warp-specialized").
#include "tensor_config.cuh"
#include "output.cuh"
#include "pack.cuh"
#include "primitives.cuh"
#include "reduce_planes.cuh"
#include "schedule.cuh"
#include "tensor_load.cuh"
#include "tensor_multiply.cuh"
#include "tensor_stages.cuh"

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
        a = further(a, product * batch.stride_a);
        b += product * batch.stride_b;
    }
    const int k_tiles = alpha == 0 ? 0 : k / BK + (k % BK != 0);
    int num_tiles = k_tiles;
    if constexpr (IS_SPLIT) {
        const int most = (k_tiles + splits - 1) / splits, first = most * block_index_y();
        num_tiles = first + most < k_tiles ? most : k_tiles - first;  // 0 or less: others have it all
        a = further(a, IS_K_MAJOR_A ? first * BK : first * BK * lda);
        b += IS_K_MAJOR_B ? first * BK : first * BK * ldb;
        k -= first * BK;  // what is beyond this split is in tiles that it does not load
    }

    // 2. The barriers, before anyone waits at them. A warpgroup without rows of C does nothing.
    const int multipliers = m - origin_m > MMA_M ? MULTIPLIERS : 1;
    const Stages stages(shared_memory());
    if (thread_index() == 0) stages.begin(multipliers);
    barrier();  // RAW: barriers are there before they are used
    wait_for_kernels_before();
    if constexpr (IS_SPLIT) let_next_kernel_begin();

    // 3. Warpgroups part: each does its own to the end.
    if (thread_index() < LOADING) {
        if constexpr (MOVES_REGISTERS) give_registers<LOADING_REGISTERS>();
        LoadA load_a(a, lda, origin_m, m, k, stages.tile_a(0));
        LoadB load_b(b, ldb, origin_n, n, k);
        load_tiles(stages, load_a, load_b, num_tiles);
    } else if (thread_index() < LOADING + multipliers * WARPGROUP) {
        if constexpr (MOVES_REGISTERS) take_registers<MULTIPLYING_REGISTERS>();
        ReadA read_a(thread_index() / WARPGROUP - LOADERS);
        float sums[SUMS] = {};
        multiply_tiles(stages, read_a, num_tiles, sums);
        const Output output(m, n, alpha, beta, c, ldc, batch.stride_c, product, epilogue);
        const long long padded_n = tiles_n * BN, plane = tiles_m * BM * padded_n;
        store_sums(sums, read_a, origin_m, origin_n, output,
                   IS_SPLIT ? workspace + (product * splits + block_index_y()) * plane : nullptr, padded_n);
    }
}

// C = alpha * op(A) * op(B) + beta * C, in FP32 on tensor cores: three products of FP16 for one of floats, of operands that a
// pass before has scaled by powers of two.
//
//   Operands and layouts as in sgemm.cu, and its launches: sgemm_pack for each operand, one block per BM x BN tile of C,
//   sgemm_reduce behind it, for splits of k.
//
//             n                        block        warpgroups of 128 threads: one of which a thread loads, two that multiply
//        ┌────┬────┬────┐              warpgroup    MMA_M x BN of the tile, by one instruction for MMA_K of k
//      m │    │ BN │    │              thread       SUMS sums, and as many of the tensor cores' or twice as many, from where
//        │    ├────┤    │                           they are added to its own after PROMOTE_K
//        │ BM │####│    │              stage        a tile of A and one of B as they were packed, in halves, and what their
//        └────┴────┴────┘                           numbers were divided by
//
// The files, in the order in which the kernel goes through them:
//
//   scaled_config.cuh      parameters, rules, and what follows from them
//   scaled_pack.cuh        before it: scales, splits, packs; which part of an operand FP16 cannot hold
//   schedule.cuh           which tile of C a block takes
//   scaled_load.cuh        packed operands to a stage
//   scaled_multiply.cuh    a stage to sums, on tensor cores or by FMAs, and these to C
//   output.cuh             scale, bias, activation, store
//   reduce_planes.cuh      behind it, for splits of k
//   scaled_primitives.cuh  all that is asked of the hardware beyond primitives.cuh, with warpgroups.cuh
//
// Sources: tensor_sgemm.cu has those of splitting, and of sums that leave the tensor cores; low parts that are stored larger
// than they are, Ootomo and Yokota, too; scales of rows and columns, K. Ozaki, T. Ogita, S. Oishi and S. Rump, "Error-free
// transformations of matrix multiplication by using fast routines of matrix multiplication and its applications", 2012.
#include "scaled_config.cuh"
#include "output.cuh"
#include "primitives.cuh"
#include "reduce_planes.cuh"
#include "scaled_load.cuh"
#include "scaled_multiply.cuh"
#include "scaled_pack.cuh"
#include "schedule.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sgemm(int m, int n, int k, float alpha, const float* READ_ONLY a, [[maybe_unused]] long long lda,
          const float* READ_ONLY b, [[maybe_unused]] long long ldb, float beta, float* __restrict__ c, long long ldc,
          float* __restrict__ workspace, int splits, Schedule schedule, Batch batch, Epilogue epilogue) {
    // 1. The block's tile of C, of which product, and its split.
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN, tiles = tiles_m * tiles_n;
    const int product = IS_BATCHED ? schedule.product.quotient(block_index_x()) : 0;
    const TileCoord tile = tile_coord(block_index_x() - product * tiles, schedule);
    const int origin_m = tile.m * BM, origin_n = tile.n * BN;
    if constexpr (IS_BATCHED) {
        a += product * batch.stride_a;
        b += product * batch.stride_b;
    }
    const int k_tiles = alpha == 0 ? 0 : tiles_of_k(k);
    int num_tiles = k_tiles, first_tile = 0;
    if constexpr (IS_SPLIT) {
        const int most = (k_tiles + splits - 1) / splits;
        first_tile = most * block_index_y();
        num_tiles = first_tile + most < k_tiles ? most : k_tiles - first_tile;  // 0 or less: others have it all
    }

    // 2. The barriers, before anyone waits at them.
    const Stages stages(shared_memory());
    if (thread_index() == 0) stages.begin();
    barrier();  // RAW: barriers are there before they are used
    wait_for_kernels_before();
    if constexpr (IS_SPLIT) let_next_kernel_begin();

    // 3. Warpgroups part: each does its own to the end.
    if (thread_index() < WARPGROUP) {
        give_registers<LOADING_REGISTERS>();
        if (thread_index() > 0) return;
        load_tiles(stages, Packed(a, k, tiles_m * BM, origin_m, first_tile),
                   Packed(b, k, tiles_n * BN, origin_n, first_tile), num_tiles);
    } else {
        take_registers<MULTIPLYING_REGISTERS>();
        const int warpgroup = thread_index() / WARPGROUP - 1;
        const Place at(warpgroup);
        float sums[SUMS] = {};
        multiply_tiles(stages, at, warpgroup, num_tiles, sums);
        const Output output(m, n, alpha, beta, c, ldc, batch.stride_c, product, epilogue);
        const long long padded_n = tiles_n * BN, plane = tiles_m * BM * padded_n;
        store_sums(sums, at, origin_m, origin_n, output,
                   IS_SPLIT ? workspace + (product * splits + block_index_y()) * plane : nullptr, padded_n);
    }
}

// C = alpha * op(A) * op(B) + beta * C, in FP32 on tensor cores of any GPU since sm_75: three products of FP16 for one of
// floats, of operands that a pass before has scaled by powers of two.
//
//   Operands and layouts as in sgemm.cu, and its launches: sgemm_pack for each operand, one block per BM x BN tile of C,
//   sgemm_reduce behind it, for splits of k.
//
//             n                        block     (BM / WM) x (BN / WN) warps, all of which copy and multiply
//        ┌────┬────┬────┐              warp      WM x WN of the tile, by instructions for 16 x 8 of it and 8 of k
//      m │    │ BN │    │              thread    WM * WN / 32 sums, to which it adds the tensor cores' after DEPTH of k
//        │    ├────┤    │              stage     DEPTH of k of a tile of A and one of B as they were packed, in halves, and
//        │ BM │####│    │                        what their numbers were divided by
//        └────┴────┴────┘
//
// The files, in the order in which the kernel goes through them:
//
//   halves_config.cuh      parameters, rules, and what follows from them; scaled_layout.cuh: how operands are packed
//   scaled_pack.cuh        before it: scales, splits, packs; which part of an operand FP16 cannot hold
//   schedule.cuh           which tile of C a block takes
//   halves_load.cuh        packed operands to a stage
//   halves_multiply.cuh    a stage to sums, on tensor cores or by FMAs; scaled_store.cuh: these to C
//   output.cuh             scale, bias, activation, store
//   reduce_planes.cuh      behind it, for splits of k
//   halves_primitives.cuh  all that is asked of the hardware beyond primitives.cuh
//
// Sources: those of scaled_sgemm.cu; where a lane's elements are, PTX ISA, "Matrix Fragments for mma.m16n8k8".
#include "halves_config.cuh"
#include "halves_load.cuh"
#include "halves_multiply.cuh"
#include "output.cuh"
#include "primitives.cuh"
#include "reduce_planes.cuh"
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
    const int slices = alpha == 0 ? 0 : k / DEPTH + (k % DEPTH != 0);
    int first = 0, last = slices;
    if constexpr (IS_SPLIT) {
        const int most = (slices + splits - 1) / splits;
        first = most * block_index_y();
        last = first + most < slices ? first + most : slices;  // first or less: others have it all
    }
    wait_for_kernels_before();
    if constexpr (IS_SPLIT) let_next_kernel_begin();

    // 2. Slice after slice.
    Stages stages{{a, k, tiles_m * BM, origin_m}, {b, k, tiles_n * BN, origin_n}};
    const Place at;
    float sums[SUMS] = {};
    multiply_slices(stages, at, first, last, sums);

    // 3. To C, or to the plane of this split.
    const Output output(m, n, alpha, beta, c, ldc, batch.stride_c, product, epilogue);
    const long long padded_n = tiles_n * BN, plane = tiles_m * BM * padded_n;
    store_sums(sums, at, origin_m, origin_n, output,
               IS_SPLIT ? workspace + (product * splits + block_index_y()) * plane : nullptr, padded_n);
}

// Packing: before the product an operand is copied to where tiles are read best: by k, then m (or n), in rows of
// `padded` floats, whole tiles, with zeros beyond the matrix.
//
// It costs one pass over the operand and saves, in a product large enough, what it costs in every tile to transpose
// it on its way, or to copy unaligned rows 4 bytes at a time (docs/decisions/0013). The idea is that of Goto and
// van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
//
//   element (i, p) of the operand, i along m (or n), p along k:
//     from[i * ld + p] if is_k_major (contiguous along k), else from[p * ld + i]   ->   to[p * padded + i]
#pragma once

#include "variant.cuh"
#include "primitives.cuh"

#if PACK_A || PACK_B  // others are spared its compile

constexpr int PACK_TILE = 64;  // a block packs PACK_TILE x PACK_TILE elements, through shared memory
constexpr int PACK_THREADS = 256;
constexpr int PACK_STEP = PACK_THREADS / PACK_TILE;   // rows of its tile that a block touches at a time
constexpr int PACK_STEPS = PACK_TILE / PACK_STEP;     // elements per thread
constexpr int PACK_ROW = PACK_TILE + 1;               // odd: a warp that walks a column meets all banks

// Launch: tiles of the packed operand, those along the extent first, of one product after the other; PACK_THREADS
// threads; PACK_TILE * PACK_ROW floats of shared memory. Operands of a batch lie `stride` elements apart, their copies
// k * padded.
extern "C" __global__ void __launch_bounds__(PACK_THREADS)
    sgemm_pack(int extent, int k, const float* READ_ONLY from, long long ld, int is_k_major, float* __restrict__ to,
               int padded, int blocks_per_product, long long stride) {
    const int product = IS_BATCHED ? block_index_x() / blocks_per_product : 0;
    const int block = block_index_x() - product * blocks_per_product;
    if constexpr (IS_BATCHED) {
        from += product * stride;
        to += product * (static_cast<long long>(k) * padded);
    }
    const int tiles = (padded + PACK_TILE - 1) / PACK_TILE;
    const int first_i = block % tiles * PACK_TILE, first_p = block / tiles * PACK_TILE;
    const int column = thread_index() % PACK_TILE, row = thread_index() / PACK_TILE;

    wait_for_kernels_before();  // WAR too: `to` may be what the call before still reads
    let_next_kernel_begin();

    // Neighbouring threads run along what is contiguous in the source: p where it is K-major, else i.
    float held[PACK_STEPS];
#pragma unroll
    for (int step = 0; step < PACK_STEPS; ++step) {
        const int along = row + step * PACK_STEP;
        const int i = first_i + (is_k_major ? along : column), p = first_p + (is_k_major ? column : along);
        const long long at = is_k_major ? i * ld + p : p * ld + i;
        held[step] = i < extent && p < k ? load_global<1>(from + at).v[0] : 0.0f;  // edge: m, n, k
    }
    float* const tile = shared_memory();  // (p, i)
#pragma unroll
    for (int step = 0; step < PACK_STEPS; ++step) {
        const int along = row + step * PACK_STEP;
        store_shared<1>(tile + (is_k_major ? column * PACK_ROW + along : along * PACK_ROW + column), {held[step]});
    }
    barrier();  // RAW: the tile is whole before it is read along i
#pragma unroll
    for (int step = 0; step < PACK_STEPS; ++step) {
        const int along = row + step * PACK_STEP, i = first_i + column, p = first_p + along;
        if (i >= padded || p >= k) continue;  // edge: whole tiles, k
        store_global<1>(to + static_cast<long long>(p) * padded + i, load_shared<1>(tile + along * PACK_ROW + column));
    }
}

#endif

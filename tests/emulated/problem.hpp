// One problem as Python describes it, and the kernels of an instance that compute it. Every instance compiles this:
// it includes little.
#pragma once

#include <cstdint>

namespace emulated {

// A launch of sgemm_pack, or nothing where `padded` is 0. `offset` is in bytes from the workspace's begin.
struct Pack {
    int64_t extent, padded, is_k_major, blocks, offset;
    int64_t products, blocks_per_product, stride, packed_stride;
};

// `count` matrices as stored, `stride` floats from one to the next; the offset (floats) unaligns the base.
struct Stored {
    int64_t count, rows, cols, ld, stride, offset;
};

// One problem as Python describes it: tests/emulated/emulator.py packs the same fields in this order.
struct Problem {
    int64_t m, n, k, products;
    Stored a, b, c;
    Stored bias, kept;  // a bias is one row; of none there are 0
    int64_t threads, smem_bytes, grid_x, grid_y, split_k, padded_m, padded_n;
    int64_t sum_bytes, counter_bytes;
    int64_t reduce_blocks, reduce_blocks_per_product, reduce_threads, reduce_group_bits, reduce_smem_bytes;
    int64_t schedule[14];  // the words of launch.schedule
    Pack pack_a, pack_b;
    int64_t pack_bytes, pack_threads, pack_smem_bytes;
    int64_t thread_order, block_order, seed;
    double alpha, beta;
};

// What a launch of sgemm is given: an operand that was packed is the copy.
struct Operands {
    const float* a;
    int64_t lda, stride_a;
    const float* b;
    int64_t ldb, stride_b;
    float* c;
    float* workspace;
    const float* bias;
    float* kept;
};

// instance.cpp: blocks of a cluster, compiled in; what an operand of one product is packed to, and whether these are its
// numbers, by k, then m (or n); one thread of each of the template's kernels.
int cluster_size();
int64_t packed_floats(int64_t k, int64_t padded);
bool packs_floats();
void run_sgemm(const Problem& problem, const Operands& operands);
void run_pack(const Problem& problem, const Pack& pack, const float* from, int64_t ld, float* to);
void run_reduce(const Problem& problem, const Operands& operands);

}  // namespace emulated

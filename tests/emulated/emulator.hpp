// What the parts of the emulator share: faults, the launch of a kernel, and one problem with its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace emulated {

// Ends the program with this message, the problem, the block and the thread.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

extern const char* problem_name;

enum Order : int64_t { FORWARD, REVERSE, SHUFFLED };

// [begin, end) in floats. The last region of a launch is where its blocks share what they store. In those with gaps
// GLOBAL_POISON stands between rows and between products: to read it is a fault.
struct Region {
    const char* name;
    const float* begin;
    const float* end;
    bool is_writable, is_readable;
    bool has_gaps = false;
};

struct Launch {
    int grid_x, grid_y;
    int cluster;  // blocks that follow one another along y and run together
    int threads;
    size_t smem_bytes;
    Order thread_order, block_order;
    uint64_t seed;
    std::vector<Region> regions;
};

// Signalling NaNs that differ, so that a message can say where one came from.
constexpr uint32_t SHARED_POISON = 0x7fa05a05;
constexpr uint32_t GLOBAL_POISON = 0x7fa0c0de;
float poison(uint32_t bits);

// Runs `kernel` once for every thread of every block; returns when all have ended.
void launch(const Launch& launch, const std::function<void()>& kernel);

// memory.cpp: the state behind the primitives, reset by the scheduler.
void begin_launch_memory(const Launch& launch);
void begin_block_memory();
void end_block_memory();
void poison_copies_under_way();  // of the running thread, again
void end_launch_memory();
int barrier_epoch();  // barriers that the running block has passed, those of its cluster too
int cluster_round();  // barriers that its cluster has passed

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

// instance.cpp: blocks of a cluster, compiled in; one thread of each of the template's kernels.
int cluster_size();
void run_sgemm(const Problem& problem, const Operands& operands);
void run_pack(const Problem& problem, const Pack& pack, const float* from, int64_t ld, float* to);
void run_reduce(const Problem& problem, const Operands& operands);

}  // namespace emulated

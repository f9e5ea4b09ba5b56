// One instance of the template: its kernels behind names that do not depend on the config.
#include "primitives_host.hpp"
#ifndef CLUSTER
#define CLUSTER 1  // a kernel that knows no clusters
#endif
#ifdef COUNTED  // every turn of every loop of the kernel tells of itself
#define for(...) for (__VA_ARGS__) if (emulated::Iteration iteration_(__FILE__, __LINE__); true)
#endif
#include KERNEL_FILE
#undef for
#include "problem.hpp"

#if !defined(TENSOR) || defined(SCALED_OPERANDS)  // where memory of a problem is told in words, and A's elements may be halves of these
constexpr int PER_WORD_A = 1;
#endif

namespace emulated {

int cluster_size() { return CLUSTER; }
#if defined(REDUCTION_NONE) && !defined(TENSOR)
int stage_a_floats() { return STAGE_A; }
int stage_floats() { return STAGE_FLOATS; }
#else
int stage_a_floats() { return 0; }
int stage_floats() { return 1; }
#endif

#ifdef REDUCTION_NONE  // the templates; the reference kernels and the tests' own end with `splits`
static Schedule schedule_of(const Problem& p) {
    uint32_t words[14];
    for (int i = 0; i < 14; ++i) words[i] = static_cast<uint32_t>(p.schedule[i]);
    Schedule schedule;
    static_assert(sizeof schedule == sizeof words);
    __builtin_memcpy(&schedule, words, sizeof words);
    return schedule;
}

static Epilogue epilogue_of(const Problem& p, const Operands& o) {
    return {o.bias, o.kept, p.kept.ld, p.bias.stride, p.kept.stride};
}

static Batch batch_of(const Problem& p, const Operands& o) {
    return {PER_WORD_A * o.stride_a, o.stride_b, p.c.stride, static_cast<int>(p.products)};
}
#define LAST_ARGUMENTS(p, o) , schedule_of(p), batch_of(p, o), epilogue_of(p, o)
#else
#define LAST_ARGUMENTS(p, o)
#endif

void run_sgemm(const Problem& p, const Operands& o) {
    sgemm(static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), static_cast<float>(p.alpha), o.a,
          PER_WORD_A * o.lda, o.b, o.ldb, static_cast<float>(p.beta), o.c, p.c.ld, o.workspace,
          static_cast<int>(p.split_k) LAST_ARGUMENTS(p, o));
}

#ifdef SCALED_OPERANDS
int64_t packed_floats(int64_t k, int64_t padded) { return first_divisor(k, padded) + tiles_of_k(k) * padded; }
bool packs_floats() { return false; }
#else
int64_t packed_floats(int64_t k, int64_t padded) { return k * padded; }
bool packs_floats() { return true; }
#endif

void run_pack([[maybe_unused]] const Problem& p, [[maybe_unused]] const Pack& pack,
              [[maybe_unused]] const float* from, [[maybe_unused]] int64_t ld, [[maybe_unused]] float* to) {
#if PACK_A || PACK_B
    sgemm_pack(static_cast<int>(pack.extent), static_cast<int>(p.k), from, ld, static_cast<int>(pack.is_k_major), to,
               static_cast<int>(pack.padded), static_cast<int>(pack.blocks_per_product), pack.stride);
#endif
}

void run_reduce([[maybe_unused]] const Problem& p, [[maybe_unused]] const Operands& o) {
#if defined(REDUCTION_TWO_PASS) && (REDUCTION == REDUCTION_TWO_PASS || REDUCTION == REDUCTION_CHUNKS)
    sgemm_reduce(static_cast<int>(p.m), static_cast<int>(p.n), static_cast<float>(p.alpha),
                 static_cast<float>(p.beta), o.c, p.c.ld, o.workspace, static_cast<int>(p.split_k),
                 static_cast<int>(p.padded_m), static_cast<int>(p.padded_n), static_cast<int>(p.reduce_group_bits),
                 static_cast<int>(p.reduce_blocks_per_product), p.c.stride, epilogue_of(p, o));
#endif
}

}  // namespace emulated

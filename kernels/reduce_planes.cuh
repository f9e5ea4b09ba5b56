// The second pass of a product whose k is split: adds the planes that the first one left in the workspace, one for each
// split, and stores the result. Of any kernel that says what REDUCTION is.
#pragma once

#include "output.cuh"
#include "primitives.cuh"

#if REDUCTION == REDUCTION_TWO_PASS || REDUCTION == REDUCTION_CHUNKS  // others are spared its compile

constexpr int REDUCE_BITS = 8;
constexpr int REDUCE_THREADS = 1 << REDUCE_BITS;

// One element of C in one plane after another.
struct Planes {
    const float* at;
    long long plane;  // floats from one to the next
    float sum = 0;

    // Adds the next COUNT, all asked for before the first is waited for.
    template <int COUNT> __device__ __forceinline__ void add() {
        float batch[COUNT];  // (plane)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            batch[i] = load_global<1>(at).v[0];
            at += plane;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sum += batch[i];
    }

    // Adds all `splits` one after another, the first one's first, whatever the number of groups: each loads its share
    // of a round at once, up to MOST planes; then the sum goes from group to group through shared memory, and each
    // adds what it has loaded. In the end `sum` is that of all.
    __device__ __forceinline__ void add_in_order(int splits, int group, int group_bits, bool is_inside) {
        constexpr int MOST = 16;
        const int bits_of_groups = REDUCE_BITS - group_bits, groups = 1 << bits_of_groups;
        float* const passed = shared_memory() + (thread_index() & ((1 << group_bits) - 1));
#pragma unroll 1
        for (int left = splits; left > 0;) {
            const int in_round = left < MOST * groups ? left : MOST * groups;
            const int first = in_round * group >> bits_of_groups, end = in_round * (group + 1) >> bits_of_groups;
            float batch[MOST];  // (plane)
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                if (is_inside && first + i < end) batch[i] = load_global<1>(at + (first + i) * plane).v[0];
            }
#pragma unroll 1
            for (int turn = 0; turn < groups; ++turn) {
                if (turn == group) {
                    if (groups > 1 && (turn > 0 || left < splits)) sum = load_shared<1>(passed).v[0];
#pragma unroll
                    for (int i = 0; i < MOST; ++i) {
                        if (first + i < end) sum += batch[i];
                    }
                    if (groups > 1) store_shared<1>(passed, {sum});
                }
                if (groups > 1) barrier();  // RAW: the sum so far is written before the next group reads it
            }
            at += in_round * plane;
            left -= in_round;
        }
        if (groups > 1) sum = load_shared<1>(passed).v[0];
    }
};

// The second pass. Launch: REDUCE_THREADS threads in groups of 2^group_bits, each for so many elements of C, row by
// row, of one product after the other; shared memory for a float of every thread, unless all are one group. m * n is
// below 2^31. Alpha is read for chunks alone: other planes are scaled.
extern "C" __global__ void __launch_bounds__(REDUCE_THREADS)
    sgemm_reduce(int m, int n, [[maybe_unused]] float alpha, float beta, float* __restrict__ c, long long ldc,
                 const float* READ_ONLY workspace, int splits, int padded_m, int padded_n, int group_bits,
                 int blocks_per_product, long long stride_c, Epilogue epilogue) {
    const int product = IS_BATCHED ? block_index_x() / blocks_per_product : 0;
    const int block = block_index_x() - product * blocks_per_product;
    const int bits_of_groups = REDUCE_BITS - group_bits, groups = 1 << bits_of_groups;
    const int group = thread_index() >> group_bits;
    const unsigned index = (static_cast<unsigned>(block) << group_bits) +
                           (thread_index() & ((1 << group_bits) - 1));
    const bool is_inside = index < static_cast<unsigned>(m) * n;  // edge: C
    const int row = index / static_cast<unsigned>(n), column = index % static_cast<unsigned>(n);
    const int first = ARE_CHUNKS ? 0 : splits * group >> bits_of_groups;
    const int end = splits * (group + 1) >> bits_of_groups;
    wait_for_kernels_before();
    if constexpr (LAST_LETS_NEXT_BEGIN) let_next_kernel_begin();

    const long long plane = static_cast<long long>(padded_m) * padded_n;
    Planes planes{workspace + (product * splits + first) * plane + static_cast<long long>(row) * padded_n + column,
                  plane};
    if constexpr (ARE_CHUNKS) {
        planes.add_in_order(splits, group, group_bits, is_inside);
        if (group > 0) return;
    } else if (is_inside) {
        int left = end - first;
#pragma unroll 1
        for (; left >= 8; left -= 8) planes.add<8>();
        if (left & 4) planes.add<4>();
        if (left & 2) planes.add<2>();
        if (left & 1) planes.add<1>();
    }
    float sum = planes.sum;
    if (!ARE_CHUNKS && groups > 1) {
        float* const own = shared_memory() + thread_index();
        store_shared<1>(own, {sum});
        barrier();  // RAW: the sums of all groups are written before the first reads them
        if (group > 0) return;
#pragma unroll 1
        for (int other = 1; other < groups; ++other)
            sum += load_shared<1>(own + (other << group_bits)).v[0];
    }
    const float scale = ARE_CHUNKS ? alpha : SCALED;
    const Output output(m, n, scale, beta, c, ldc, stride_c, product, epilogue);
    if (is_inside) output.store<1>(row, column, {sum}, scale);
}

#endif

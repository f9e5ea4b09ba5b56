// Blocked summation: after every FLUSH_K steps of k the sums of a thread are added to a second set of sums,
// kept in shared memory, and begin at zero again.
//
// Sums of k products, one after another, are off by at most about k units of roundoff; in blocks of b, and
// then the blocks, by b + k / b (N. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. 2002,
// section 3.1 and chapter 4). For random data of zero mean the error grows like the square root of either:
// with b = 1024 and k = 4096 it is half of what it is without blocks.
//
// The kept sums lie behind the stages: (element / KEPT_VEC, thread, element % KEPT_VEC). Each thread touches
// its own alone, so that no barrier is needed, and lanes touch neighbouring vectors: no bank conflict.
// A flush takes 2.5 instructions and 8 bytes of shared memory's bandwidth per sum: at most 0.8 % of the time
// in between at FLUSH_K 1024, less where other blocks multiply meanwhile (H200, 4097^3, three blocks per SM:
// nothing to be measured; 3072^3, one block: 0.2 % each).
#pragma once

#include "config.cuh"
#include "primitives.cuh"

constexpr int FLUSH_TILES = FLUSH_K > 0 ? FLUSH_K / BK : 1;
// How many tiles are left to come after the block of k that begins where `left` are: the first block is the
// short one.
__device__ __forceinline__ int end_of_block(int left) {
    return FLUSH_K == 0 ? 0 : (left - 1) / FLUSH_TILES * FLUSH_TILES;
}

constexpr int KEPT_VEC = chunk_of(TM * TN);

struct KeptSums {
    // This thread's first vector. Found anew each time: nothing is held in registers over the main loop.
    __device__ __forceinline__ static float* mine() {
        int at = STAGES * STAGE + thread_index() * KEPT_VEC;
        forget(at);
        return shared_memory() + at;
    }

    // Sets the kept sums to zero.
    __device__ __forceinline__ static void clear() {
        float* const kept = mine();
#pragma unroll
        for (int e = 0; e < TM * TN; e += KEPT_VEC) store_shared<KEPT_VEC>(kept + e * THREADS, {});
    }

    // Adds `sums` to the kept ones, and sets `sums` to zero.
    __device__ __forceinline__ static void flush(float (&sums)[TM][TN]) {
        float* const kept = mine();
#pragma unroll
        for (int e = 0; e < TM * TN; e += KEPT_VEC) {
            Vec<KEPT_VEC> vector = load_shared<KEPT_VEC>(kept + e * THREADS);
#pragma unroll
            for (int v = 0; v < KEPT_VEC; ++v) {
                vector.v[v] += sums[(e + v) / TN][(e + v) % TN];
                sums[(e + v) / TN][(e + v) % TN] = 0;
            }
            store_shared<KEPT_VEC>(kept + e * THREADS, vector);
        }
    }

    // Adds the kept sums to `sums`.
    __device__ __forceinline__ static void add_to(float (&sums)[TM][TN]) {
        const float* const kept = mine();
#pragma unroll
        for (int e = 0; e < TM * TN; e += KEPT_VEC) {
            const Vec<KEPT_VEC> vector = load_shared<KEPT_VEC>(kept + e * THREADS);
#pragma unroll
            for (int v = 0; v < KEPT_VEC; ++v) sums[(e + v) / TN][(e + v) % TN] += vector.v[v];
        }
    }
};

// Blocked summation: after every FLUSH_K of k a thread adds its sums to a second set of sums, which is kept in
// shared memory, and begins at zero again.
//
// Sums of k products, one after another, are off by at most about k units of roundoff; in blocks of b, and
// then the blocks, by b + k / b (N. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed. 2002,
// section 3.1 and chapter 4). For random data of zero mean the error grows like the square root of either:
// with b = 1024 and k = 4096 it is half of what it is without blocks.
//
// The flushed sums lie after the stages: (element / FLUSH_VEC, thread, element % FLUSH_VEC). Each thread touches
// its own alone, so that no barrier is needed, and lanes touch neighbouring vectors: no bank conflict.
// A flush takes 2.5 instructions and 8 bytes of shared memory's bandwidth per sum: at most 0.8 % of the time
// in between at FLUSH_K 1024, less where other blocks multiply meanwhile (H200, 4097^3, three blocks per SM:
// nothing to be measured; 3072^3, one block: 0.2 % each).
#pragma once

#include "config.cuh"
#include "primitives.cuh"

constexpr int FLUSH_VEC = chunk_of(TM * TN);
constexpr int FLUSH_TILES = FLUSH_K > 0 ? FLUSH_K / BK : 1;  // also of a split that is a chunk

// How many tiles are left when the block of k ends that begins where `left` are. The first block is the short one.
__device__ __forceinline__ int left_after_block(int left) {
    return !HAS_FLUSHES ? 0 : (left - 1) / FLUSH_TILES * FLUSH_TILES;
}

struct FlushedSums {
    // Where this thread's first vector lies. Computed each time: no register is held for it over the main loop.
    __device__ __forceinline__ static float* first_vector() {
        int at = STAGES * STAGE_FLOATS + thread_index() * FLUSH_VEC;
        forget(at);
        return shared_memory() + at;
    }

    // Sets the flushed sums to zero.
    __device__ __forceinline__ static void clear() {
        float* const flushed = first_vector();
#pragma unroll
        for (int e = 0; e < TM * TN; e += FLUSH_VEC) store_shared<FLUSH_VEC>(flushed + e * THREADS, {});
    }

    // Adds `sums` to the flushed ones, and sets `sums` to zero.
    __device__ __forceinline__ static void flush(float (&sums)[TM][TN]) {
        float* const flushed = first_vector();
#pragma unroll
        for (int e = 0; e < TM * TN; e += FLUSH_VEC) {
            Vec<FLUSH_VEC> vector = load_shared<FLUSH_VEC>(flushed + e * THREADS);
#pragma unroll
            for (int v = 0; v < FLUSH_VEC; ++v) {
                vector.v[v] += sums[(e + v) / TN][(e + v) % TN];
                sums[(e + v) / TN][(e + v) % TN] = 0;
            }
            store_shared<FLUSH_VEC>(flushed + e * THREADS, vector);
        }
    }

    // Adds the flushed sums to `sums`.
    __device__ __forceinline__ static void add_to(float (&sums)[TM][TN]) {
        const float* const flushed = first_vector();
#pragma unroll
        for (int e = 0; e < TM * TN; e += FLUSH_VEC) {
            const Vec<FLUSH_VEC> vector = load_shared<FLUSH_VEC>(flushed + e * THREADS);
#pragma unroll
            for (int v = 0; v < FLUSH_VEC; ++v) sums[(e + v) / TN][(e + v) % TN] += vector.v[v];
        }
    }
};

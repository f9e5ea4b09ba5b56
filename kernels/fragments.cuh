// A thread's fragments: what it reads of the tiles of A and B in shared memory for one k.
//
//              A's tile of a stage                       B's tile of a stage
//              0 ... BM                                  0 ... BN
//        k = 0 ┌──────────────┐ PAD                k = 0 ┌──────────────┐ PAD
//            1 │  ▓▓▓▓   ▓▓▓▓ │                        1 │ ▓▓▓▓   ▓▓▓▓  │       ▓: TM floats of A and TN of B,
//          ... │              │                      ... │              │       in chunks of up to four
//         BK-1 └──────────────┘                     BK-1 └──────────────┘
//
// Both tiles lie by k, then m (or n), so that a chunk is one access of up to 16 bytes. Slice s reads rows
// s * SLICE_BK up to (s + 1) * SLICE_BK.
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "thread_tile.cuh"

// Where a thread reads: its first elements of A and B in the stage that is multiplied.
struct FragmentReader {
    const float* a;
    const float* b;
    int first_a;
    int first_b;

    __device__ __forceinline__ explicit FragmentReader(const ThreadTile& thread)
        : first_a(thread.slice * SLICE_BK * ROW_A + thread.m),
          first_b(STAGE_A + thread.slice * SLICE_BK * ROW_B + thread.n) {
        move_to(0);
    }

    // `stage`: its first float.
    __device__ __forceinline__ void move_to(int stage) {
        int at_a = stage + first_a, at_b = stage + first_b;
        forget(at_a);  // what is added from here on is constant and becomes part of the instruction
        forget(at_b);
        a = shared_memory() + at_a;
        b = shared_memory() + at_b;
    }
};

struct Fragments {
    float a[TM];
    float b[TN];

    // Reads one k: `a_row` and `b_row` point at this thread's first elements there.
    __device__ __forceinline__ void load(const float* a_row, const float* b_row) {
#pragma unroll
        for (int i = 0; i < TM; i += CHUNK_M) {
            const Vec<CHUNK_M> chunk = load_shared<CHUNK_M>(a_row + i * LANES_M);
#pragma unroll
            for (int e = 0; e < CHUNK_M; ++e) a[i + e] = chunk.v[e];
        }
#pragma unroll
        for (int j = 0; j < TN; j += CHUNK_N) {
            const Vec<CHUNK_N> chunk = load_shared<CHUNK_N>(b_row + j * LANES_N);
#pragma unroll
            for (int e = 0; e < CHUNK_N; ++e) b[j + e] = chunk.v[e];
        }
    }
};

// The stages in shared memory, and the barriers by which loading and multiplying warpgroups hand them to each other.
//
//   loading       wait until free   copy A, split and store B   ──► filled     next stage
//   multiplying   wait until filled   read A, multiply          ──► free       next stage
//
// Loading is up to STAGES tiles ahead. A stage is filled when each loading thread has arrived twice: when its copies of A
// have, and after its part of B. It is free when a thread of each multiplying warpgroup has arrived.
#pragma once

#include "tensor_config.cuh"
#include "tensor_primitives.cuh"

struct Stages {
    float* planes;
    float* tiles_a;
    float* flushed;
    Barrier* filled;
    Barrier* freed;

    __device__ __forceinline__ explicit Stages(float* shared) {
        planes = aligned(shared, PLANE_ALIGNMENT);
        tiles_a = planes + STAGES * PARTS * PLANE;
        flushed = tiles_a + STAGES * TILE_A;
        filled = reinterpret_cast<Barrier*>(flushed + FLUSHED);
        freed = filled + STAGES;
    }
    // Once, by one thread, before a barrier of the block, for so many warpgroups that multiply.
    __device__ __forceinline__ void begin(int multipliers) const {
        for (int stage = 0; stage < STAGES; ++stage) {
            filled[stage].begin(2 * LOADING);
            freed[stage].begin(multipliers);
        }
    }
    __device__ __forceinline__ float* tile_a(int stage) const { return tiles_a + stage * TILE_A; }
    __device__ __forceinline__ float* plane(int stage, int part = 0) const {
        return planes + (stage * PARTS + part) * PLANE;
    }
};

// Which stage comes next, and how often all have been gone through, even or odd.
struct Turn {
    int stage = 0;
    int is_odd = 0;

    __device__ __forceinline__ void advance() {
        if (++stage < STAGES) return;
        stage = 0;
        is_odd ^= 1;
    }
};

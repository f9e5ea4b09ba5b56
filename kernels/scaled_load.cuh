// The stages in shared memory, the barriers by which they are handed on, and the thread that fills them.
//
//   loading       wait until free     ask for the next tiles      ──► filled, once they have arrived     next stage
//   multiplying   wait until filled   multiply                    ──► free
//
// Packed operands lie as a stage has them, so a tile is one copy of up to 48 KiB, which one thread begins. A stage is free
// when a lane of each multiplying warp has arrived.
#pragma once

#include "scaled_config.cuh"
#include "scaled_primitives.cuh"

struct Stages {
    float* tiles;
    float* divisors;
    Barrier* filled;
    Barrier* freed;

    __device__ __forceinline__ explicit Stages(float* shared) {
        tiles = aligned(shared, TILE_ALIGNMENT);
        divisors = tiles + STAGES * (TILE_A + TILE_B);
        filled = reinterpret_cast<Barrier*>(divisors + STAGES * DIVISORS);
        freed = filled + STAGES;
    }
    // Once, by one thread, before a barrier of the block.
    __device__ __forceinline__ void begin() const {
        for (int stage = 0; stage < STAGES; ++stage) {
            filled[stage].begin(1);
            freed[stage].begin(MULTIPLIERS * WARPGROUP / WARP);
        }
        show_tensor_cores();  // copies in bulk, too
    }
    __device__ __forceinline__ float* tile_a(int stage) const { return tiles + stage * (TILE_A + TILE_B); }
    __device__ __forceinline__ float* tile_b(int stage) const { return tile_a(stage) + TILE_A; }
    __device__ __forceinline__ float* divisors_a(int stage) const { return divisors + stage * DIVISORS; }
    __device__ __forceinline__ float* divisors_b(int stage) const { return divisors_a(stage) + BM; }
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

// A packed operand, from the tile of k on that is copied next.
struct Packed {
    const float* blocks;
    const float* divisors;
    int padded;

    __device__ __forceinline__ Packed(const float* operand, int k, int padded, int origin, int first_tile)
        : padded(padded) {
        blocks = operand + (static_cast<long long>(first_tile) * padded + origin) * BK;
        divisors = operand + first_divisor(k, padded) + static_cast<long long>(first_tile) * padded + origin;
    }
    template <int ROWS> __device__ __forceinline__ void copy(float* tile, float* to_divisors, Barrier& barrier) {
        copy_bulk(tile, blocks, ROWS * BK, barrier);
        copy_bulk(to_divisors, divisors, ROWS, barrier);
        blocks += static_cast<long long>(padded) * BK;
        divisors += padded;
    }
};

// By one thread: fills stages until there are no more tiles.
__device__ __forceinline__ void load_tiles(const Stages& stages, Packed a, Packed b, int num_tiles) {
    Turn turn;
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; ++tile) {
        const int stage = turn.stage;
        stages.freed[stage].wait(!turn.is_odd);  // WAR: the tiles of STAGES before have been multiplied
        expect_bytes(stages.filled[stage], (TILE_A + TILE_B + DIVISORS) * 4);
        a.copy<BM>(stages.tile_a(stage), stages.divisors_a(stage), stages.filled[stage]);
        b.copy<BN>(stages.tile_b(stage), stages.divisors_b(stage), stages.filled[stage]);
        turn.advance();
    }
}

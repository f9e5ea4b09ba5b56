// The stages of shared memory: when a tile is copied to one, when it is waited for, when its stage is free again.
//
// While step t of the main loop multiplies tile t, the copy of tile t + STAGES - 1 starts, to the stage that step
// t - 1 has left. So a copy has the rest of that step and STAGES - 2 whole steps to arrive. Asynchronous copies
// (cp.async), STAGES 3; with BURSTS 4 a copy starts in four parts, spread over the step, so that the copies do not
// queue up before the reads of fragments:
//
//              fill         step 0        step 1        step 2        step 3
//   stage 0    0..........W|0 ########## |3..3..3..3.. |............W|3 ########## |
//   stage 1    .1..........|............W|1 ########## |4..4..4..4.. |............W|
//   stage 2                |2..2..2..2.. |............W|2 ########## |5..5..5..5.. |
//
//   2  a copy of tile 2 starts (a burst)      .  copies are on their way
//   #  a tile is read and multiplied          |  barrier
//   W  each thread waits for its own copies of this tile: for all groups but the newest STAGES - 2
//
// One barrier per step does two things. RAW: after it, the copies that each thread waited for are there for
// everyone. WAR: after it, everyone has read the stage that the next copy overwrites.
//
// Copies through registers, STAGES 2: a tile is loaded while the one before is multiplied, and stored then.
//
//              fill         step 0        step 1        step 2
//   registers  0.......s   |1.........s  |2.........s  |3.........s  |     1  loads of tile 1 from global memory start
//   stage 0            s   |0 ########## |          s  |2 ########## |     s  stored to shared memory
//   stage 1                |          s  |1 ########## |          s  |
//
// With FRAG_BUFFERS 2 the wait, the store and the barrier stand before the last k of a step instead of after it:
// while that k is multiplied, the first fragments of the next tile are read.
//
// With STAGES 1 there is no stage to copy ahead to: registers hold the next tile, and a second barrier (WAR) stands
// before they are stored; asynchronous copies start only there, and are waited for at once.
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "tile_copy.cuh"

struct Pipeline {
    static constexpr int IN_FLIGHT = STAGES > 2 ? STAGES - 2 : 0;  // tiles that nobody waits for yet

    CopyA copy_a;
    CopyB copy_b;
    int num_tiles;       // of this block's share of k
    int num_copied = 0;  // tiles whose copies have started
    int write = 0;       // stage that the next copy goes to, by its first float
    int read = 0;        // stage that is multiplied, likewise

    __device__ __forceinline__ static float* stage(int first) { return shared_memory() + first; }
    __device__ __forceinline__ static int stage_after(int first) {
        return first == (STAGES - 1) * STAGE_FLOATS ? 0 : first + STAGE_FLOATS;
    }

    // Fills all stages but one (the only one, where there is but one), and waits for the first.
    __device__ __forceinline__ void fill(int first_depth) {
        start_first_copy(first_depth);
        store();
#pragma unroll
        for (int s = 1; s < STAGES - 1; ++s) {
            start_copy();
            store();
        }
        wait();
    }

    // Before k number `u` of an unrolled run: starts the burst that is due there, of the tile STAGES - 1 ahead.
    __device__ __forceinline__ void copy_ahead(int run, int u) {
        if constexpr (STAGES == 1 && HAS_ASYNC) return;
        constexpr int STEPS = UNROLL_K / BURSTS;
        if (run == 0 && u % STEPS == 0 && u / STEPS < BURSTS) start_copy(u / STEPS, BURSTS);
    }

    // This thread has read all of its tile: waits until the next one may be read.
    __device__ __forceinline__ void advance() {
        if constexpr (STAGES == 1) barrier();  // WAR: all have read the only stage before it is refilled
        if constexpr (STAGES == 1 && HAS_ASYNC) start_copy();
        store();
        wait();
        read = stage_after(read);
    }

  private:
    // Starts part `part` of `parts` of the copy of the next tile, if there is one.
    __device__ __forceinline__ void start_copy(int part = 0, int parts = 1) {
        const bool is_wanted = num_copied < num_tiles;
        if (is_wanted || parts > 1) {  // a branch around one burst; several have a predicate each
            copy_a.start(stage(write), is_wanted, part, parts);
            copy_b.start(stage(write) + STAGE_A, is_wanted, part, parts);
        }
        if (part == parts - 1) close_copy();
    }

    // Starts the copy of the very first tile of the block, `depth` deep.
    __device__ __forceinline__ void start_first_copy(int depth) {
        copy_a.start_first(stage(write), depth);
        copy_b.start_first(stage(write) + STAGE_A, depth);
        close_copy();
    }

    // All of a tile has been asked for. Its copies form a group, even where there was none: groups count tiles.
    __device__ __forceinline__ void close_copy() {
        if constexpr (HAS_ASYNC) commit_copies();
    }

    // Stores what was copied to registers, and goes on to the next stage.
    __device__ __forceinline__ void store() {
        if (num_copied < num_tiles) {
            copy_a.store(stage(write));
            copy_b.store(stage(write) + STAGE_A);
        }
        ++num_copied;
        write = stage_after(write);
    }

    // Waits for all but the IN_FLIGHT newest tiles: for this thread's copies, then for everyone's.
    __device__ __forceinline__ void wait() {
        if constexpr (HAS_ASYNC) wait_copies<IN_FLIGHT>();
        barrier();  // RAW: tiles are whole before anyone reads; WAR: the stage read last may be refilled
    }
};

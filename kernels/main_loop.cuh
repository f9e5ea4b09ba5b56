// The main loop: sums += A's tile * B's tile, tile after tile.
//
//   for each tile                 stages are filled and left as pipeline.cuh draws it
//     for each k of the slice     unrolled UNROLL_K times; SLICE_BK / UNROLL_K such runs
//       copy                      a burst of the copies of a later tile, where one is due
//       load                      fragments of A and B, from shared memory to registers
//       multiply                  TM x TN FMAs
//     next tile                   store what came through registers, wait, barrier
//
// With one fragment buffer, FMAs wait for the loads right before them. With two, loads are one k ahead, also over the
// end of a tile: the step to the next tile then stands before the load of its first k.
//
//   FRAG_BUFFERS 1   load 0   multiply 0   load 1   multiply 1   ...   load 7   multiply 7   next tile
//   FRAG_BUFFERS 2   load 1   multiply 0   load 2   multiply 1   ...   next tile   load 0   multiply 7
#pragma once

#include "config.cuh"
#include "flush.cuh"
#include "fragments.cuh"
#include "multiply.cuh"
#include "pipeline.cuh"

constexpr int AHEAD = FRAG_BUFFERS - 1;  // by how many k loads are ahead of FMAs

// Goes on to the next tile, as soon as it is there. `left`: tiles that are left, the one just read among them.
__device__ __forceinline__ void next_tile(Pipeline& pipeline, FragmentReader& reader, int left) {
    if (left > 1) pipeline.advance();
    reader.move_to(pipeline.read);
}

// The main loop: multiplies tiles until `stop` of the pipeline's are left; `left` are now.
__device__ __forceinline__ void multiply_tiles(Pipeline& pipeline, FragmentReader& reader,
                                               Fragments (&fragments)[FRAG_BUFFERS], int left, int stop,
                                               float (&sums)[TM][TN]) {
    constexpr int RUNS = SLICE_BK / UNROLL_K;
#pragma unroll 1
    for (; left > stop; --left) {
#pragma unroll 1
        for (int run = 0; run < RUNS; ++run) {
#pragma unroll
            for (int u = 0; u < UNROLL_K; ++u) {
                int k = run * UNROLL_K + u + AHEAD;
                pipeline.copy_ahead(run, u);
                if (AHEAD && u == UNROLL_K - 1 && run == RUNS - 1) {
                    next_tile(pipeline, reader, left);
                    k = 0;
                }
                fragments[(u + AHEAD) % FRAG_BUFFERS].load(reader.a + k * ROW_A, reader.b + k * ROW_B);
                multiply(sums, fragments[u % FRAG_BUFFERS]);
            }
        }
        if constexpr (!AHEAD) next_tile(pipeline, reader, left);
    }
}

// Adds to `sums` the product of all tiles of the pipeline, of which there is one at least. With flushes the main loop
// runs once for each block of k, and sums are flushed in between; without, one block is all of k.
__device__ __forceinline__ void multiply_all(Pipeline& pipeline, const ThreadTile& thread, int first_depth,
                                             float (&sums)[TM][TN]) {
    Fragments fragments[FRAG_BUFFERS];
    pipeline.fill(first_depth);
    FragmentReader reader(thread);
    if constexpr (AHEAD) fragments[0].load(reader.a, reader.b);
    if constexpr (HAS_FLUSHES) FlushedSums::clear();
#pragma unroll 1
    for (int left = pipeline.num_tiles; left > 0;) {
        const int stop = left_after_block(left);
        multiply_tiles(pipeline, reader, fragments, left, stop, sums);
        if (HAS_FLUSHES && stop > 0) FlushedSums::flush(sums);
        left = stop;
    }
    if constexpr (HAS_FLUSHES) FlushedSums::add_to(sums);
}

// C = alpha * op(A) * op(B) + beta * C, in FP32 on CUDA cores: strict FMA, every sum in a fixed order.
//
//   C is m x n, op(A) is m x k, op(B) is k x n, all row-major:
//     C[i][j] = c[i * ldc + j]
//     A[i][p] = a[i * lda + p], or a[p * lda + i] if TRANS_A
//     B[p][j] = b[p * ldb + j], or b[j * ldb + p] if TRANS_B
//
//             n                        grid   one block per BM x BN tile of C (and per split of k)
//        ┌────┬────┬────┐              block  warps of WM x WN; SLICE_K groups of them share out BK
//      m │    │ BN │    │              warp   32 lanes as LANES_M x LANES_N
//        │    ├────┤    │              thread TM x TN sums in registers, in chunks of 4
//        │ BM │####│    │
//        │    ├─┬──┤    │     ┌──WN──┐       k runs in steps of BK: a tile of A (BM x BK) and one of B
//        │    │ │  │    │     │∙∙∙∙∙∙│WM     (BK x BN) are copied to one of STAGES buffers in shared
//        └────┴─┴──┴────┘     └──────┘       memory while earlier ones are multiplied.
//
// Abbreviations: k runs over the depth; a *tile* is what a block copies per step; a *fragment* is what a
// thread reads of it for one k; a *split* is a block's share of k (split-K); a *slice* a warp group's
// share of BK. Parameters and rules stand in config.cuh; copies in tile_copy.cuh, products in
// multiply.cuh, results in epilogue.cuh, the order of blocks in raster.cuh, operands that are packed
// before the product in pack.cuh, sums of splits that are added behind it in reduce.cuh.
//
// Sources: the hierarchy of tiles is CUTLASS's (Kerr et al., "CUTLASS: Fast Linear Algebra in CUDA
// C++", 2017); the multistage pipeline of cp.async is described in the CUTLASS 2.x documentation; the
// classic steps towards it in S. Boehm, "How to Optimize a CUDA Matmul Kernel", 2022.
#include "config.cuh"
#include "epilogue.cuh"
#include "kept_sums.cuh"
#include "multiply.cuh"
#include "pack.cuh"
#include "primitives.cuh"
#include "raster.cuh"
#include "reduce.cuh"
#include "tile_copy.cuh"

// The tiles of A and B of one block, as they move through shared memory.
struct Pipeline {
    CopyA copy_a;
    CopyB copy_b;
    int num_tiles;    // of this block's share of k
    int fetched = 0;  // tiles asked for so far
    int write = 0;    // stage that the next fetched tile goes to, by its first float
    int read = 0;     // stage being multiplied, likewise

    __device__ __forceinline__ static float* stage(int first) { return shared_memory() + first; }
    __device__ __forceinline__ static int behind(int first) {
        return first == (STAGES - 1) * STAGE ? 0 : first + STAGE;
    }

    // Asks for part `part` of `parts` of the next tile, if there is one. The last part closes a group of
    // copies either way: groups count tiles.
    __device__ __forceinline__ void fetch(int part = 0, int parts = 1) {
        const bool is_wanted = fetched < num_tiles;
        if (is_wanted || parts > 1) {  // a branch around one burst; several have a predicate each
            copy_a.fetch(stage(write), is_wanted, part, parts);
            copy_b.fetch(stage(write) + STAGE_A, is_wanted, part, parts);
        }
        if (part == parts - 1) {
            copy_a.advance(BK);
            copy_b.advance(BK);
            if constexpr (HAS_ASYNC) commit_copies();
        }
    }

    // Asks for the very first tile of the block, `depth` deep.
    __device__ __forceinline__ void fetch_first(int depth) {
        copy_a.fetch_first(stage(write), depth);
        copy_b.fetch_first(stage(write) + STAGE_A, depth);
        copy_a.advance(depth);
        copy_b.advance(depth);
        if constexpr (HAS_ASYNC) commit_copies();
    }

    // Lands what went through registers, and turns to the next stage.
    __device__ __forceinline__ void store() {
        if (fetched < num_tiles) {
            copy_a.store(stage(write));
            copy_b.store(stage(write) + STAGE_A);
        }
        ++fetched;
        write = behind(write);
    }

    // Waits for all but the PENDING newest tiles, for this thread's copies and everyone's.
    template <int PENDING> __device__ __forceinline__ void land() {
        if constexpr (HAS_ASYNC) wait_copies<PENDING>();
        barrier();  // RAW: tiles are whole before anyone reads; WAR: the stage read last may be refilled
    }

    // Fills all stages but one (the only one, where there is but one).
    __device__ __forceinline__ void begin(int first_depth) {
        fetch_first(first_depth);
        store();
#pragma unroll
        for (int s = 1; s < STAGES - 1; ++s) {
            fetch();
            store();
        }
        land<(STAGES > 2 ? STAGES - 2 : 0)>();
    }

    // Before step u of a tile is multiplied: asks for the tile STAGES - 1 ahead, in BURSTS parts spread over
    // the steps. With one stage only registers can hold it: asynchronous copies have to wait.
    __device__ __forceinline__ void fetch_ahead(int run, int u) {
        if constexpr (STAGES == 1 && HAS_ASYNC) return;
        constexpr int STEPS = UNROLL_K / BURSTS;
        if (run == 0 && u % STEPS == 0 && u / STEPS < BURSTS) fetch(u / STEPS, BURSTS);
    }

    // The tile has been read by this thread: makes the next one readable.
    __device__ __forceinline__ void next() {
        if constexpr (STAGES == 1) barrier();  // WAR: all have read the only stage before it is refilled
        if constexpr (STAGES == 1 && HAS_ASYNC) fetch();
        store();
        land<(STAGES > 2 ? STAGES - 2 : 0)>();
        read = behind(read);
    }
};

// Where a thread reads its fragments: its first elements of A and B in the stage being multiplied.
struct TileReader {
    const float* a;
    const float* b;
    int first_a;
    int first_b;

    __device__ __forceinline__ explicit TileReader(const Lane& lane)
        : first_a(lane.slice * SLICE_BK * ROW_A + lane.m), first_b(STAGE_A + lane.slice * SLICE_BK * ROW_B + lane.n) {
        turn_to(0);
    }

    __device__ __forceinline__ void turn_to(int stage) {
        int at_a = stage + first_a, at_b = stage + first_b;
        forget(at_a);  // what is added behind is then constant and becomes part of the instruction
        forget(at_b);
        a = shared_memory() + at_a;
        b = shared_memory() + at_b;
    }
};

// Adds to `sums` the products of the pipeline's tiles, of which `left` are to come, until `stop` are.
__device__ __forceinline__ void multiply_block(Pipeline& pipeline, TileReader& tile,
                                               Fragments (&fragments)[FRAG_BUFFERS], int left, int stop,
                                               float (&sums)[TM][TN]) {
    constexpr int RUNS = SLICE_BK / UNROLL_K;
#pragma unroll 1
    for (; left > stop; --left) {
#pragma unroll 1
        for (int run = 0; run < RUNS; ++run) {
#pragma unroll
            for (int u = 0; u < UNROLL_K; ++u) {
                const int k = run * UNROLL_K + u;
                pipeline.fetch_ahead(run, u);
                if constexpr (FRAG_BUFFERS == 1) {
                    fragments[0].load(tile.a + k * ROW_A, tile.b + k * ROW_B);
                    multiply(sums, fragments[0]);
                } else {
                    // the next fragments are read while these are multiplied, over the end of the tile too
                    int next_k = k + 1;
                    if (u == UNROLL_K - 1 && run == RUNS - 1) {
                        if (left > 1) pipeline.next();
                        tile.turn_to(pipeline.read);
                        next_k = 0;
                    }
                    fragments[(u + 1) % 2].load(tile.a + next_k * ROW_A, tile.b + next_k * ROW_B);
                    multiply(sums, fragments[u % 2]);
                }
            }
        }
        if constexpr (FRAG_BUFFERS == 1) {
            if (left > 1) pipeline.next();
            tile.turn_to(pipeline.read);
        }
    }
}

// Adds to `sums` the product of all tiles of the pipeline, in blocks of FLUSH_K.
__device__ __forceinline__ void multiply_tiles(Pipeline& pipeline, const Lane& lane, int first_depth,
                                               float (&sums)[TM][TN]) {
    Fragments fragments[FRAG_BUFFERS];
    pipeline.begin(first_depth);
    TileReader tile(lane);
    if constexpr (FRAG_BUFFERS == 2) fragments[0].load(tile.a, tile.b);
    if constexpr (FLUSH_K > 0) KeptSums::clear();
#pragma unroll 1
    for (int left = pipeline.num_tiles; left > 0;) {
        const int stop = end_of_block(left);
        multiply_block(pipeline, tile, fragments, left, stop, sums);
        if (FLUSH_K > 0 && stop > 0) KeptSums::flush(sums);
        left = stop;
    }
    if constexpr (FLUSH_K > 0) KeptSums::add_to(sums);
    // WAW: zeros that unwanted copies still bring must not land on what shared memory is used for next
    if constexpr (HAS_ASYNC && BURSTS > 1) wait_copies<0>();
}

// Launch: grid and workspace as launch.Grid says, THREADS threads, the shared memory of resources.smem_bytes.
// All kernels wait for those before them on the stream, so that they may be launched early (LaunchSpec.overlaps).
// m and n are at least 1; k = 0 and alpha = 0 scale C and read neither A nor B. A packed operand comes as
// sgemm_pack left it: its rows are along k, and its leading dimension is whole tiles.
extern "C" __global__ void CLUSTER_OF(CLUSTER) __launch_bounds__(THREADS, MIN_BLOCKS)
    sgemm(int m, int n, int k, float alpha, const float* READ_ONLY a, long long lda, const float* READ_ONLY b,
          long long ldb, float beta, float* __restrict__ c, long long ldc, float* __restrict__ workspace, int splits) {
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN;
    const Share share(tiles_m * tiles_n, splits);
    const Tile tile = tile_of(share.tile, tiles_m, tiles_n);
    const int origin_m = tile.m * BM, origin_n = tile.n * BN;

    // This block's part of k, in tiles. The first tile of all is the ragged one.
    const int k_tiles = alpha == 0 ? 0 : k / BK + (k % BK != 0);
    const int ragged = k - (k_tiles - 1) * BK;
    const int most = (k_tiles + share.splits - 1) / share.splits;
    const int first = most * share.split;
    const int num_tiles = first + most < k_tiles ? most : k_tiles - first;
    const int k_begin = first == 0 ? 0 : ragged + (first - 1) * BK;

    const Lane lane;
    float sums[TM][TN] = {};
    Pipeline pipeline{CopyA(a, lda, origin_m, m, k_begin), CopyB(b, ldb, origin_n, n, k_begin), num_tiles};
    wait_for_kernels_before();
    if constexpr (LETS_NEXT_BEGIN) let_next_kernel_begin();
    if (num_tiles > 0) multiply_tiles(pipeline, lane, first == 0 ? ragged : BK, sums);
    add_slices(sums, lane);

    if constexpr (REDUCTION == REDUCTION_TWO_PASS) {
        const long long plane = static_cast<long long>(tiles_m * BM) * (tiles_n * BN);
        store_plane(sums, lane, origin_m, origin_n, workspace + share.split * plane, tiles_n * BN);
        return;
    }
    if constexpr (REDUCTION == REDUCTION_LAST_BLOCK || REDUCTION == REDUCTION_LAST_WAVE) {
        if (share.splits > 1 &&
            !add_splits(sums, lane, share.tile - share.whole, share.split_tiles, share.split, splits, workspace))
            return;
    }
    if constexpr (REDUCTION == REDUCTION_CLUSTER) {
        add_cluster_and_store(sums, lane, share.split, origin_m, origin_n, m, n, alpha, beta, c, ldc);
        return;
    }
    store_tile(sums, lane, origin_m, origin_n, m, n, alpha, beta, c, ldc);
}

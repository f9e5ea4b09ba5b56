// Three reference kernels, the first rungs of the ladder (autotune/kernel/rungs.py): C = alpha * A * B + beta * C, FP32.
//
//   C is m x n, A is m x k, B is k x n, all row-major with leading dimensions of their own:
//     C[i][j] = c[i * ldc + j]     A[i][p] = a[i * lda + p]     B[p][j] = b[p * ldb + j]
//
//             n                      Every block computes one TILE x TILE piece of C, one element per thread;
//        ┌────┬────┬────┐            blocks are numbered row by row. A warp's 32 threads share
//      m │    │TILE│    │              sgemm_naive      a column of that piece: neighbours are ldc apart
//        │    ├────┤    │              sgemm_coalesced  a row of it: neighbours lie side by side
//        │TILE│####│    │              sgemm_shared     a row; A and B come through shared memory
//        └────┴────┴────┘
//
// All three are launched like the template (launch.Grid): the same arguments, of which these leave the last
// ones, from the workspace on, unused. m and n at least 1; any k, alpha and beta; beta = 0 does not read C,
// alpha = 0 reads neither A nor B. Sums run over k in its order, so results repeat bit by bit.
//
// Source of the steps: S. Boehm, "How to Optimize a CUDA Matmul Kernel", 2022, kernels 1 to 3.
#include "primitives.cuh"

constexpr int TILE = 32;  // a warp is one row or one column of it
constexpr int THREADS = TILE * TILE;
static_assert(THREADS <= 1024, "rule threads");

// Where a block's piece of C begins.
struct Origin {
    int row, column;
    __device__ __forceinline__ explicit Origin(int n) {
        const int tiles_n = n / TILE + (n % TILE != 0);
        row = block_index_x() / tiles_n * TILE;
        column = block_index_x() % tiles_n * TILE;
    }
};

// BLAS: with beta = 0, C is only written, so NaN in it stays out.
__device__ __forceinline__ void scale_and_store(float* c, float sum, float alpha, float beta) {
    *c = beta == 0 ? alpha * sum : multiply_add(beta, *c, alpha * sum);
}

// One element of A * B, straight from global memory.
__device__ __forceinline__ float dot(const float* a_row, const float* b_column, long long ldb, int k) {
    float sum = 0;
    for (int p = 0; p < k; ++p) sum = multiply_add(a_row[p], b_column[p * ldb], sum);
    return sum;
}

// Threads go down a column of C. For each p the 32 loads of A, and at the end the 32 stores to C, touch 32
// rows: as many memory transactions as threads. All 32 read the same element of B.
// Launch: a block per TILE x TILE piece of C, THREADS threads.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm_naive(int m, int n, int k, float alpha, const float* READ_ONLY a, long long lda,
                const float* READ_ONLY b, long long ldb, float beta, float* __restrict__ c, long long ldc, float*,
                int) {
    const Origin origin(n);
    const int row = origin.row + thread_index() % TILE, column = origin.column + thread_index() / TILE;
    wait_for_kernels_before();
    if (row >= m || column >= n) return;  // edge: C
    const float sum = dot(a + row * lda, b + column, ldb, alpha == 0 ? 0 : k);
    scale_and_store(c + row * ldc + column, sum, alpha, beta);
}

// Threads go along a row of C: the 32 loads of B and the 32 stores to C are each one piece of 128 bytes, and
// all 32 read the same element of A. Nothing else differs from sgemm_naive.
// Launch: as above.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm_coalesced(int m, int n, int k, float alpha, const float* READ_ONLY a, long long lda,
                    const float* READ_ONLY b, long long ldb, float beta, float* __restrict__ c, long long ldc,
                    float*, int) {
    const Origin origin(n);
    const int row = origin.row + thread_index() / TILE, column = origin.column + thread_index() % TILE;
    wait_for_kernels_before();
    if (row >= m || column >= n) return;  // edge: C
    const float sum = dot(a + row * lda, b + column, ldb, alpha == 0 ? 0 : k);
    scale_and_store(c + row * ldc + column, sum, alpha, beta);
}

// k runs in steps of TILE. Per step each thread copies one element of A and one of B to shared memory, where
// the block reads each TILE times: global memory is asked for 1/TILE of what sgemm_coalesced asks for. A warp
// reads one element of A (broadcast) and a row of B (32 banks): no bank conflict. What hangs over an edge is
// zero, so that every thread takes part in every step, as the barriers need.
// Launch: as above, with 2 * TILE * TILE floats of shared memory.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm_shared(int m, int n, int k, float alpha, const float* READ_ONLY a, long long lda,
                 const float* READ_ONLY b, long long ldb, float beta, float* __restrict__ c, long long ldc, float*,
                 int) {
    float* a_tile = shared_memory();      // (row, p)
    float* b_tile = a_tile + TILE * TILE;  // (p, column)
    const Origin origin(n);
    const int ty = thread_index() / TILE, tx = thread_index() % TILE;
    const int row = origin.row + ty, column = origin.column + tx;
    const int depth = alpha == 0 ? 0 : k;
    wait_for_kernels_before();
    float sum = 0;
    for (int from = 0; from < depth; from += TILE) {
        const bool is_in_a = row < m && tx < depth - from, is_in_b = ty < depth - from && column < n;
        store_shared<1>(a_tile + ty * TILE + tx, {is_in_a ? a[row * lda + from + tx] : 0.0f});
        store_shared<1>(b_tile + ty * TILE + tx, {is_in_b ? b[(from + ty) * ldb + column] : 0.0f});
        barrier();  // RAW: tiles are whole before they are read
        for (int p = 0; p < TILE; ++p)
            sum = multiply_add(load_shared<1>(a_tile + ty * TILE + p).v[0],
                               load_shared<1>(b_tile + p * TILE + tx).v[0], sum);
        barrier();  // WAR: all have read the tiles before they are refilled
    }
    if (row < m && column < n) scale_and_store(c + row * ldc + column, sum, alpha, beta);  // edge: C
}

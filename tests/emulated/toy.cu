// A kernel of the twin's own, to show that it runs what is right and reports what is wrong.
//
// C = alpha * A * B + beta * C in tiles of 8 x 8, one element per thread; two stages of asynchronous
// copies; split-K, added by the block that comes last or, where CLUSTER is more than 1, by the first block of
// each cluster. `FAULT` plants one fault.
#include "primitives_host.hpp"

enum Fault {
    NONE,
    NO_BARRIER_AFTER_WAIT,
    NO_BARRIER_BEFORE_REFILL,
    NO_WAIT,
    SHALLOW_WAIT,
    NO_COMMIT,
    NO_LAST_WAIT,
    PLAIN_READ_BEFORE_WAIT,
    PLAIN_WRITE_BEFORE_WAIT,
    READ_OF_UNWRITTEN,
    EARLY_EXIT,
    OTHER_BARRIER,
    SHARED_OVERRUN,
    PLAIN_SHARED_OVERRUN,
    GLOBAL_OVERRUN,
    GAP_READ,
    GAP_COPIED,
    PLAIN_GLOBAL_OVERRUN,
    NO_EDGE_CHECK,
    MISALIGNED,
    INT_OVERFLOW,
    PADDING_WRITTEN,
    A_WRITTEN,
    C_READ,
    NO_FENCE,
    FENCE_AFTER_ATOMIC,
    NO_BARRIER_BEFORE_ATOMIC,
    NO_FENCE_AFTER_ATOMIC,
    COUNTER_LEFT,
    FOREIGN_READ_AT_ONCE,
    NO_CLUSTER_BARRIER_BEFORE_READ,
    NO_CLUSTER_BARRIER_BEFORE_WRITE,
    NO_CLUSTER_BARRIER_AT_END,
    ONE_BLOCK_ENDS,
    NO_SUCH_BLOCK,
    NO_WAIT_FOR_KERNELS,
    END_WITHOUT_WAIT_FOR_KERNELS,
};
constexpr int T = 8;
constexpr int STAGE = 2 * T * T;  // floats: a tile of A, then one of B

static void copy_tile(float* stage, const float* a, long long lda, const float* b, long long ldb, int tile_k,
                      int row, int column, int m, int n, int k) {
    const int at = thread_index() / T * T + thread_index() % T, r = thread_index() / T, c = thread_index() % T;
    const bool is_edge_checked = FAULT != NO_EDGE_CHECK;
    const bool is_a = !is_edge_checked || (row + r < m && tile_k * T + c < k);
    const bool is_b = !is_edge_checked || (tile_k * T + r < k && column + c < n);
    copy_async<1>(stage + at, global_address(a + (row + r) * lda + tile_k * T + c), is_a);
    copy_async<1>(stage + T * T + at, global_address(b + (tile_k * T + r) * ldb + column + c), is_b);
    if (FAULT != NO_COMMIT) commit_copies();
}

static float dot(const float* stage) {
    float sum = 0;
    for (int p = 0; p < T; ++p) {
        sum = multiply_add(load_shared<1>(stage + thread_index() / T * T + p).v[0],
                           load_shared<1>(stage + T * T + p * T + thread_index() % T).v[0], sum);
    }
    return sum;
}

// Whether this block is the last of its tile's splits, and then the sum over them in `sum`.
static bool is_last_split(float& sum, float* workspace, int tiles, int splits) {
    float* mine = workspace + block_index_x() * T * T + thread_index();
    unsigned* counters = reinterpret_cast<unsigned*>(workspace + tiles * T * T * splits);
    store_global<1>(mine + block_index_y() * tiles * T * T, {sum});
    if (FAULT != NO_FENCE && FAULT != FENCE_AFTER_ATOMIC) fence_global();
    if (FAULT != NO_BARRIER_BEFORE_ATOMIC) barrier();
    float* ticket = shared_memory();
    if (thread_index() == 0) {
        store_shared<1>(ticket, {static_cast<float>(atomic_add(counters + block_index_x(), 1))});
    }
    if (FAULT == FENCE_AFTER_ATOMIC) fence_global();
    barrier();
    if (static_cast<int>(load_shared<1>(ticket).v[0]) != splits - 1) return false;
    if (FAULT != NO_FENCE_AFTER_ATOMIC && FAULT != NO_FENCE) fence_global();
    if (FAULT != COUNTER_LEFT && thread_index() == 0) counters[block_index_x()] = 0;
    sum = 0;
    for (int z = 0; z < splits; ++z) sum += load_l2<1>(mine + z * tiles * T * T).v[0];
    return true;
}

// Whether this block is the first of its cluster, and then the sum over the cluster in `sum`.
static bool is_first_of_cluster(float& sum) {
    float* mine = shared_memory() + thread_index();
    float unused = 0;
    if (FAULT == FOREIGN_READ_AT_ONCE) unused = load_cluster<1>(mine, 1 - block_index_y()).v[0];
    barrier();
    store_shared<1>(mine, {sum + 0 * unused});
    if (FAULT != NO_CLUSTER_BARRIER_BEFORE_READ) cluster_barrier();
    const bool is_first = block_index_y() == 0;
    if (FAULT == ONE_BLOCK_ENDS && !is_first) return false;
    if (is_first) {
        sum = 0;
        for (int z = 0; z < CLUSTER + (FAULT == NO_SUCH_BLOCK); ++z) sum += load_cluster<1>(mine, z).v[0];
    }
    if (FAULT == NO_CLUSTER_BARRIER_BEFORE_WRITE) store_shared<1>(mine, {0});
    if (FAULT != NO_CLUSTER_BARRIER_AT_END) cluster_barrier();
    return is_first;
}

// Faults that are one access or one statement, made by the last thread.
static void plant(float* a, long long lda, float* c, long long ldc, int m, int n, int k) {
    if (thread_index() != T * T - 1) return;
    float* shared = shared_memory();
    volatile float sink = 0;
    volatile int large = 2147483647;
    if (FAULT == SHARED_OVERRUN) sink = load_shared<1>(shared + 2 * STAGE).v[0];
    if (FAULT == PLAIN_SHARED_OVERRUN) sink = shared[2 * STAGE];
    if (FAULT == GLOBAL_OVERRUN) sink = load_global<1>(a + (m - 1) * lda + k).v[0];
    if (FAULT == GAP_READ) sink = load_global<1>(a + k).v[0];
    if (FAULT == GAP_COPIED) copy_async<1>(shared, 0, global_address(a + k));
    if (FAULT == PLAIN_GLOBAL_OVERRUN) sink = a[(m - 1) * lda + k];
    if (FAULT == MISALIGNED) sink = load_shared<4>(shared + 1).v[0];
    if (FAULT == INT_OVERFLOW) sink = large + 1;
    if (FAULT == PADDING_WRITTEN && m > 1 && ldc > n) c[n] = 1;
    if (FAULT == A_WRITTEN) store_global<1>(a, {1});
    if (FAULT == OTHER_BARRIER) barrier();
    (void)sink;
}

static void sgemm(int m, int n, int k, float alpha, const float* a, long long lda, const float* b, long long ldb,
                  float beta, float* c, long long ldc, float* workspace, int splits) {
    const int tiles_n = (n + T - 1) / T, tiles = (m + T - 1) / T * tiles_n;
    const int row = block_index_x() / tiles_n * T, column = block_index_x() % tiles_n * T;
    const int k_tiles = (k + T - 1) / T, share = (k_tiles + splits - 1) / splits;
    const int first = share * block_index_y(), end = first + share < k_tiles ? first + share : k_tiles;
    float* shared = shared_memory();
    float sum = FAULT == READ_OF_UNWRITTEN ? 0 * shared[0] : 0;
    const bool is_beyond = row + thread_index() / T >= m && column + thread_index() % T >= n;
    if (FAULT != NO_WAIT_FOR_KERNELS && (FAULT != END_WITHOUT_WAIT_FOR_KERNELS || !is_beyond)) {
        wait_for_kernels_before();
    }
    plant(const_cast<float*>(a), lda, c, ldc, m, n, k);
    if (FAULT == PLAIN_WRITE_BEFORE_WAIT) {
        copy_async<1>(shared + thread_index(), global_address(a), false);
        shared[thread_index()] = 0;
        barrier();
        sum = shared[thread_index()];
        commit_copies();
        wait_copies<0>();
        barrier();
    }
    if (FAULT == EARLY_EXIT && thread_index() == 7) return;
    if (first < end) copy_tile(shared, a, lda, b, ldb, first, row, column, m, n, k);
    for (int tile = first; tile < end; ++tile) {
        float* stage = shared + (tile - first) % 2 * STAGE;
        if (tile + 1 < end) {
            copy_tile(shared + (tile + 1 - first) % 2 * STAGE, a, lda, b, ldb, tile + 1, row, column, m, n, k);
        } else {
            commit_copies();
        }
        if (FAULT == PLAIN_READ_BEFORE_WAIT) sum += 0 * stage[thread_index()];
        const bool is_waiting = FAULT != NO_LAST_WAIT || tile + 1 < end;
        if (FAULT == SHALLOW_WAIT) {
            wait_copies<2>();
        } else if (FAULT != NO_WAIT && is_waiting) {
            wait_copies<1>();
        }
        if (FAULT != NO_BARRIER_AFTER_WAIT) barrier();
        if (is_waiting) sum += dot(stage);
        if (FAULT != NO_BARRIER_BEFORE_REFILL) barrier();
    }
    if (CLUSTER > 1 ? !is_first_of_cluster(sum) : splits > 1 && !is_last_split(sum, workspace, tiles, splits)) return;
    const int i = row + thread_index() / T, j = column + thread_index() % T;
    if (i >= m || j >= n) return;
    const float old = beta != 0 || FAULT == C_READ ? load_global<1>(c + i * ldc + j).v[0] : 0;
    store_global<1>(c + i * ldc + j, {multiply_add(beta, old, alpha * sum)});
}


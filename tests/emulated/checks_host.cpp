// Runs the kernels of checks.cu on the host, for tests. CHECKS_SOURCE names the file. Blocks run one after
// the other; a block's threads too, unless they meet at __syncthreads().
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct Dim {
    unsigned x;
};
thread_local Dim threadIdx, blockIdx;
Dim blockDim, gridDim;
std::barrier<>* block_barrier = nullptr;

inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline float cospif(float x) { return static_cast<float>(std::cos(3.14159265358979323846 * x)); }
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
using std::isfinite;

inline void atomicAdd(unsigned long long* at, unsigned long long value) {
    std::atomic_ref<unsigned long long>(*at).fetch_add(value);
}
inline void atomicAdd(double* at, double value) { std::atomic_ref<double>(*at).fetch_add(value); }
inline void atomicMax(unsigned long long* at, unsigned long long value) {
    std::atomic_ref<unsigned long long> cell(*at);
    for (auto old = cell.load(); old < value && !cell.compare_exchange_weak(old, value);) {
    }
}

#include CHECKS_SOURCE

// For kernels that wait for each other: a thread for each.
template <class Body> void run_together(unsigned blocks, Body body) {
    std::barrier<> barrier(CHECK_THREADS);
    block_barrier = &barrier;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < CHECK_THREADS; ++t)
        threads.emplace_back([=, &body] {
            threadIdx.x = t;
            for (unsigned block = 0; block < blocks; ++block) {
                blockIdx.x = block;
                body();
                __syncthreads();
            }
        });
    for (auto& thread : threads) thread.join();
}

// For kernels that do not: one after the other.
template <class Body> void run(unsigned blocks, Body body) {
    gridDim.x = blocks;
    blockDim.x = CHECK_THREADS;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < CHECK_THREADS; ++threadIdx.x) body();
}

extern "C" {
void host_fill(unsigned blocks, float* out, u64 count, u64 seed) {
    run(blocks, [=] { fill_normal(out, count, seed); });
}
void host_reference(unsigned slots, int m, int n, int k, const float* a, long long ar, long long ac, long long ap,
                    const float* b, long long br, long long bc, long long bp, const int* tiles, double* reference,
                    float* magnitudes) {
    run_together(slots,
                 [=] { reference_tiles(m, n, k, a, ar, ac, ap, b, br, bc, bp, tiles, reference, magnitudes); });
}
void host_compare_tiles(unsigned slots, int m, int n, const float* c, const int* tiles, const double* reference,
                        const float* magnitudes, double gamma, Findings* findings) {
    run_together(slots, [=] { compare_tiles(m, n, c, tiles, reference, magnitudes, gamma, findings); });
}
void host_compare_whole(unsigned blocks, const float* c, const float* other, u64 count, double tolerance,
                        Findings* findings) {
    run(blocks, [=] { compare_whole(c, other, count, tolerance, findings); });
}
void host_check_canaries(unsigned blocks, const Canary* canaries, u32 first, u32 pattern, Findings* findings) {
    run(blocks, [=] { check_canaries(canaries, first, pattern, findings); });
}
}

// Runs the kernels of checks.cu on the host, for tests. CHECKS_SOURCE names the file. Blocks run one after
// the other; a block's threads too, and where they meet at __syncthreads() each runs as far as that.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct Dim {
    unsigned x;
};
Dim threadIdx, blockIdx, blockDim, gridDim;

// A thread of a block. Without its barrier the first would read what no other has written yet, or write what none has
// read: a missing one shows at once, and always.
struct Fibre {
    ucontext_t place;
    std::vector<char> stack = std::vector<char>(64 * 1024);
    bool has_ended;
};
std::vector<Fibre> fibres;
ucontext_t scheduler;
std::function<void()> kernel;

inline void __syncthreads() { swapcontext(&fibres[threadIdx.x].place, &scheduler); }
inline float cospif(float x) { return static_cast<float>(std::cos(3.14159265358979323846 * x)); }
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
using std::isfinite;

template <class Number> void atomicAdd(Number* at, Number value) { *at += value; }
inline void atomicMax(unsigned long long* at, unsigned long long value) { *at = std::max(*at, value); }

#include CHECKS_SOURCE

void begin(Fibre& fibre) {
    fibre.has_ended = false;
    getcontext(&fibre.place);
    fibre.place.uc_stack.ss_sp = fibre.stack.data();
    fibre.place.uc_stack.ss_size = fibre.stack.size();
    fibre.place.uc_link = &scheduler;  // where it goes when it ends
    makecontext(&fibre.place, [] { kernel(), fibres[threadIdx.x].has_ended = true; }, 0);
}

// For kernels whose threads wait for each other.
template <class Body> void run_together(unsigned blocks, Body body) {
    kernel = body;
    fibres.resize(CHECK_THREADS);
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        for (Fibre& fibre : fibres) begin(fibre);
        for (unsigned num_ended = 0; num_ended == 0;) {
            for (threadIdx.x = 0; threadIdx.x < CHECK_THREADS; ++threadIdx.x) {
                swapcontext(&scheduler, &fibres[threadIdx.x].place);
                num_ended += fibres[threadIdx.x].has_ended;
            }
            if (num_ended % CHECK_THREADS == 0) continue;
            fprintf(stderr, "%u threads have ended, the others wait for them\n", num_ended);
            abort();
        }
    }
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
void host_fill_operand(unsigned blocks, float* out, u64 count, u64 seed, int kind, u64 rows, u64 columns, int is_k_major,
                       int negates) {
    run(blocks, [=] { fill_operand(out, count, seed, kind, rows, columns, is_k_major, negates); });
}
void host_shorten_operand(unsigned blocks, float* values, unsigned short* out, u64 count, int type) {
    run(blocks, [=] { shorten_operand(values, out, count, type); });
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

// Host twin of kernels/scaled_primitives.cuh (see warpgroups_host.hpp, and tensor.cpp for what stands behind it).
//
// A copy in bulk arrives at once, but its barrier counts it: one that was not told to expect so many bytes is at fault.
#pragma once

#include "warpgroups_host.hpp"

namespace emulated {

unsigned half_of(float x);  // FP16's bits, rounded to the nearest
void post_halves(float* sums, int num_sums, const float* a, const float* b, int step, bool adds);
void finish_halves(int width, const char* file, int line);

}  // namespace emulated

inline unsigned halves_of(float first, float second) {
    return emulated::half_of(first) | emulated::half_of(second) << 16;
}

inline void expect_bytes(Barrier& barrier, int bytes) { emulated::expect_at(&barrier.state, bytes); }
inline void copy_bulk(float* to, const float* from, int floats, Barrier& barrier) {
    emulated::copy_at_once(to, from, floats, &barrier.state);
}

struct RowsAt {
    const float* part;
    int step;
};
struct Rows {
    const float* tile;

    explicit Rows(const float* tile) : tile(tile) {}
    RowsAt at(int part, int step) const { return {tile + part * PART, step}; }
};

inline void multiply_step(float (&sums)[SUMS], RowsAt a, RowsAt b, bool adds) {
    emulated::post_halves(sums, SUMS, a.part, b.part, a.step, adds);
}
inline void wait_for_sums(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulated::finish_halves(BN, file, line);
}

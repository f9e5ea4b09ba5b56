// Host twin of kernels/tensor_primitives.cuh (see warpgroups_host.hpp, and tensor.cpp for what stands behind it).
#pragma once

#include "warpgroups_host.hpp"

struct MmaFragment {
    unsigned bits[4];
};

namespace emulated {

void post_multiplication(float* sums, int num_sums, const MmaFragment* a, const float* b, int step, bool adds);
void finish_multiplications(int width, int depth, int packed, const char* file, int line);

}  // namespace emulated

struct PlaneAt {
    const float* plane;
    int step;
};
struct Plane {
    const float* planes;

    explicit Plane(const float* planes) : planes(planes) {}
    PlaneAt at(int part, int step) const { return {planes + part * PLANE, step}; }
};

inline void multiply_step(float (&sums)[SUMS], const MmaFragment& a, PlaneAt b, bool adds) {
    emulated::post_multiplication(sums, SUMS, &a, b.plane, b.step, adds);
}
inline void wait_for_sums(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulated::finish_multiplications(BN, BK, PACKED, file, line);
}

// Host twin of kernels/halves_primitives.cuh (see mma_primitives_host.hpp, and tensor.cpp for what stands behind it).
#pragma once

#include "bits_host.hpp"
#include "primitives_host.hpp"

namespace emulated {

unsigned half_of(float x);  // FP16's bits, rounded to the nearest
void multiply_halves_together(float* sums, const unsigned* a, const unsigned* b, bool adds, const Site& site);

}  // namespace emulated

inline unsigned halves_of(float first, float second) {
    return emulated::half_of(first) | emulated::half_of(second) << 16;
}

inline void multiply_step(float (&sums)[TILE_SUMS], float a, float a_below, float b, bool adds,
                          emulated::Site site = emulated::Site::here()) {
    const unsigned of_a[2] = {bits_of(a), bits_of(a_below)}, of_b[1] = {bits_of(b)};
    emulated::multiply_halves_together(sums, of_a, of_b, adds, site);
}

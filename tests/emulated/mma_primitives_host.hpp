// Host twin of kernels/mma_primitives.cuh (see primitives_host.hpp, and tensor.cpp for what stands behind it).
//
// The lanes of a warp meet at each instruction; one that multiplies elsewhere than the others is at fault.
#pragma once

#include "bits_host.hpp"
#include "primitives_host.hpp"

namespace emulated {

void multiply_together(float* sums, const unsigned* a, const unsigned* b, bool adds, int packed, const Site& site);

}  // namespace emulated

inline void multiply_step(float (&sums)[SUMS], const FragmentA& a, const FragmentB& b, bool adds,
                          emulated::Site site = emulated::Site::here()) {
    emulated::multiply_together(sums, a.bits, b.bits, adds, PACKED, site);
}

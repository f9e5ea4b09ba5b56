// What the kernel on tensor cores of any GPU since sm_80 asks of the hardware beyond primitives.cuh.
//
// The tests bring the same names for the host (mma_primitives_host.hpp).
#pragma once

#include "mma_config.cuh"

// Of a part, what a lane has of 16 rows of A by 8 words of k, and of these by 8 columns of B. With g = lane / 4 and
// q = lane % 4 these are words q and q + 4 of rows g and g + 8:
//
//   A   bits  0: (g, q)   1: (g + 8, q)   2: (g, q + 4)   3: (g + 8, q + 4)
//   B   bits  0: (q, g)   1: (q + 4, g)
//   C   sums  0, 1: (g, 2 q), (g, 2 q + 1)                2, 3: the same of row g + 8
struct FragmentA {
    unsigned bits[4];
};
struct FragmentB {
    unsigned bits[2];
};

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

#include "bits.cuh"

#if SCHEME == SCHEME_TF32X3
#define MMA_KIND "m16n8k8.row.col.f32.tf32.tf32.f32"
#else
#define MMA_KIND "m16n8k16.row.col.f32.bf16.bf16.f32"
#endif

// sums += A * B for one step, or sums = A * B; of TF32 the low 13 bits do not count. All lanes of a warp ask together.
__device__ __forceinline__ void multiply_step(float (&sums)[SUMS], const FragmentA& a, const FragmentB& b, bool adds) {
    float to[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; ++i) to[i] = adds ? sums[i] : 0.0f;
    asm("mma.sync.aligned." MMA_KIND " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3])
        : "r"(a.bits[0]), "r"(a.bits[1]), "r"(a.bits[2]), "r"(a.bits[3]), "r"(b.bits[0]), "r"(b.bits[1]));
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = to[i];
}

#else
#include "mma_primitives_host.hpp"
#endif

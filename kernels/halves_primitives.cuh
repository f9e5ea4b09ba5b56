// What the kernel on scaled operands without warpgroups asks of the hardware beyond primitives.cuh: sm_75 and later.
//
// The tests bring the same names for the host (halves_primitives_host.hpp).
#pragma once

#include "halves_config.cuh"

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

#include "bits.cuh"

// FP16 of two numbers, rounded to the nearest: the first in the lower half.
__device__ __forceinline__ unsigned halves_of(float first, float second) {
    unsigned both;
    asm("{\n\t.reg .b16 low, high;\n\tcvt.rn.f16.f32 low, %1;\n\tcvt.rn.f16.f32 high, %2;\n\tmov.b32 %0, {low, high};\n\t}"
        : "=r"(both)
        : "f"(first), "f"(second));
    return both;
}

// sums += A * B for 8 of k, or sums = A * B. With g = lane / 4 and q = lane % 4 a lane has word q of row g of A, then of
// row g + 8; word q of column g of B; sums (g, 2 q), (g, 2 q + 1), then the same of row g + 8. All lanes of a warp ask
// together.
__device__ __forceinline__ void multiply_step(float (&sums)[TILE_SUMS], float a, float a_below, float b, bool adds) {
    float to[TILE_SUMS];
#pragma unroll
    for (int i = 0; i < TILE_SUMS; ++i) to[i] = adds ? sums[i] : 0.0f;
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3])
        : "r"(bits_of(a)), "r"(bits_of(a_below)), "r"(bits_of(b)));
#pragma unroll
    for (int i = 0; i < TILE_SUMS; ++i) sums[i] = to[i];
}

#else
#include "halves_primitives_host.hpp"
#endif

// Floats and their bits: CUDA alone, as part of what the kernels on tensor cores ask of the hardware.
#pragma once

__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }
// FP16, the lower half of these bits, as a float, which holds it exactly.
__device__ __forceinline__ float float_of_half(unsigned bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(bits)));
    return x;
}

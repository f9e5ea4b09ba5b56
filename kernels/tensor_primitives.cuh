// What the kernel on tensor cores asks of the hardware beyond warpgroups.cuh: compute capability 9.0 alone (sm_90a).
//
// The tests bring the same names for the host (tensor_primitives_host.hpp).
#pragma once

#include "tensor_config.cuh"
#include "warpgroups.cuh"

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

// The planes of B, of its parts one after another, as an instruction finds them: rows of 128 or 64 bytes, swizzled in
// groups of eight (PTX ISA, "Matrix descriptor").
struct Plane {
    unsigned long long descriptor;

    __device__ __forceinline__ explicit Plane(const float* plane) {
        const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(plane));
        constexpr unsigned long long GROUP = SWIZZLED_ROWS * ROW * 4 >> 4, SWIZZLE = PACKED;  // 1: 128 bytes, 2: 64
        descriptor = (address & 0x3ffff) >> 4 | 1ull << 16 | GROUP << 32 | SWIZZLE << 62;
    }
    // From the k of this step on, 32 bytes along the rows, of the plane of a part.
    __device__ __forceinline__ unsigned long long at(int part, int step) const {
        return descriptor + part * (PLANE * 4 >> 4) + step * (MMA_K * 4 / PACKED >> 4);
    }
};

// A part of A for one instruction: rows r and r + 8 of a lane, word lane % 4 of one chunk and of the next.
struct MmaFragment {
    unsigned bits[4];
};

#if SCHEME == SCHEME_TF32X3
#define MMA_KIND "k8.f32.tf32.tf32"
#define MMA_END "1, 1;\n\t}"
#else
#define MMA_KIND "k16.f32.bf16.bf16"
#define MMA_END "1, 1, 0;\n\t}"  // B's rows are along k
#endif

// sums += A * B for one step, or sums = A * B; of TF32 the low 13 bits do not count. Begins and returns: neither
// `sums` nor `a` may be touched until wait_for_sums. All threads of a warpgroup ask together.
__device__ __forceinline__ void multiply_step(float (&sums)[SUMS], const MmaFragment& a, unsigned long long b, bool adds) {
    if constexpr (BN == 64) {
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %37, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n64" MMA_KIND " {" NAMES_0_31
                     "}, {%32, %33, %34, %35}, %36, adds, " MMA_END
                     : SUMS_32(0)
                     : "r"(a.bits[0]), "r"(a.bits[1]), "r"(a.bits[2]), "r"(a.bits[3]), "l"(b), "r"(int(adds)));
    } else {
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %69, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n128" MMA_KIND " {" NAMES_0_31 ", " NAMES_32_63
                     "}, {%64, %65, %66, %67}, %68, adds, " MMA_END
                     : SUMS_32(0), SUMS_32(32)
                     : "r"(a.bits[0]), "r"(a.bits[1]), "r"(a.bits[2]), "r"(a.bits[3]), "l"(b), "r"(int(adds)));
    }
}

#else
#include "tensor_primitives_host.hpp"
#endif

// What the kernel on scaled operands asks of the hardware beyond warpgroups.cuh: compute capability 9.0 alone (sm_90a).
//
// The tests bring the same names for the host (scaled_primitives_host.hpp).
#pragma once

#include "scaled_config.cuh"
#include "warpgroups.cuh"

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

// FP16 of two numbers, rounded to the nearest: the first in the lower half.
__device__ __forceinline__ unsigned halves_of(float first, float second) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

// A barrier's phase does not end before so many bytes have arrived, too; counts as an arrival.
__device__ __forceinline__ void expect_bytes(Barrier& barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address()), "r"(bytes)
                 : "memory");
}
// Copies neighbours from global to shared memory, a multiple of four floats, for a barrier that expects them.
__device__ __forceinline__ void copy_bulk(float* to, const float* from, int floats, Barrier& barrier) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address),
                 "l"(global_address(from)), "r"(floats * 4), "r"(barrier.address())
                 : "memory");
}

// Rows of a tile as an instruction finds them: 128 bytes each, swizzled in groups of eight, which lie two PARTs apart
// (PTX ISA, "Matrix descriptor").
struct Rows {
    unsigned long long descriptor;

    __device__ __forceinline__ explicit Rows(const float* tile) {
        const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
        constexpr unsigned long long GROUP = 2 * PART * 4 >> 4, SWIZZLED_BY_128 = 1;
        descriptor = (address & 0x3ffff) >> 4 | 1ull << 16 | GROUP << 32 | SWIZZLED_BY_128 << 62;
    }
    // From the k of this step on, of the high parts (0) or the low ones (1).
    __device__ __forceinline__ unsigned long long at(int part, int step) const {
        return descriptor + part * (PART * 4 >> 4) + step * (MMA_K * 2 >> 4);
    }
};

#define NAMES_64_95 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
                    "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

// sums += A * B for one step, or sums = A * B. Begins and returns: `sums` may not be touched until wait_for_sums. All
// threads of a warpgroup ask together.
__device__ __forceinline__ void multiply_step(float (&sums)[SUMS], unsigned long long a, unsigned long long b, bool adds) {
#define MMA_KIND "k16.f32.f16.f16 {"
#define MMA_END ", adds, 1, 1, 0, 0;\n\t}"
    if constexpr (BN == 64) {
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %34, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n64" MMA_KIND NAMES_0_31 "}, %32, %33" MMA_END
                     : SUMS_32(0)
                     : "l"(a), "l"(b), "r"(int(adds)));
    } else if constexpr (BN == 128) {
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %66, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n128" MMA_KIND NAMES_0_31 ", " NAMES_32_63 "}, %64, %65" MMA_END
                     : SUMS_32(0), SUMS_32(32)
                     : "l"(a), "l"(b), "r"(int(adds)));
    } else {
        asm volatile("{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, %98, 0;\n\t"
                     "wgmma.mma_async.sync.aligned.m64n192" MMA_KIND NAMES_0_31 ", " NAMES_32_63 ", " NAMES_64_95
                     "}, %96, %97" MMA_END
                     : SUMS_32(0), SUMS_32(32), SUMS_32(64)
                     : "l"(a), "l"(b), "r"(int(adds)));
    }
}

#else
#include "scaled_primitives_host.hpp"
#endif

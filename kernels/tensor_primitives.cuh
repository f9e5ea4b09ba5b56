// What the kernel on tensor cores asks of the hardware beyond primitives.cuh: compute capability 9.0 alone (sm_90a).
//
// The tests bring the same names for the host (tensor_primitives_host.hpp).
#pragma once

#include "tensor_config.cuh"

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

__device__ __forceinline__ unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(unsigned bits) { return __uint_as_float(bits); }
// FP16 as a float, which holds it exactly.
__device__ __forceinline__ float float_of_half(unsigned bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(bits)));
    return x;
}

// The first float of shared memory from here on that is so aligned.
__device__ __forceinline__ float* aligned(float* shared, unsigned bytes) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    return shared + (bytes - address % bytes) % bytes / 4;
}

// Registers that a warpgroup gives back, or takes of those that others gave.
template <int COUNT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A barrier in shared memory that opens, phase after phase, once so many arrivals are counted.
struct Barrier {
    unsigned long long state;

    __device__ __forceinline__ unsigned address() const {
        return static_cast<unsigned>(__cvta_generic_to_shared(&state));
    }
    __device__ __forceinline__ void begin(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
    }
    // What the thread did before is seen by all who wait.
    __device__ __forceinline__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
    }
    // Arrives once all copies that the thread has started have arrived.
    __device__ __forceinline__ void arrive_after_copies() {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
    }
    // Waits for the end of a phase; phases are even and odd in turn, the first even.
    __device__ __forceinline__ void wait(int is_odd) const {
        asm volatile(
            "{\n\t.reg .pred ended;\n"
            "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n\t@!ended bra again;\n\t}" ::"r"(address()),
            "r"(is_odd)
            : "memory");
    }
};

// What this thread stored in shared memory can be read by tensor cores, once others know that it is there.
__device__ __forceinline__ void show_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_32(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12), SUMS_4(i + 16), SUMS_4(i + 20), \
                   SUMS_4(i + 24), SUMS_4(i + 28)
#define NAMES_0_31 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
                   "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_32_63 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
                    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Between what a warpgroup did with registers and its next multiplications that use them.
__device__ __forceinline__ void begin_multiplying() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

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

// All that was begun is under way, and ends in this order.
__device__ __forceinline__ void end_multiplying() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_sums() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#else
#include "tensor_primitives_host.hpp"
#endif

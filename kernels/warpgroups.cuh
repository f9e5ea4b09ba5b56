// What kernels of warpgroups ask of the hardware beyond primitives.cuh: compute capability 9.0 alone (sm_90a).
//
// The tests bring the same names for the host (warpgroups_host.hpp).
#pragma once

#include "primitives.cuh"

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

#include "bits.cuh"

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

// The lanes of a warp meet; what they did before is seen by all after.
__device__ __forceinline__ void warp_barrier() { __syncwarp(); }

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

#define SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS_32(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12), SUMS_4(i + 16), SUMS_4(i + 20), \
                   SUMS_4(i + 24), SUMS_4(i + 28)
#define NAMES_0_31 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
                   "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_32_63 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
                    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Between what a warpgroup did with registers and its next multiplications that use them.
__device__ __forceinline__ void begin_multiplying() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// All that was begun is under way, and ends in this order.
__device__ __forceinline__ void end_multiplying() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_sums() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#else
#include "warpgroups_host.hpp"
#endif

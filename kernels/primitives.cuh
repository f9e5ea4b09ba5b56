// Primitives: everything that the template asks of the hardware, and nothing else.
//
// On CUDA each is one instruction or a few. The tests bring the same names for the host
// (primitives_host.hpp), where threads run as fibres and a copy arrives only at the wait that covers it.
#pragma once

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)

// VEC neighbouring floats, moved by one access of 4 * VEC bytes.
template <int VEC> struct alignas(4 * VEC) Vec {
    float v[VEC];
};

__device__ __forceinline__ int thread_index() {
    const unsigned index = threadIdx.x;
    __builtin_assume(index < 1024);  // so that powers of two divide it by a shift
    return static_cast<int>(index);
}
__device__ __forceinline__ int block_index_x() { return blockIdx.x; }
__device__ __forceinline__ int block_index_y() { return blockIdx.y; }
__device__ __forceinline__ int grid_x() { return gridDim.x; }
__device__ __forceinline__ int grid_y() { return gridDim.y; }

// The block's dynamic shared memory, aligned to 16 bytes.
__device__ __forceinline__ float* shared_memory() {
    extern __shared__ float4 shared_memory_bytes[];
    return reinterpret_cast<float*>(shared_memory_bytes);
}

// All threads of the block meet; shared memory written before is visible to all after.
__device__ __forceinline__ void barrier() { __syncthreads(); }

// Dependent launch: sm_90 and later, nothing before. A kernel that was launched with the attribute for it
// (launch.LaunchSpec.overlaps) may begin while the kernel before it on the stream still runs, so that its launch
// costs no time of its own (docs/decisions/0018). Every thread waits before its first access to global memory.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// Returns when all kernels before on the stream have ended and what they wrote can be read.
__device__ __forceinline__ void wait_for_kernels_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel on the stream may begin as soon as all blocks of this one have come here, or ended.
__device__ __forceinline__ void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

// Stands after the type of a pointer by which the kernel only reads. What it points to may still change after
// the kernel has begun, until the wait returns: not for ld.global.nc, which `const` and `__restrict__` allow,
// and which nothing orders after the wait.
#define READ_ONLY
#define LOAD_OPERAND "ld.global"
#else
__device__ __forceinline__ void wait_for_kernels_before() {}
__device__ __forceinline__ void let_next_kernel_begin() {}
#define READ_ONLY __restrict__
#define LOAD_OPERAND "ld.global.nc"
#endif

// Thread-block clusters: sm_90 and later (rule cluster-device).

// All threads of the cluster's blocks meet; shared memory written before is visible to all after.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Reads what lies at `from` in the shared memory of the cluster's block of this rank.
template <int VEC> __device__ __forceinline__ Vec<VEC> load_cluster(const float* from, int rank) {
    const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(from));
    unsigned address;
    Vec<VEC> x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(rank));
    if constexpr (VEC == 4) {
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.v[0]), "=f"(x.v[1]), "=f"(x.v[2]), "=f"(x.v[3])
                     : "r"(address));
    } else if constexpr (VEC == 2) {
        asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x.v[0]), "=f"(x.v[1]) : "r"(address));
    } else {
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x.v[0]) : "r"(address));
    }
    return x;
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }

// a * b, rounded: an addition that follows never makes one FMA of both.
__device__ __forceinline__ float multiply_alone(float a, float b) { return __fmul_rn(a, b); }

// c += a * b for two of each, by one instruction: compute capability 10.x (rule packed-device). Each rounds as a single
// one does. Where both floats of a pair are the same register, that is an operand of its own: nothing is moved.
__device__ __forceinline__ void multiply_add_packed(float a0, float a1, float b0, float b1, float& c0, float& c1) {
    asm("{\n\t.reg .b64 a, b, c;\n\tmov.b64 a, {%2, %3};\n\tmov.b64 b, {%4, %5};\n\tmov.b64 c, {%0, %1};\n\t"
        "fma.rn.f32x2 c, a, b, c;\n\tmov.b64 {%0, %1}, c;\n\t}"
        : "+f"(c0), "+f"(c1)
        : "f"(a0), "f"(a1), "f"(b0), "f"(b1));
}

// The value that the lane `apart` lanes away has, in pairs of blocks of so many lanes; `apart` is a power of two. All
// lanes of the warp ask together.
__device__ __forceinline__ float of_lane_across(float value, int apart) {
    return __shfl_xor_sync(0xffffffff, value, apart);
}

// x / y to 2 units of roundoff, for y of 1 to 2^126; 0 for larger ones.
__device__ __forceinline__ float divide(float x, float y) { return __fdividef(x, y); }

// Makes the compiler forget what it knows of a value, so that nothing that follows from it is computed
// ahead of a loop and kept in registers.
__device__ __forceinline__ void forget(int& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void forget(unsigned& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void forget(long long& value) { asm volatile("" : "+l"(value)); }
__device__ __forceinline__ void forget(float& value) { asm volatile("" : "+f"(value)); }

// Addresses as numbers: what is added to them stays a sum.
using GlobalAddress = long long;
__device__ __forceinline__ GlobalAddress global_address(const float* pointer) {
    return static_cast<GlobalAddress>(__cvta_generic_to_global(pointer));
}
using SharedAddress = unsigned;
__device__ __forceinline__ SharedAddress shared_address(float* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

template <int VEC> __device__ __forceinline__ Vec<VEC> load_global(const float* from) {
    return *reinterpret_cast<const Vec<VEC>*>(from);
}
// From an operand of the product, by its address.
template <int VEC> __device__ __forceinline__ Vec<VEC> load_operand(GlobalAddress from) {
    Vec<VEC> x;
    if constexpr (VEC == 4) {
        asm volatile(LOAD_OPERAND ".v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x.v[0]), "=f"(x.v[1]), "=f"(x.v[2]), "=f"(x.v[3])
                     : "l"(from));
    } else if constexpr (VEC == 2) {
        asm volatile(LOAD_OPERAND ".v2.f32 {%0, %1}, [%2];" : "=f"(x.v[0]), "=f"(x.v[1]) : "l"(from));
    } else {
        asm volatile(LOAD_OPERAND ".f32 %0, [%1];" : "=f"(x.v[0]) : "l"(from));
    }
    return x;
}
template <int VEC> __device__ __forceinline__ void store_global(float* to, Vec<VEC> value) {
    *reinterpret_cast<Vec<VEC>*>(to) = value;
}
template <int VEC> __device__ __forceinline__ Vec<VEC> load_shared(const float* from) {
    return *reinterpret_cast<const Vec<VEC>*>(from);
}
template <int VEC> __device__ __forceinline__ void store_shared(float* to, Vec<VEC> value) {
    *reinterpret_cast<Vec<VEC>*>(to) = value;
}

// Reads past L1, which does not see what other SMs have written since the kernel began.
template <int VEC> __device__ __forceinline__ Vec<VEC> load_l2(const float* from) {
    if constexpr (VEC == 4) {
        const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
        return {x.x, x.y, x.z, x.w};
    } else if constexpr (VEC == 2) {
        const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
        return {x.x, x.y};
    } else {
        return {__ldcg(from)};
    }
}

__device__ __forceinline__ unsigned atomic_add(unsigned* counter, unsigned by) {
    return atomicAdd(counter, by);
}

// Returns once the counter is not zero: blocks of the same launch count it.
__device__ __forceinline__ void wait_for_counter(const unsigned* counter) {
    unsigned found = 0;
    while (found == 0) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
}

// Writes of this thread before the fence are seen by any thread that sees one after it.
__device__ __forceinline__ void fence_global() { __threadfence(); }

// Asynchronous copies: sm_80 and later (rule async-device).

// Starts a copy of VEC floats from global to shared memory; zeros instead where not is_valid
// (then `from` is not read). 16-byte copies bypass L1.
template <int VEC> __device__ __forceinline__ void copy_async(float* to, GlobalAddress from, bool is_valid) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    const int bytes = is_valid ? 4 * VEC : 0;
    if constexpr (VEC == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(4 * VEC),
                     "r"(bytes)
                     : "memory");
    }
}

// As above for a copy that is always valid, `floats` behind an address in shared memory.
template <int VEC> __device__ __forceinline__ void copy_async(SharedAddress to, int floats, GlobalAddress from) {
    const unsigned address = to + floats * static_cast<int>(sizeof(float));
    if constexpr (VEC == 4) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(4 * VEC)
                     : "memory");
    }
}

// Closes the group of copies that this thread has started since the last call.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the PENDING newest groups of this thread are still on their way.
template <int PENDING> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#else
#include "primitives_host.hpp"
#endif

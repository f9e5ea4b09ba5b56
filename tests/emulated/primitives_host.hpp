// Host twin of kernels/primitives.cuh: the same names, so that the template runs with no GPU.
//
// A block is a set of fibres, one per thread, run one after the other from barrier to barrier
// (scheduler.cpp). What a GPU leaves undefined is made to show here:
//   shared memory   starts as NaN; a race detector remembers who touched each float since the last
//                   barrier, so that a missing barrier is a fault whatever the order of threads
//   clusters        blocks of one run in turns, each to its next cluster barrier; another's shared
//                   memory may be read only if written before, and overwritten or left only after one
//   cp.async        the destination is NaN from issue until the wait that covers its group, and to
//                   touch it before that is a fault; the source is read only then
//   global memory   every access must lie within A, B, C or the workspace and be aligned
//   workspace       what a block stores is NaN for later blocks unless a fence and then an atomic,
//                   with a barrier where they are of different threads, have published it; to read
//                   what another block stored takes load_l2, and a fence after an atomic
//   kernel before   may still run: to touch global memory, or to end, before having waited for it is a fault
// Accesses that go past these functions (a plain `smem[i]`) still meet the NaN and the sanitizers.
#pragma once

#include <cstddef>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define READ_ONLY

template <int VEC>
struct alignas(VEC * sizeof(float)) Vec {
    float v[VEC];
};

namespace emulated {

enum class Access { READ, WRITE };

// The thread that runs now, and the launch that it is part of.
struct Position {
    int thread, block_x, block_y, grid_x, grid_y, rank;  // rank: of the block in its cluster
};
extern Position here;

// A place of the kernel's text: by default where the function is called that has it as an argument.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// counting.cpp: a turn of a loop lasts as long as this. And an access of the running thread; `kind`: load, store, copy.
struct Iteration {
    Iteration(const char* file, int line);
    Iteration(const Iteration&) = delete;
    ~Iteration();
};
void count_access(const float* address, int vec, bool is_shared, const char* kind, const Site& site);
#ifdef COUNTED
constexpr bool IS_COUNTED = true;
#else
constexpr bool IS_COUNTED = false;
#endif
static inline void count_shared(const float* address, int vec, const char* kind, const Site& site) {
    if (IS_COUNTED) count_access(address, vec, true, kind, site);
}
static inline void count_global(const float* address, int vec, const char* kind, const Site& site) {
    if (IS_COUNTED) count_access(address, vec, false, kind, site);
}

float* shared_base();
void touch_shared(const float* address, int count, Access access);
void touch_global(const float* address, int count, Access access);
void touch_l2(const float* address, int count);
void stored_global(const float* address, int count);  // after the store
void issue_copy(float* smem, const float* gmem, int count, bool is_valid);
void commit_group();
void wait_groups(int num_pending);
void wait_at_barrier(const char* file, int line);
void wait_at_cluster_barrier(const char* file, int line);
// The same place in the shared memory of another block of the cluster, to be read now.
const float* foreign_shared(const float* address, int count, int rank);
unsigned add_to_counter(unsigned* counter, unsigned amount);
void wait_for_counted(unsigned* counter);
float exchange(float value, int apart, const char* file, int line);  // with the thread so many lanes across
void fence();
void wait_for_launches();  // those before this one

}  // namespace emulated

inline int thread_index() { return emulated::here.thread; }
inline int block_index_x() { return emulated::here.block_x; }
inline int block_index_y() { return emulated::here.block_y; }
inline int grid_x() { return emulated::here.grid_x; }
inline int grid_y() { return emulated::here.grid_y; }

inline void wait_for_kernels_before() { emulated::wait_for_launches(); }
inline void let_next_kernel_begin() {}

inline float* shared_memory() { return emulated::shared_base(); }

inline void barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulated::wait_at_barrier(file, line);
}

inline void cluster_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulated::wait_at_cluster_barrier(file, line);
}

using GlobalAddress = long long;
inline GlobalAddress global_address(const float* pointer) { return reinterpret_cast<GlobalAddress>(pointer); }
using SharedAddress = float*;
inline SharedAddress shared_address(float* pointer) { return pointer; }

template <int VEC>
inline void copy_async(float* smem, GlobalAddress gmem, bool is_valid, emulated::Site site = emulated::Site::here()) {
    static_assert(VEC == 1 || VEC == 2 || VEC == 4, "cp.async copies 4, 8 or 16 bytes");
    emulated::count_shared(smem, VEC, "copy", site);
    if (is_valid) emulated::count_global(reinterpret_cast<const float*>(gmem), VEC, "copy", site);
    emulated::issue_copy(smem, reinterpret_cast<const float*>(gmem), VEC, is_valid);
}
template <int VEC>
inline void copy_async(SharedAddress smem, int floats, GlobalAddress gmem, emulated::Site site = emulated::Site::here()) {
    copy_async<VEC>(smem + floats, gmem, true, site);
}
inline void commit_copies() { emulated::commit_group(); }
template <int PENDING>
inline void wait_copies() {
    emulated::wait_groups(PENDING);
}

template <int VEC>
inline Vec<VEC> load_global(const float* address, emulated::Site site = emulated::Site::here()) {
    emulated::count_global(address, VEC, "load", site);
    emulated::touch_global(address, VEC, emulated::Access::READ);
    Vec<VEC> value;
    for (int i = 0; i < VEC; ++i) value.v[i] = address[i];
    return value;
}
template <int VEC>
inline Vec<VEC> load_operand(GlobalAddress address, emulated::Site site = emulated::Site::here()) {
    return load_global<VEC>(reinterpret_cast<const float*>(address), site);
}
template <int VEC>
inline Vec<VEC> load_l2(const float* address, emulated::Site site = emulated::Site::here()) {
    emulated::touch_l2(address, VEC);
    return load_global<VEC>(address, site);
}
template <int VEC>
inline void store_global(float* address, Vec<VEC> value, emulated::Site site = emulated::Site::here()) {
    emulated::count_global(address, VEC, "store", site);
    emulated::touch_global(address, VEC, emulated::Access::WRITE);
    for (int i = 0; i < VEC; ++i) address[i] = value.v[i];
    emulated::stored_global(address, VEC);
}
template <int VEC>
inline Vec<VEC> load_shared(const float* address, emulated::Site site = emulated::Site::here()) {
    emulated::count_shared(address, VEC, "load", site);
    emulated::touch_shared(address, VEC, emulated::Access::READ);
    Vec<VEC> value;
    for (int i = 0; i < VEC; ++i) value.v[i] = address[i];
    return value;
}
template <int VEC>
inline Vec<VEC> load_cluster(const float* address, int rank, emulated::Site site = emulated::Site::here()) {
    emulated::count_shared(address, VEC, "load", site);
    address = emulated::foreign_shared(address, VEC, rank);
    Vec<VEC> value;
    for (int i = 0; i < VEC; ++i) value.v[i] = address[i];
    return value;
}
template <int VEC>
inline void store_shared(float* address, Vec<VEC> value, emulated::Site site = emulated::Site::here()) {
    emulated::count_shared(address, VEC, "store", site);
    emulated::touch_shared(address, VEC, emulated::Access::WRITE);
    for (int i = 0; i < VEC; ++i) address[i] = value.v[i];
}

inline void forget(int&) {}
inline void forget(long long&) {}
inline void forget(float&) {}
inline void forget(float*&) {}

inline float of_lane_across(float value, int apart, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return emulated::exchange(value, apart, file, line);
}

extern "C" float erff(float), expf(float);  // all of <cmath> takes a fifth of a compile
inline float divide(float x, float y) { return x / y; }
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float multiply_alone(float a, float b) { return a * b; }
inline void multiply_add_packed(float a0, float a1, float b0, float b1, float& c0, float& c1) {
    c0 = multiply_add(a0, b0, c0);
    c1 = multiply_add(a1, b1, c1);
}

inline unsigned atomic_add(unsigned* counter, unsigned amount) {
    return emulated::add_to_counter(counter, amount);
}
inline void wait_for_counter(unsigned* counter) { emulated::wait_for_counted(counter); }
inline void fence_global() { emulated::fence(); }

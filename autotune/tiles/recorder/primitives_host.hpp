// kernels/primitives.cuh for the recorder: the same names, which move nothing and tell where they were asked to.
//
// No value decides where a kernel goes, but for the ticket of the block that comes last. So threads need not meet: each
// runs from begin to end by itself, what it loads is zero, and what is computed from that is left out.
#pragma once

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define READ_ONLY

template <int VEC> struct alignas(4 * VEC) Vec {
    float v[VEC];
};

namespace recorded {

// The thread that runs. `ticket`: how many splits of its tile came before its block.
struct Position {
    int thread, block_x, block_y, grid_x, ticket, grid_y;
};
extern Position here;
extern int barriers;  // that it has passed
extern float shared[];

// A place of the kernel's text: where the function is called that has it as an argument.
struct Site {
    const char* file;
    int line;
    static constexpr Site of(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

enum Kind { LOAD, STORE, COPY };
bool is_operand(const void* at);  // rather than a variable of the thread
void global(const void* at, int vec, Kind kind, Site site);
void in_shared(const void* at, int vec, Kind kind, Site site);

// A turn of a loop lasts as long as this.
struct Turn {
    Turn(const char* file, int line);
    Turn(const Turn&) = delete;
    ~Turn();
};

}  // namespace recorded

inline int thread_index() { return recorded::here.thread; }
inline int block_index_x() { return recorded::here.block_x; }
inline int block_index_y() { return recorded::here.block_y; }
inline int grid_x() { return recorded::here.grid_x; }
inline int grid_y() { return recorded::here.grid_y; }
inline float* shared_memory() { return recorded::shared; }

inline void barrier() { ++recorded::barriers; }
inline void cluster_barrier() { ++recorded::barriers; }
inline void wait_for_kernels_before() {}
inline void let_next_kernel_begin() {}
inline void fence_global() {}
inline void wait_for_counter(const unsigned*) {}
inline void commit_copies() {}
template <int PENDING> inline void wait_copies() {}
inline unsigned atomic_add(unsigned*, unsigned) { return recorded::here.ticket; }

extern "C" float erff(float), expf(float);
inline float multiply_add(float, float, float c) { return c; }
inline float multiply_alone(float a, float) { return a; }
inline void multiply_add_packed(float, float, float, float, float&, float&) {}
inline float divide(float x, float) { return x; }
inline float of_lane_across(float value, int) { return value; }

inline void forget(int&) {}
inline void forget(long long&) {}
inline void forget(float&) {}
inline void forget(float*&) {}

using GlobalAddress = long long;
inline GlobalAddress global_address(const float* pointer) { return reinterpret_cast<GlobalAddress>(pointer); }
using SharedAddress = float*;
inline SharedAddress shared_address(float* pointer) { return pointer; }

template <int VEC> inline Vec<VEC> load_global(const float* from, recorded::Site site = recorded::Site::of()) {
    recorded::global(from, VEC, recorded::LOAD, site);
    return {};
}
template <int VEC> inline Vec<VEC> load_operand(GlobalAddress from, recorded::Site site = recorded::Site::of()) {
    return load_global<VEC>(reinterpret_cast<const float*>(from), site);
}
template <int VEC> inline Vec<VEC> load_l2(const float* from, recorded::Site site = recorded::Site::of()) {
    return load_global<VEC>(from, site);
}
template <int VEC> inline void store_global(float* to, Vec<VEC>, recorded::Site site = recorded::Site::of()) {
    recorded::global(to, VEC, recorded::STORE, site);
}
template <int VEC> inline Vec<VEC> load_shared(const float* from, recorded::Site site = recorded::Site::of()) {
    recorded::in_shared(from, VEC, recorded::LOAD, site);
    return {};
}
template <int VEC> inline Vec<VEC> load_cluster(const float* from, int, recorded::Site site = recorded::Site::of()) {
    return load_shared<VEC>(from, site);
}
template <int VEC> inline void store_shared(float* to, Vec<VEC>, recorded::Site site = recorded::Site::of()) {
    recorded::in_shared(to, VEC, recorded::STORE, site);
}
template <int VEC>
inline void copy_async(float* to, GlobalAddress from, bool is_valid, recorded::Site site = recorded::Site::of()) {
    if (is_valid) recorded::global(reinterpret_cast<const float*>(from), VEC, recorded::COPY, site);
    recorded::in_shared(to, VEC, recorded::COPY, site);
}
template <int VEC>
inline void copy_async(SharedAddress to, int floats, GlobalAddress from, recorded::Site site = recorded::Site::of()) {
    copy_async<VEC>(to + floats, from, true, site);
}

// Host twin of kernels/warpgroups.cuh (see primitives_host.hpp, and tensor.cpp for what stands behind it).
//
// What a GPU leaves undefined is made to show here:
//   barriers        a thread that waits at one sleeps until its phase has ended; if all sleep, that is a fault. Races in
//                   shared memory are not looked for: warpgroups that do not wait read what is not there yet, or no more,
//                   in one order of threads or another
//   tensor cores    read fragments and planes, and write sums, when they are waited for: until then sums are NaN. What a
//                   thread has stored and not shown them is a fault to multiply
#pragma once

#include <cstdint>

#include "bits_host.hpp"
#include "primitives_host.hpp"

namespace emulated {

struct BarrierState {
    uint16_t expected, pending;
    uint16_t phase;
    uint16_t words;  // of 16 bytes, that are to arrive before the phase ends
};
void begin_barrier(BarrierState* barrier, int arrivals);
void arrive_at(BarrierState* barrier);
void expect_at(BarrierState* barrier, int bytes);
void copy_at_once(float* to, const float* from, int floats, BarrierState* barrier);
void land_copies();  // all of the running thread's
void wait_for_phase(const BarrierState* barrier, int is_odd, const char* file, int line);
void show_stores();  // to tensor cores, those of the running thread
void meet_warp(const char* file, int line);

}  // namespace emulated

inline float* aligned(float* shared, unsigned bytes) {
    return shared + (bytes - reinterpret_cast<uintptr_t>(shared) % bytes) % bytes / sizeof(float);
}

template <int COUNT> inline void give_registers() {}
template <int COUNT> inline void take_registers() {}

struct Barrier {
    emulated::BarrierState state;

    void begin(int arrivals) { emulated::begin_barrier(&state, arrivals); }
    void arrive() { emulated::arrive_at(&state); }
    void arrive_after_copies() {
        emulated::land_copies();
        emulated::arrive_at(&state);
    }
    void wait(int is_odd, const char* file = __builtin_FILE(), int line = __builtin_LINE()) const {
        emulated::wait_for_phase(&state, is_odd, file, line);
    }
};

inline void show_tensor_cores() { emulated::show_stores(); }
inline void warp_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulated::meet_warp(file, line);
}

inline void begin_multiplying() {}
inline void end_multiplying() {}

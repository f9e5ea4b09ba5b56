// What the parts of the emulator share: faults, and the launch of a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace emulated {

// Ends the program with this message, the problem, the block and the thread.
[[noreturn]] void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

extern const char* problem_name;

enum Order : int64_t { FORWARD, REVERSE, SHUFFLED };

// [begin, end) in floats. The last region of a launch is where its blocks share what they store. In those with gaps
// GLOBAL_POISON stands between rows and between products: to read it is a fault.
struct Region {
    const char* name;
    const float* begin;
    const float* end;
    bool is_writable, is_readable;
    bool has_gaps = false;
};

struct Launch {
    int grid_x, grid_y;
    int cluster;  // blocks that follow one another along y and run together
    int threads;
    size_t smem_bytes;
    Order thread_order, block_order;
    uint64_t seed;
    std::vector<Region> regions;
    const char* kernel = "sgemm";
};

// Signalling NaNs that differ, so that a message can say where one came from.
constexpr uint32_t SHARED_POISON = 0x7fa05a05;
constexpr uint32_t GLOBAL_POISON = 0x7fa0c0de;
float poison(uint32_t bits);

// Runs `kernel` once for every thread of every block; returns when all have ended.
void launch(const Launch& launch, const std::function<void()>& kernel);

// memory.cpp: the state behind the primitives, reset by the scheduler.
void begin_launch_memory(const Launch& launch);
void begin_block_memory();
void end_block_memory();
void poison_copies_under_way();  // of the running thread, again
void end_launch_memory();

// counting.cpp: what warps ask of memory, reset by the scheduler in the same way; of kernels that tell.
void begin_launch_counts(const Launch& launch);
void begin_block_counts();
void end_block_counts();
void write_counts();  // of a problem, and begins anew
int stage_a_floats();  // instance.cpp: where B's tile begins in a stage of shared memory
int stage_floats();

// scheduler.cpp: the running thread sleeps until this holds; others go on. memory.cpp: a float of shared memory that
// tensor cores read must have been shown to them.
void wait_until(const std::function<bool()>& holds, const char* file, int line);
void check_shown(const float* address);
void expect_barriers();  // within the running block
constexpr int MAX_THREADS = 1024;

int barrier_epoch();  // barriers that the running block has passed, those of its cluster too
int cluster_round();  // barriers that its cluster has passed

}  // namespace emulated
